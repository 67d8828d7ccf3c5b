"""Loans at the syncer: it finds a lender for who asks, and carries one fragment's inner state at a time.

Rule: whoever lends and borrows is judged here alone. The bytes are opaque and have a bound of their own
(`sync.loan_bytes`), so no contribution ever waits for their room; nothing is fetched that was not asked for. Every
wait has an end, and every question an answer. States move only along TABLE.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from zdiloco.core.loan_messages import TAKEN, Borrow, Lend, Loan, LoanOver
from zdiloco.core.machine import CancelFetch, Fetch, Note, OfferLoan, Send, SyncerAction
from zdiloco.core.membership import CONTRIBUTING, Member, MemberState
from zdiloco.core.moves import moved
from zdiloco.core.start import SyncerPhase
from zdiloco.units import FragmentId, MemberKey

if TYPE_CHECKING:
    from zdiloco.core.syncer import SyncerMachine

ASK_S = 10.0
"""A lender that has not offered anything after so long is passed over."""
CARRY_S = 60.0
"""So long may the bytes of one loan take from the lender to here, and from here to the borrower."""
MOST_WAITING = 64
"""Learners that wait for their turn; more are told that nobody lends now."""
MOST_LENDERS = 3
"""Lenders that are asked for one loan, one after the other."""
MOST_ASKED = 4
"""Loans per fragment that one process may ask for; an honest one asks for fewer."""
VALUE_BYTES, TENSOR_BYTES = 20, 4096
"""Most bytes of inner state per value of a fragment, and beside that: no optimizer remembers more."""


class LoanState(StrEnum):
    """Where a loan is."""

    ASKED = "asked"
    """A lender is asked for it."""
    FETCHING = "fetching"
    """Its bytes are on their way from the lender."""
    SERVED = "served"
    """Its bytes are here, and offered to the borrower."""


class LoanEvent(StrEnum):
    """What moves it on; that it is over ends it, whatever its state."""

    OFFERED = "offered by the lender"
    FETCHED = "its bytes are here"
    FAILED = "the lender failed, another one is asked"


_S, _E = LoanState, LoanEvent
TABLE: dict[tuple[LoanState, LoanEvent], LoanState] = {
    (_S.ASKED, _E.OFFERED): _S.FETCHING,
    (_S.ASKED, _E.FAILED): _S.ASKED,
    (_S.FETCHING, _E.FETCHED): _S.SERVED,
    (_S.FETCHING, _E.FAILED): _S.ASKED,
}


@dataclass(slots=True)
class Carried:
    """The loan under way. `message`: what the lender offers; `tried`: lenders that are not asked again."""

    number: int
    borrower: MemberKey
    asked: Borrow
    lender: MemberKey | None = None
    state: LoanState = LoanState.ASKED
    ends: float = 0.0
    message: Loan | None = None
    tried: set[MemberKey] = field(default_factory=set)

    def move(self, event: LoanEvent) -> None:
        """Go where TABLE says; anything else is our mistake."""
        self.state = moved(TABLE, self.state, event, f"loan {self.number}")


class Loans:
    """All loans of one syncer machine: one under way, others wait for their turn in the order of asking."""

    def __init__(self, machine: "SyncerMachine") -> None:
        self.machine = machine
        self.waiting: dict[MemberKey, Borrow] = {}
        self.carried: Carried | None = None
        self.asked: dict[MemberKey, int] = {}
        self.avoid: dict[MemberKey, MemberKey] = {}
        """By borrower: the lender whose last loan it did not take."""
        self.number = 0
        self.counts = {"carried": 0, "refused": 0, "failed": 0, "unasked": 0}

    def status(self) -> dict[str, Any]:
        """What `status` shows: counts, and the bytes that loans take now."""
        under_way, bound = self.carried, self.machine.params.loan_bytes
        used = under_way.message.body.nbytes if under_way and under_way.message else 0
        return {**self.counts, "waiting": len(self.waiting), "used_bytes": used, "bytes": bound}

    def deadline(self) -> float | None:
        """When `turn` is due; None: no loan is under way."""
        return self.carried.ends if self.carried else None

    # ---- the borrower

    def borrow(self, member: Member, message: Borrow, now: float) -> list[SyncerAction]:
        """Somebody asks for a loan, perhaps again."""
        key, under_way = member.key, self.carried
        if under_way and under_way.borrower == key and under_way.asked.fragment == message.fragment:
            return self._say_again(under_way)
        if self.waiting.get(key) == message:
            return []
        why = self._refusal(member, message)
        if why:
            return self._refuse(key, message.fragment, why)
        self.asked[key] = self.asked.get(key, 0) + 1
        over = self._end() if under_way and under_way.borrower == key else []  # it has what it asked for before
        self.waiting[key] = message
        return over + self._next(now)

    def _refusal(self, member: Member, message: Borrow) -> str:
        """Say why a loan is out of the question; empty: it is not."""
        machine, fragments = self.machine, self.machine.desk.fragments
        if not machine.params.loan_bytes or machine.phase is not SyncerPhase.RUNNING:
            return "the run is ending" if machine.params.loan_bytes else "this run has no loans (sync.loan_bytes = 0)"
        if message.fragment >= len(fragments) or message.stamp.epoch != machine.epoch:
            return "it is of another epoch, or there is no such fragment"
        if member.state not in CONTRIBUTING and member.state is not MemberState.JOINING:
            return f"who is {member.state} borrows nothing"
        if self.asked.get(member.key, 0) >= MOST_ASKED * len(fragments):
            return "it has asked too often"
        full = len(self.waiting) >= MOST_WAITING and member.key not in self.waiting
        return f"{MOST_WAITING} learners wait for a loan already" if full else ""

    def _refuse(self, key: MemberKey, fragment: FragmentId, why: str) -> list[SyncerAction]:
        self.counts["refused"] += 1
        return [Send(key=key, message=LoanOver(fragment=fragment, number=0, reason=why))]

    def _say_again(self, loan: Carried) -> list[SyncerAction]:
        """The question came again: perhaps a word was lost."""
        if loan.state is _S.ASKED:
            return self._lend(loan)
        return self._serve(loan) if loan.state is _S.SERVED else []

    # ---- the lender

    def _next(self, now: float) -> list[SyncerAction]:
        """Begin the next loan, unless one is under way."""
        actions: list[SyncerAction] = []
        while self.carried is None and self.waiting:
            key = next(iter(self.waiting))
            message = self.waiting.pop(key)
            if self._is_here(key):
                self.number += 1
                tried = {self.avoid[key]} if key in self.avoid else set()
                self.carried = Carried(number=self.number, borrower=key, asked=message, tried=tried)
                actions += self._ask_one(self.carried, "nobody has made a period of steps more", now)
        return actions

    def _ask_one(self, loan: Carried, why: str, now: float) -> list[SyncerAction]:
        """Ask the best lender that is left; where there is none, the borrower is told `why`."""
        lender = self._lender(loan) if len(loan.tried) < MOST_LENDERS else None
        if lender is None:
            self.carried = None
            return self._refuse(loan.borrower, loan.asked.fragment, why)
        loan.lender, loan.message, loan.ends = lender, None, now + ASK_S
        return self._lend(loan)

    def _lender(self, loan: Carried) -> MemberKey | None:
        """Of those that train the one with most steps here: a period more than the borrower, or it is not worth it."""
        fleet = self.machine.fleet
        borrower = fleet.find(loan.borrower)
        least = (_steps(borrower) if borrower else 0) + self.machine.params.sync_period
        live = fleet.in_state[MemberState.LIVE].values()
        fits = [m for m in live if m.key not in loan.tried and m.key != loan.borrower and _steps(m) >= least]
        return max(fits, key=lambda m: (_steps(m), -m.order)).key if fits else None

    def _lend(self, loan: Carried) -> list[SyncerAction]:
        assert loan.lender is not None
        lend = Lend(fragment=loan.asked.fragment, number=loan.number, kind=loan.asked.kind)
        return [Send(key=loan.lender, message=lend)]

    def offer(self, member: Member, message: Loan, now: float) -> list[SyncerAction]:
        """A member offers inner state: fetch it, if it is what was asked for, and may be that large."""
        loan = self.carried
        if loan is None or (member.key, message.number) != (loan.lender, loan.number):
            self.counts["unasked"] += 1
            over = LoanOver(fragment=message.fragment, number=message.number, reason="nobody has asked for it")
            return [Send(key=member.key, message=over)]
        if loan.state is not _S.ASKED:
            return []
        why = self._wrong(loan, message)
        if why:
            return self._failed(loan, why, now)
        loan.move(_E.OFFERED)
        loan.message, loan.ends = message, now + CARRY_S
        return [Fetch(key=member.key, message=message)]

    def _wrong(self, loan: Carried, message: Loan) -> str:
        """Say why an offer is not what was asked for; empty: it is."""
        asked, machine = loan.asked, self.machine
        if (message.fragment, message.kind) != (asked.fragment, asked.kind) or message.stamp.epoch != machine.epoch:
            return "the lender offered something else"
        most = VALUE_BYTES * machine.desk.fragments[asked.fragment].numel + TENSOR_BYTES
        if message.body.nbytes > min(most, machine.params.loan_bytes):
            return f"{message.body.nbytes} bytes are too many for a loan (sync.loan_bytes)"
        return ""

    def fetched(self, key: MemberKey, message: Loan, now: float) -> list[SyncerAction]:
        """The lender's bytes are here: offer them to the borrower."""
        loan = self.carried
        if loan is None or loan.state is not _S.FETCHING or (key, message) != (loan.lender, loan.message):
            return [CancelFetch(key=key, message=message)]
        loan.move(_E.FETCHED)
        loan.ends = now + CARRY_S
        return self._serve(loan)

    def _serve(self, loan: Carried) -> list[SyncerAction]:
        assert loan.lender is not None
        assert loan.message is not None
        return [OfferLoan(key=loan.borrower, lender=loan.lender, loan=loan.message)]

    def lost(self, key: MemberKey, message: Loan, reason: str, now: float) -> list[SyncerAction]:
        """The lender's bytes did not come, or cannot be right."""
        loan = self.carried
        current = loan is not None and loan.state is _S.FETCHING and (key, message) == (loan.lender, loan.message)
        return self._failed(loan, reason, now) if loan and current else []

    def _failed(self, loan: Carried, why: str, now: float) -> list[SyncerAction]:
        """This lender failed: ask the next one."""
        assert loan.lender is not None
        self.counts["failed"] += 1
        over = self._release(loan)
        what = f"{loan.lender.name} lends nothing of fragment {loan.asked.fragment}"
        loan.tried.add(loan.lender)
        loan.move(_E.FAILED)
        return [Note(what=what, why=why), *over, *self._ask_one(loan, why, now), *self._next(now)]

    # ---- ending

    def over(self, member: Member, message: LoanOver, now: float) -> list[SyncerAction]:
        """The borrower has it or wants it no more, or the lender cannot."""
        loan = self.carried
        if loan is None or loan.number != message.number:
            return []
        if member.key == loan.borrower:
            if message.reason != TAKEN and loan.lender is not None:
                self.avoid[member.key] = loan.lender
            return [*self._end(), *self._next(now)]
        asked = member.key == loan.lender and loan.state is _S.ASKED
        return self._failed(loan, message.reason, now) if asked else []

    def turn(self, now: float) -> list[SyncerAction]:
        """Give up what does not come, and what nobody is there for any more."""
        loan = self.carried
        if loan is None:
            return []
        if self.machine.phase is not SyncerPhase.RUNNING:
            self.waiting.clear()
            return self._end()
        if not self._is_here(loan.borrower) or (loan.state is _S.SERVED and now >= loan.ends):
            return [*self._end(), *self._next(now)]
        if loan.state is _S.SERVED:
            return []
        if now >= loan.ends:
            return self._failed(loan, "its lender did not answer in time", now)
        gone = loan.lender is not None and not self._is_here(loan.lender)
        return self._failed(loan, "its lender is gone", now) if gone else []

    def _is_here(self, key: MemberKey) -> bool:
        member = self.machine.fleet.find(key)
        return member is not None and member.state not in (MemberState.GONE, MemberState.FINISHED)

    def _end(self) -> list[SyncerAction]:
        """The loan is over; of processes that are gone nothing is remembered."""
        loan, self.carried = self.carried, None
        assert loan is not None
        self.counts["carried"] += loan.state is _S.SERVED
        if len(self.asked) > MOST_WAITING:
            self.asked = {key: count for key, count in self.asked.items() if self._is_here(key)}
            self.avoid = {key: lender for key, lender in self.avoid.items() if self._is_here(key)}
        return self._release(loan)

    def _release(self, loan: Carried) -> list[SyncerAction]:
        if loan.lender is None:
            return []
        over = LoanOver(fragment=loan.asked.fragment, number=loan.number, reason="it is not needed any more")
        bytes_go = [CancelFetch(key=loan.lender, message=loan.message)] if loan.message else []
        return [*bytes_go, Send(key=loan.lender, message=over)]


def _steps(member: Member) -> int:
    """Steps that a member has made since it joined."""
    return 0 if member.first_step is None else member.step - member.first_step


MESSAGES: dict[type, Callable[..., list[SyncerAction]]] = {
    Borrow: lambda machine, member, message, now: machine.loans.borrow(member, message, now),
    Loan: lambda machine, member, message, now: machine.loans.offer(member, message, now),
    LoanOver: lambda machine, member, message, now: machine.loans.over(member, message, now),
}
