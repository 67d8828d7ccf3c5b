"""Loans at the syncer: who is asked, what is carried, and how every one of them ends."""

from dataclasses import replace
from typing import Any

import pytest

from zdiloco.core.loan_messages import TAKEN
from zdiloco.core.loans import ASK_S, CARRY_S, MOST_ASKED, MOST_LENDERS, MOST_WAITING, LoanState
from zdiloco.core.machine import CancelFetch, Fetch, Fetched, FetchLost, LeaveRequested, OfferLoan, Received, TimerDue
from zdiloco.core.membership import MemberState
from zdiloco.core.messages import Body, Borrow, Goodbye, Heartbeat, Lend, Loan, LoanOver
from zdiloco.core.params import SyncParams
from zdiloco.sim.bodies import NUMEL
from zdiloco.sim.world import World
from zdiloco.units import NO_STAMP, MemberKey, Stamp

H, KIND = 8, "AdamW/1"


class Fleet:
    """A syncer that runs, lenders that are so many steps ahead, each a little more than the next, and a newcomer."""

    def __init__(self, lenders: int = 1, steps: int = 24, **sync: Any) -> None:
        self.world = World(SyncParams(sync_period=H, **sync), 2)
        first = [self.world.join(f"a{number}", 0.05 + 0.005 * number) for number in range(lenders)]
        self.world.run(0.05 * steps)
        last = self.world.join("new")
        self.world.run(self.world.now + 0.5)
        self.machine, self.now = self.world.site.machine, self.world.now
        self.lenders, self.newcomer = [actor.key for actor in first], last.key
        self.stamp = Stamp(self.machine.epoch, 1)

    def hear(self, key: MemberKey, message: Any) -> list[Any]:
        return self.machine.handle(Received(key=key, message=message), self.now)

    def asks(self, key: MemberKey | None = None, fragment: int = 0, **other: Any) -> list[Any]:
        message = Borrow(**{"fragment": fragment, "kind": KIND, "stamp": self.stamp, **other})
        return self.hear(key or self.newcomer, message)

    def loan(self, **other: Any) -> Loan:
        body = Body(transfer="l/1", nbytes=900, chunk_bytes=1 << 20, digest=5)
        fields = {"fragment": 0, "number": self.machine.loans.number, "kind": KIND, "stamp": self.stamp}
        return Loan(**{**fields, "codec": "bf16", "body": body, **other})

    def offered(self) -> Loan:
        """Until a lender has offered what is fetched now."""
        self.asks()
        self.hear(self.lenders[0], self.loan())
        return self.loan()

    def served(self) -> Loan:
        loan = self.offered()
        self.machine.handle(Fetched(key=self.lenders[0], message=loan), self.now)
        return loan

    def later(self, seconds: float) -> list[Any]:
        """Time passes, and everybody but the dead is heard meanwhile."""
        self.now += seconds
        actions = []
        for key in (*self.lenders, self.newcomer):
            actions += self.hear(key, Heartbeat(epoch=self.machine.epoch))
        return actions + self.machine.handle(TimerDue(), self.now)


def told(actions: list[Any], key: MemberKey, kind: type) -> list[Any]:
    return [a.message for a in actions if getattr(a, "key", None) == key and isinstance(getattr(a, "message", 0), kind)]


def of_loans(actions: list[Any]) -> list[Any]:
    found = [a for a in actions if isinstance(getattr(a, "message", getattr(a, "loan", None)), Lend | Loan | LoanOver)]
    return [(type(a).__name__, a.key.name) for a in found]


def test_who_has_made_most_steps_here_is_asked() -> None:
    fleet = Fleet(lenders=3)
    actions = fleet.asks()
    assert told(actions, fleet.lenders[0], Lend) == [Lend(fragment=0, number=1, kind=KIND)]
    assert of_loans(actions) == [("Send", "a0")]


def test_a_loan_goes_from_the_lender_to_the_borrower_and_is_let_go() -> None:
    fleet = Fleet()
    fleet.asks()
    loan, lender = fleet.loan(), fleet.lenders[0]
    assert Fetch(key=lender, message=loan) in fleet.hear(lender, loan)
    assert fleet.machine.loans.status()["used_bytes"] == 900
    actions = fleet.machine.handle(Fetched(key=lender, message=loan), fleet.now)
    assert OfferLoan(key=fleet.newcomer, lender=lender, loan=loan) in actions
    actions = fleet.hear(fleet.newcomer, LoanOver(fragment=0, number=1, reason=TAKEN))
    assert of_loans(actions) == [("CancelFetch", "a0"), ("Send", "a0")]
    status = fleet.machine.loans.status()
    assert (status["carried"], status["used_bytes"], status["waiting"]) == (1, 0, 0)


