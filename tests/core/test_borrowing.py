"""A newcomer that borrows inner state: what it asks, when it takes, and where it gives up."""

from typing import Any

import pytest

from tests.core.samples import ANN, BODY, EPOCH, NEXT_EPOCH
from zdiloco.core.borrowing import BORROW_S, LOAN_S, TRIES, BorrowState
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.loan_messages import TAKEN
from zdiloco.core.machine import (
    SYNCER,
    DropLoan,
    InnerSeen,
    LoanHere,
    LoanLost,
    LookInner,
    Note,
    Prepare,
    Prepared,
    Reborn,
    Received,
    ReceiveLoan,
    Reincarnate,
    Send,
    Started,
    StepDone,
    TakeInner,
    TimerDue,
    UpdateReady,
)
from zdiloco.core.messages import Borrow, Loan, LoanOver, Refused, Update, Welcome
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.units import Epoch, Stamp

KIND = "AdamW/1"


class Newcomer:
    """A learner of one fragment that trains at version 3, and has made its first step at 1.0."""

    def __init__(self, fragments: int = 1, **learner: Any) -> None:
        self.params = LearnerParams(**{"warm_start": "peer", "silent_after_s": 1e6, **learner})
        shares = (1 / fragments,) * fragments
        self.machine = LearnerMachine(ANN, SyncParams(), self.params, shares=shares, layout_digest="layout")
        self.machine.handle(Started(), 0.0)
        self.hear(Welcome(epoch=EPOCH, run_id="run", order=2, versions=(3,) * fragments, progress=0.0), 0.1)
        for fragment in range(fragments):
            self.update(fragment, 3, 0.2, full=True)
        self.step(0.9)  # adopts: it trains from here on
        self.first = self.step(1.0)

    def hear(self, message: Any, now: float) -> list[Any]:
        return self.machine.handle(Received(key=SYNCER, message=message), now)

    def step(self, now: float) -> list[Any]:
        return self.machine.handle(StepDone(tokens=10, seconds=0.1), now)

    def update(self, fragment: int, version: int, now: float, full: bool = False, epoch: Epoch = EPOCH) -> None:
        update = Update(
            fragment=fragment, stamp=Stamp(epoch, version), full=full, codec="bf16", value_bytes=9, body=BODY
        )
        self.hear(update, now)
        for action in self.machine.handle(UpdateReady(update=update, records=()), now):
            if isinstance(action, Prepare):
                self.machine.handle(Prepared(fragment=fragment, serial=action.serial), now)

    def asks(self, now: float = 1.1) -> list[Any]:
        fragments = tuple(range(len(self.machine.duties)))
        return self.machine.handle(InnerSeen(kind=KIND, fragments=fragments), now)

    @property
    def state(self) -> BorrowState:
        return self.machine.borrowing.state


def loan(version: int = 3, number: int = 7, fragment: int = 0, **other: Any) -> Loan:
    fields = {"kind": KIND, "stamp": Stamp(EPOCH, version), "codec": "bf16", "body": BODY}
    return Loan(fragment=fragment, number=number, **{**fields, **other})


def said(actions: list[Any], kind: type) -> list[Any]:
    return [action.message for action in actions if isinstance(action, Send) and isinstance(action.message, kind)]


def kinds(actions: list[Any], *wanted: type) -> list[Any]:
    return [action for action in actions if isinstance(action, wanted)]


def test_it_looks_after_its_first_step_and_asks_at_the_stamp_that_it_holds() -> None:
    newcomer = Newcomer()
    assert kinds(newcomer.first, LookInner)
    assert not kinds(newcomer.step(1.05), LookInner), "once"
    assert said(newcomer.asks(), Borrow) == [Borrow(fragment=0, kind=KIND, stamp=Stamp(EPOCH, 3))]


@pytest.mark.parametrize("warm_start", ["own", "none"])
def test_it_asks_for_nothing_unless_it_is_to(warm_start: str) -> None:
    newcomer = Newcomer(warm_start=warm_start)
    assert not kinds(newcomer.first, LookInner)
    assert newcomer.machine.borrowing.deadline() == float("inf")


def test_who_has_its_own_asks_for_nothing() -> None:
    newcomer = Newcomer()
    assert not newcomer.machine.handle(InnerSeen(kind=""), 1.1)
    assert newcomer.state is BorrowState.OVER


def test_a_loan_of_a_stamp_that_it_has_is_taken_at_the_next_boundary_once_it_is_here() -> None:
    newcomer = Newcomer(fragments=2)
    newcomer.asks()
    assert kinds(newcomer.hear(loan(), 1.2), ReceiveLoan) == [ReceiveLoan(loan=loan())]
    assert not kinds(newcomer.step(1.3), TakeInner), "its bytes are not here yet"
    assert not newcomer.machine.handle(LoanHere(number=7), 1.4), "away from a boundary"
    actions = newcomer.step(1.5)
    assert kinds(actions, TakeInner) == [TakeInner(loan=loan())]
    assert said(actions, LoanOver) == [LoanOver(fragment=0, number=7, reason=TAKEN)]
    assert said(actions, Borrow) == [Borrow(fragment=1, kind=KIND, stamp=Stamp(EPOCH, 3))]


