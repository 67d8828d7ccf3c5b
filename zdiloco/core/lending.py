"""Lending: a live learner copies its inner state of one fragment for a newcomer that it never meets.

Rule: one loan at a time; one fragment is copied at one boundary, and never before contributions are cut there. What is
not fetched goes with the next loan, or with the epoch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from zdiloco.core.joining import LearnerPhase
from zdiloco.core.machine import (
    SYNCER,
    CopyInner,
    EndLending,
    InnerSeen,
    LearnerAction,
    LendFailed,
    LoanHere,
    LoanLost,
    LoanReady,
    Send,
)
from zdiloco.core.messages import Lend, Loan, LoanOver

if TYPE_CHECKING:
    from zdiloco.core.learner import LearnerMachine


class Lending:
    """The lending side of one learner machine."""

    def __init__(self, machine: "LearnerMachine") -> None:
        self.machine = machine
        self.asked: Lend | None = None
        self.copying = 0
        self.offer: Loan | None = None

    def lend(self, message: Lend) -> list[LearnerAction]:
        """The syncer asks for inner state: at the next boundary; asked again, the offer got lost."""
        offer = self.offer
        if offer is not None and (offer.number, offer.stamp.epoch) == (message.number, self.machine.epoch):
            return [Send(key=SYNCER, message=offer)]
        if self.copying == message.number:
            return []
        actions = self.end()
        self.asked = message
        return actions

    def boundary(self) -> list[LearnerAction]:
        """Copy what is asked for; a fragment that is between two epochs is not lent."""
        machine, lend = self.machine, self.asked
        if self.offer is not None and self.offer.stamp.epoch != machine.epoch:
            return self.end()
        if lend is None:
            return []
        self.asked = None
        duty = machine.duty(lend.fragment)
        sound = duty is not None and duty.progress.seen.version >= 0 and duty.progress.seen.epoch == machine.epoch
        if duty is None or not sound or machine.phase is not LearnerPhase.TRAINING or machine.watching:
            return self._cannot(lend.fragment, lend.number, "it has no inner state of this epoch")
        self.copying = lend.number
        machine.count("lent")
        return [CopyInner(lend=lend, stamp=duty.progress.seen)]

    def ready(self, event: LoanReady) -> list[LearnerAction]:
        """The copy lies encoded: offer it."""
        if event.loan.number != self.copying:
            return []
        self.copying, self.offer = 0, event.loan
        return [Send(key=SYNCER, message=event.loan)]

    def failed(self, event: LendFailed) -> list[LearnerAction]:
        """It cannot be copied."""
        if event.number != self.copying:
            return []
        self.copying = 0
        return self._cannot(0, event.number, event.reason)

    def over(self, message: LoanOver) -> list[LearnerAction]:
        """The syncer wants it no more."""
        mine = {self.copying, self.asked.number if self.asked else 0, self.offer.number if self.offer else 0} - {0}
        return self.end() if message.number in mine else []

    def end(self) -> list[LearnerAction]:
        """Nothing is lent any more."""
        had = self.copying or self.offer is not None
        self.asked, self.copying, self.offer = None, 0, None
        return [EndLending()] if had else []

    def _cannot(self, fragment: int, number: int, reason: str) -> list[LearnerAction]:
        return [Send(key=SYNCER, message=LoanOver(fragment=fragment, number=number, reason=reason))]


MESSAGES: dict[type, Callable[..., list[LearnerAction]]] = {
    Lend: lambda machine, message, now: machine.lending.lend(message),
    Loan: lambda machine, message, now: machine.borrowing.offered(message, now),
    LoanOver: lambda machine, message, now: machine.lending.over(message) or machine.borrowing.over(message, now),
}
"""What the syncer says about loans: to either side."""
EVENTS: dict[type, Callable[..., list[LearnerAction]]] = {
    InnerSeen: lambda machine, event, now: machine.borrowing.seen(event, now),
    LoanReady: lambda machine, event, now: machine.lending.ready(event),
    LendFailed: lambda machine, event, now: machine.lending.failed(event),
    LoanHere: lambda machine, event, now: machine.borrowing.here(event),
    LoanLost: lambda machine, event, now: machine.borrowing.lost(event, now),
}