def test_a_word_that_was_lost_is_said_again_when_the_question_comes_again() -> None:
    fleet = Fleet()
    fleet.asks()
    assert of_loans(fleet.asks()) == [("Send", "a0")]
    fleet.hear(fleet.lenders[0], fleet.loan())
    assert of_loans(fleet.asks()) == [], "its bytes are on their way"
    fleet.machine.handle(Fetched(key=fleet.lenders[0], message=fleet.loan()), fleet.now)
    assert of_loans(fleet.asks()) == [("OfferLoan", "new")]


def test_one_loan_at_a_time_the_others_wait_their_turn() -> None:
    fleet = Fleet(lenders=2)
    other = fleet.world.join("other")
    fleet.world.run(fleet.world.now + 0.5)
    fleet.now = fleet.world.now
    fleet.served()
    assert of_loans(fleet.asks(other.key)) == []
    actions = fleet.hear(fleet.newcomer, LoanOver(fragment=0, number=1, reason=TAKEN))
    assert of_loans(actions) == [("CancelFetch", "a0"), ("Send", "a0"), ("Send", "a0")]
    assert told(actions, fleet.lenders[0], Lend)[0].number == 2
    assert fleet.machine.loans.carried.borrower == other.key


def test_the_next_question_of_the_borrower_ends_the_loan() -> None:
    fleet = Fleet()
    fleet.served()
    actions = fleet.asks(fragment=1)
    assert of_loans(actions) == [("CancelFetch", "a0"), ("Send", "a0"), ("Send", "a0")]
    assert fleet.machine.loans.carried.asked.fragment == 1


def test_nobody_lends_who_is_hardly_ahead() -> None:
    fleet = Fleet(steps=H - 2)
    (over,) = told(fleet.asks(), fleet.newcomer, LoanOver)
    assert (over.number, over.reason) == (0, "nobody has made a period of steps more")


def test_one_in_quarantine_or_unheard_of_is_no_lender() -> None:
    fleet = Fleet(lenders=2)
    fleet.machine.fleet.find(fleet.lenders[0]).state = MemberState.QUARANTINED
    fleet.machine.fleet._moved(fleet.machine.fleet.find(fleet.lenders[0]))
    assert of_loans(fleet.asks()) == [("Send", "a1")]


@pytest.mark.parametrize("failing", ["cannot", "silent", "lost", "late", "gone"])
def test_where_a_lender_fails_the_next_one_is_asked(failing: str) -> None:
    fleet = Fleet(lenders=2)
    first, second = fleet.lenders
    loan = fleet.offered() if failing in ("lost", "late", "gone") else None
    if failing == "cannot":
        fleet.asks()
        actions = fleet.hear(first, LoanOver(fragment=0, number=1, reason="its inner optimizer is another one"))
    elif failing == "silent":
        fleet.asks()
        actions = fleet.later(ASK_S)
    elif failing == "lost":
        actions = fleet.machine.handle(FetchLost(key=first, message=loan, reason="broken off"), fleet.now)
    elif failing == "late":
        actions = fleet.later(CARRY_S)
    else:
        actions = fleet.hear(first, Goodbye(reason="x", trained_tokens=1, left_tokens=0, dropped_tokens=0))
    assert told(actions, second, Lend) == [Lend(fragment=0, number=1, kind=KIND)]
    assert (CancelFetch(key=first, message=loan) in actions) == (loan is not None)
    assert fleet.machine.loans.carried.state is LoanState.ASKED


def test_after_so_many_lenders_the_borrower_is_told_why() -> None:
    fleet = Fleet(lenders=MOST_LENDERS + 1)
    fleet.asks()
    for lender in fleet.lenders[:MOST_LENDERS]:
        actions = fleet.hear(lender, LoanOver(fragment=0, number=1, reason="another optimizer"))
    assert told(actions, fleet.newcomer, LoanOver)[0].reason == "another optimizer"
    assert fleet.machine.loans.carried is None


