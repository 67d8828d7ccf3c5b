"""A learner that lends inner state: when it copies, what it offers, and when it lets go."""

from typing import Any

from tests.core.samples import BODY, EPOCH, NEXT_EPOCH
from tests.core.test_borrowing import KIND, Newcomer, kinds, said
from zdiloco.core.machine import CopyInner, EndLending, LendFailed, LoanReady
from zdiloco.core.messages import Lend, Loan, LoanOver, Welcome
from zdiloco.units import Stamp

LEND = Lend(fragment=0, number=5, kind=KIND)
AT = Stamp(EPOCH, 3)


def offer(number: int = 5) -> Loan:
    return Loan(fragment=0, number=number, kind=KIND, stamp=AT, codec="bf16", body=BODY)


def lender() -> Newcomer:
    return Newcomer(warm_start="own")


def lent() -> Newcomer:
    learner = lender()
    learner.hear(LEND, 2.0)
    learner.step(2.1)
    learner.machine.handle(LoanReady(loan=offer()), 2.2)
    return learner


def test_it_is_copied_at_the_next_boundary_with_the_stamp_that_is_adopted_there() -> None:
    learner = lender()
    learner.update(0, 4, 1.9)
    assert not kinds(learner.hear(LEND, 2.0), CopyInner)
    assert kinds(learner.step(2.1), CopyInner) == [CopyInner(lend=LEND, stamp=Stamp(EPOCH, 4))]
    assert not kinds(learner.step(2.2), CopyInner), "once"
    assert said(learner.machine.handle(LoanReady(loan=offer()), 2.3), Loan) == [offer()]


def test_asked_again_it_offers_again_and_copies_nothing() -> None:
    learner = lent()
    assert said(learner.hear(LEND, 3.0), Loan) == [offer()]
    assert not kinds(learner.step(3.1), CopyInner)


def test_asked_again_while_it_copies_it_waits() -> None:
    learner = lender()
    learner.hear(LEND, 2.0)
    learner.step(2.1)
    assert not learner.hear(LEND, 2.2)
    assert not kinds(learner.step(2.3), CopyInner)


def test_what_it_cannot_lend_it_says() -> None:
    learner = lender()
    learner.hear(LEND, 2.0)
    learner.step(2.1)
    (over,) = said(learner.machine.handle(LendFailed(number=5, reason="another optimizer"), 2.2), LoanOver)
    assert (over.number, over.reason) == (5, "another optimizer")
    learner.hear(Lend(fragment=9, number=6, kind=KIND), 2.3)
    assert said(learner.step(2.4), LoanOver)[0].number == 6


def test_a_copy_that_comes_too_late_is_not_offered() -> None:
    learner = lender()
    learner.hear(LEND, 2.0)
    learner.step(2.1)
    learner.hear(LoanOver(fragment=0, number=5, reason="too late"), 2.2)
    assert not learner.machine.handle(LoanReady(loan=offer()), 2.3)
    assert not learner.machine.handle(LendFailed(number=5, reason="late"), 2.4)


def ends(actions: list[Any]) -> bool:
    return bool(kinds(actions, EndLending))


def test_it_lets_go_when_told_when_asked_for_another_and_with_the_epoch() -> None:
    assert ends(lent().hear(LoanOver(fragment=0, number=5, reason="over"), 3.0))
    assert not ends(lent().hear(LoanOver(fragment=0, number=4, reason="over"), 3.0))
    assert ends(lent().hear(Lend(fragment=0, number=6, kind=KIND), 3.0))
    learner = lent()
    learner.hear(Welcome(epoch=NEXT_EPOCH, run_id="run", order=1, versions=(3,), progress=0.0), 3.0)
    assert ends(learner.step(3.1))


def test_the_number_of_a_new_syncer_is_another_loan() -> None:
    """Numbers begin anew with each syncer: what was offered to the former one is not this."""
    learner = lent()
    learner.hear(Welcome(epoch=NEXT_EPOCH, run_id="run", order=1, versions=(3,), progress=0.0), 3.0)
    actions = learner.hear(LEND, 3.1)
    assert ends(actions)
    assert not said(actions, Loan)