def test_a_loan_of_a_newer_stamp_waits_for_that_update() -> None:
    newcomer = Newcomer()
    newcomer.asks()
    newcomer.hear(loan(version=4), 1.2)
    newcomer.machine.handle(LoanHere(number=7), 1.3)
    assert not kinds(newcomer.step(1.4), TakeInner)
    newcomer.update(0, 4, 1.5)
    actions = newcomer.step(1.6)
    assert kinds(actions, TakeInner)
    (note,) = kinds(actions, Note)
    assert note.what == "took the inner state of 1 of 1 fragments from a peer"


def test_a_loan_whose_update_never_comes_is_given_up_and_asked_for_again() -> None:
    newcomer = Newcomer()
    newcomer.asks()
    newcomer.hear(loan(version=9), 1.2)
    newcomer.machine.handle(LoanHere(number=7), 1.3)
    assert newcomer.machine.borrowing.deadline() == 1.2 + LOAN_S
    actions = newcomer.machine.handle(TimerDue(), 1.2 + LOAN_S)
    assert kinds(actions, DropLoan) == [DropLoan(loan=loan(version=9))]
    assert said(actions, Borrow)


def test_another_epoch_voids_a_loan() -> None:
    newcomer = Newcomer()
    newcomer.asks()
    newcomer.hear(loan(), 1.2)
    newcomer.machine.handle(LoanHere(number=7), 1.3)
    actions = newcomer.hear(Welcome(epoch=NEXT_EPOCH, run_id="run", order=1, versions=(3,), progress=0.0), 1.4)
    assert kinds(actions, DropLoan)
    assert not said(actions, Borrow), "it has not adopted anything of that epoch"
    newcomer.update(0, 3, 1.5, full=True, epoch=NEXT_EPOCH)
    assert not kinds(newcomer.step(1.6), TakeInner)
    assert said(newcomer.hear(loan(number=8), 1.7), LoanOver), "one of the former epoch is not taken either"
    asked = said(newcomer.machine.handle(TimerDue(), 1.4 + newcomer.params.answer_timeout_s), Borrow)
    assert asked == [Borrow(fragment=0, kind=KIND, stamp=Stamp(NEXT_EPOCH, 3))]


@pytest.mark.parametrize("other", [{"fragment": 1}, {"kind": "SGD/2"}, {"stamp": Stamp(NEXT_EPOCH, 3)}])
def test_what_was_not_asked_for_is_not_fetched(other: dict[str, Any]) -> None:
    newcomer = Newcomer(fragments=2)
    newcomer.asks()
    actions = newcomer.hear(loan(**other), 1.2)
    assert not kinds(actions, ReceiveLoan)
    assert said(actions, LoanOver)[0].reason == "not asked for"


def test_a_question_without_an_answer_is_asked_again() -> None:
    newcomer = Newcomer()
    newcomer.asks(1.1)
    due = 1.1 + newcomer.params.answer_timeout_s
    assert newcomer.machine.borrowing.deadline() == due
    assert said(newcomer.machine.handle(TimerDue(), due), Borrow)


def test_nonsense_is_refused_so_often_and_then_the_next_fragment_is_asked_for() -> None:
    newcomer = Newcomer(fragments=2)
    actions = newcomer.asks()
    for number in range(1, TRIES + 1):
        assert said(actions, Borrow)[0].fragment == 0
        newcomer.hear(loan(number=number), 1.2)
        actions = newcomer.machine.handle(LoanLost(number=number, reason="NaN in exp_avg"), 1.3)
        assert said(actions, LoanOver)[0].reason == "NaN in exp_avg"
    assert said(actions, Borrow)[0].fragment == 1


def test_where_nobody_lends_it_starts_cold_and_says_so_once() -> None:
    newcomer = Newcomer(fragments=2)
    newcomer.asks()
    assert not kinds(newcomer.hear(LoanOver(fragment=0, number=0, reason="nobody"), 1.2), Note)
    (note,) = kinds(newcomer.hear(LoanOver(fragment=1, number=0, reason="nobody"), 1.3), Note)
    assert note.what == "took the inner state of 0 of 2 fragments from a peer"
    assert note.why == "the others start cold: nobody"
    assert newcomer.machine.borrowing.deadline() == float("inf")


def test_it_ends_in_time_whatever_happens() -> None:
    newcomer = Newcomer()
    newcomer.asks(1.1)
    newcomer.hear(loan(), 1.0 + BORROW_S)
    actions = newcomer.machine.handle(TimerDue(), 1.1 + BORROW_S)
    assert kinds(actions, DropLoan)
    assert newcomer.state is BorrowState.OVER
    assert not kinds(newcomer.step(2.0 + BORROW_S), TakeInner)


def test_who_starts_over_borrows_anew() -> None:
    newcomer = Newcomer()
    newcomer.asks()
    newcomer.hear(loan(), 1.2)
    newcomer.machine.duties[0].way = 1
    newcomer.machine.handle(Received(key=SYNCER, message=_refusal()), 1.3)
    assert kinds(newcomer.step(1.4), Reincarnate)
    assert kinds(newcomer.machine.handle(Reborn(incarnation=99), 1.5), DropLoan)
    assert newcomer.state is BorrowState.IDLE


def _refusal() -> Refused:
    return Refused(fragment=0, seq=1, reason="non_finite", text="NaN")
