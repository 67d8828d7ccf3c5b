"""Borrowing: a newcomer without inner state of its own takes that of a live learner, fragment by fragment.

Rule: training goes on meanwhile, cold. A fragment's state is taken at a boundary, whole, and only where both have seen
its stamp: what this learner has adopted is of the same epoch and not older. Every wait has an end; at the last one
training simply stays as cold as it is, and the log says so once. States move only along TABLE.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from zdiloco.core.joining import LearnerPhase
from zdiloco.core.loan_messages import TAKEN
from zdiloco.core.machine import (
    SYNCER,
    DropLoan,
    InnerSeen,
    LearnerAction,
    LoanHere,
    LoanLost,
    LookInner,
    Note,
    ReceiveLoan,
    Send,
    TakeInner,
)
from zdiloco.core.messages import Borrow, Loan, LoanOver
from zdiloco.core.moves import moved
from zdiloco.units import FragmentId

if TYPE_CHECKING:
    from zdiloco.core.learner import LearnerMachine

BORROW_S = 120.0
"""After so long from the first question nothing more is borrowed: by then the own state is worth as much."""
LOAN_S = 60.0
"""A loan that was offered is here and taken within so long, or asked for again."""
TRIES = 3
"""Loans of one fragment that may fail."""


class BorrowState(StrEnum):
    """Where a learner is with borrowing."""

    IDLE = "idle"
    """Has made no step yet, or wants nothing."""
    ASKING = "asking"
    """Asks the syncer for the next fragment."""
    RECEIVING = "receiving"
    """A loan is offered: its bytes are on their way, or looked at."""
    WAITING = "waiting"
    """It is here; waits for a boundary at which its stamp has been seen."""
    OVER = "over"
    """Nothing more is borrowed."""


class BorrowEvent(StrEnum):
    """What moves it on."""

    LACKS = "its inner state is missing"
    OFFERED = "a loan is offered"
    HERE = "its bytes are here and make sense"
    LOST = "the loan is lost"
    TAKEN = "taken"
    ENDED = "nothing is left, or time is over"


_S, _E = BorrowState, BorrowEvent
TABLE: dict[tuple[BorrowState, BorrowEvent], BorrowState] = {
    (_S.IDLE, _E.LACKS): _S.ASKING,
    (_S.ASKING, _E.OFFERED): _S.RECEIVING,
    (_S.RECEIVING, _E.HERE): _S.WAITING,
    (_S.RECEIVING, _E.LOST): _S.ASKING,
    (_S.WAITING, _E.LOST): _S.ASKING,
    (_S.WAITING, _E.TAKEN): _S.ASKING,
    (_S.ASKING, _E.ENDED): _S.OVER,
    (_S.RECEIVING, _E.ENDED): _S.OVER,
    (_S.WAITING, _E.ENDED): _S.OVER,
    (_S.IDLE, _E.ENDED): _S.OVER,
}


class Borrowing:
    """The borrowing side of one learner machine."""

    def __init__(self, machine: "LearnerMachine") -> None:
        self.machine = machine
        self.loan: Loan | None = None
        self.begin()

    def begin(self) -> list[LearnerAction]:
        """The inner state is as before the first step: what was borrowed for another one is let go."""
        drop: list[LearnerAction] = [DropLoan(loan=self.loan)] if self.loan else []
        self.state = BorrowState.IDLE
        self.kind = ""
        self.left: list[FragmentId] = []
        self.wanted = self.taken = self.tries = 0
        self.loan = None
        self.looked = False
        self.asked_at = self.ends = self.due = float("inf")
        self.why = ""
        return drop

    def deadline(self) -> float:
        """When `turn` is due."""
        if self.state in (_S.IDLE, _S.OVER):
            return float("inf")
        training = self.state is _S.ASKING and self.machine.phase is LearnerPhase.TRAINING
        again = self.asked_at + self.machine.params.answer_timeout_s if training else float("inf")
        return min(self.ends, self.due, again)

    def boundary(self, now: float) -> list[LearnerAction]:
        """At a boundary, after adoptions: look what there is after the first step, or take what is here."""
        machine, loan = self.machine, self.loan
        if self.state is _S.IDLE:
            wants = machine.params.warm_start == "peer" and not machine.watching and not self.looked
            if not wants or machine.phase is not LearnerPhase.TRAINING or machine.steps_since_join < 1:
                return []
            self.looked = True
            return [LookInner()]
        if self.state is not _S.WAITING or loan is None or not self._has_seen(loan):
            return []
        self.taken += 1
        self.left.pop(0)
        self.loan, self.tries = None, 0
        self._move(_E.TAKEN)
        return [TakeInner(loan=loan), self._over(loan, TAKEN), *self._ask(now)]

    def _has_seen(self, loan: Loan) -> bool:
        seen = self.machine.duties[loan.fragment].progress.seen
        return seen.epoch == loan.stamp.epoch and seen >= loan.stamp

    def seen(self, event: InnerSeen, now: float) -> list[LearnerAction]:
        """What the inner optimizer is: ask for the first fragment, or leave it at that."""
        if self.state is not _S.IDLE:
            return []
        if not event.kind or not event.fragments:
            self._move(_E.ENDED)
            return []
        self.kind, self.left, self.wanted = event.kind, list(event.fragments), len(event.fragments)
        self.ends = now + BORROW_S
        self._move(_E.LACKS)
        return self._ask(now)

    def turn(self, now: float) -> list[LearnerAction]:
        """Ask again, or give up what does not come."""
        if self.state in (_S.IDLE, _S.OVER):
            return []
        if now >= self.ends:
            return self._end(f"after {BORROW_S:g} s no more is borrowed")
        if self.loan is not None and self.loan.stamp.epoch != self.machine.epoch:
            return self._lost("another syncer has taken over", now)
        if self.loan is not None and now >= self.due:
            return self._lost("it did not come in time", now)
        training = self.state is _S.ASKING and self.machine.phase is LearnerPhase.TRAINING
        return self._ask(now) if training and now >= self.asked_at + self.machine.params.answer_timeout_s else []

    def _ask(self, now: float) -> list[LearnerAction]:
        if not self.left:
            return self._end("")
        self.asked_at, self.due, fragment = now, float("inf"), self.left[0]
        stamp = self.machine.duties[fragment].progress.seen
        if stamp.epoch != self.machine.epoch:
            return []  # the new syncer's state of it is not adopted yet: a little later
        return [Send(key=SYNCER, message=Borrow(fragment=fragment, kind=self.kind, stamp=stamp))]

    def offered(self, message: Loan, now: float) -> list[LearnerAction]:
        """A loan is offered: fetch it, if it is what was asked for."""
        if message == self.loan:
            return []
        asked = self.state is _S.ASKING and message.fragment == self.left[0] and message.kind == self.kind
        if not asked or message.stamp.epoch != self.machine.epoch:
            return [self._over(message, "not asked for")]
        self.loan, self.due = message, now + LOAN_S
        self._move(_E.OFFERED)
        return [ReceiveLoan(loan=message)]

    def over(self, message: LoanOver, now: float) -> list[LearnerAction]:
        """The syncer says that there is none: go on with the next fragment; or that it has withdrawn this one."""
        if self.loan is not None and message.number == self.loan.number:
            return self._lost(message.reason, now)
        if self.state is not _S.ASKING or message.number or message.fragment != self.left[0]:
            return []
        self.why = message.reason
        self.left.pop(0)
        self.tries = 0
        return self._ask(now)

    def here(self, event: LoanHere) -> list[LearnerAction]:
        """The bytes are here: the next boundary may take them."""
        if self.state is _S.RECEIVING and self.loan is not None and event.number == self.loan.number:
            self._move(_E.HERE)
        return []

    def lost(self, event: LoanLost, now: float) -> list[LearnerAction]:
        """The bytes did not come, or made no sense."""
        fits = self.state is _S.RECEIVING and self.loan is not None and event.number == self.loan.number
        return self._lost(event.reason, now) if fits else []

    def _lost(self, reason: str, now: float) -> list[LearnerAction]:
        loan, self.loan = self.loan, None
        assert loan is not None
        self.why, self.tries = reason, self.tries + 1
        self.machine.count("loan lost")
        self._move(_E.LOST)
        if self.tries >= TRIES:
            self.left.pop(0)
            self.tries = 0
        return [DropLoan(loan=loan), self._over(loan, reason), *self._ask(now)]

    def _end(self, why: str) -> list[LearnerAction]:
        """Say once how much of the inner state is a peer's."""
        drop: list[LearnerAction] = [DropLoan(loan=self.loan), self._over(self.loan, why)] if self.loan else []
        self.loan, self.left = None, []
        self._move(_E.ENDED)
        what = f"took the inner state of {self.taken} of {self.wanted} fragments from a peer"
        cold = self.taken < self.wanted
        note = Note(what=what, why=f"the others start cold: {why or self.why}" if cold else "warm_start = 'peer'")
        return [*drop, note]

    def _over(self, loan: Loan, reason: str) -> Send:
        return Send(key=SYNCER, message=LoanOver(fragment=loan.fragment, number=loan.number, reason=reason))

    def _move(self, event: BorrowEvent) -> None:
        self.state = moved(TABLE, self.state, event, "borrowing")