def test_who_sent_nonsense_is_not_asked_by_the_same_borrower_again() -> None:
    fleet = Fleet(lenders=2)
    fleet.served()
    fleet.hear(fleet.newcomer, LoanOver(fragment=0, number=1, reason="NaN in exp_avg"))
    assert of_loans(fleet.asks()) == [("Send", "a1")]


@pytest.mark.parametrize("change", [
    {"fragment": 1}, {"kind": "SGD/1"}, {"stamp": NO_STAMP},
    {"body": Body(transfer="l/1", nbytes=2**40, chunk_bytes=1024, digest=1)},
    {"body": Body(transfer="l/1", nbytes=30 * NUMEL, chunk_bytes=1024, digest=1)},
])  # fmt: skip
def test_an_offer_that_is_not_what_was_asked_for_is_not_fetched(change: dict[str, Any]) -> None:
    fleet = Fleet()
    fleet.asks()
    actions = fleet.hear(fleet.lenders[0], fleet.loan(**change))
    assert not [action for action in actions if isinstance(action, Fetch)]
    assert told(actions, fleet.newcomer, LoanOver)


def test_what_nobody_asked_for_is_not_fetched_and_the_sender_is_told() -> None:
    fleet = Fleet(lenders=2)
    fleet.asks()
    for key, loan in ((fleet.lenders[1], fleet.loan()), (fleet.lenders[0], fleet.loan(number=9))):
        actions = fleet.hear(key, loan)
        assert told(actions, key, LoanOver)[0].reason == "nobody has asked for it"
        assert not [action for action in actions if isinstance(action, Fetch)]
    assert fleet.machine.loans.counts["unasked"] == 2
    stray = fleet.machine.handle(Fetched(key=fleet.lenders[1], message=fleet.loan()), fleet.now)
    assert CancelFetch(key=fleet.lenders[1], message=fleet.loan()) in stray


@pytest.mark.parametrize("change", [{"fragment": 7}, {"stamp": NO_STAMP}])
def test_a_question_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    fleet = Fleet()
    assert told(fleet.asks(**change), fleet.newcomer, LoanOver)[0].number == 0
    assert fleet.machine.loans.carried is None


def test_who_asks_for_ever_is_refused() -> None:
    fleet = Fleet()
    reasons = []
    for turn in range(3 * MOST_ASKED * 2):
        actions = fleet.asks(fragment=turn % 2)
        reasons += [over.reason for over in told(actions, fleet.newcomer, LoanOver)]
    assert set(reasons) == {"it has asked too often"}
    assert fleet.machine.loans.number == MOST_ASKED * 2


def test_the_queue_has_an_end() -> None:
    fleet = Fleet()
    fleet.asks()
    member = fleet.machine.fleet.find(fleet.newcomer)
    for number in range(MOST_WAITING + 1):
        other = replace(member, key=MemberKey(f"m{number}", 1))
        actions = fleet.machine.loans.borrow(other, Borrow(fragment=0, kind=KIND, stamp=fleet.stamp), fleet.now)
    assert len(fleet.machine.loans.waiting) == MOST_WAITING
    assert f"{MOST_WAITING} learners wait" in actions[0].message.reason


def test_without_room_for_loans_there_are_none() -> None:
    fleet = Fleet(loan_bytes=0)
    assert "sync.loan_bytes" in told(fleet.asks(), fleet.newcomer, LoanOver)[0].reason


def test_a_borrower_that_fetches_nothing_holds_the_others_up_for_a_while_only() -> None:
    fleet = Fleet()
    loan = fleet.served()
    assert CancelFetch(key=fleet.lenders[0], message=loan) in fleet.later(CARRY_S)
    assert fleet.machine.loans.carried is None


def test_with_the_borrower_its_loan_goes() -> None:
    fleet = Fleet()
    loan = fleet.served()
    leave = Goodbye(reason="x", trained_tokens=1, left_tokens=0, dropped_tokens=0)
    assert CancelFetch(key=fleet.lenders[0], message=loan) in fleet.hear(fleet.newcomer, leave)


def test_when_the_run_ends_loans_do() -> None:
    fleet = Fleet()
    fleet.served()
    fleet.machine.ending.leave(LeaveRequested(reason="asked"), fleet.now)
    assert told(fleet.asks(fragment=1), fleet.newcomer, LoanOver)[0].reason == "the run is ending"
