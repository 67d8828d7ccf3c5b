"""The bytes of a loan at the syncer: what a lender has sent is offered to the borrower as it is, and not looked at.

Rule: nothing is copied, and the machine has one loan under way at most; it goes with the lender's body.
"""

import dataclasses
from typing import TYPE_CHECKING

from zdiloco.core import machine as m
from zdiloco.core.messages import Body, Loan
from zdiloco.units import MemberKey
from zdiloco.wire.pace import FIRST_CHUNK

if TYPE_CHECKING:
    from zdiloco.node.syncer_acts import SyncerParts


class SyncerLoans:
    """Offers fetched loans; `fetched` holds the bodies that are here, by lender and transfer."""

    def __init__(self, parts: "SyncerParts", fetched: dict[tuple[MemberKey, str], memoryview]) -> None:
        self._parts, self._fetched = parts, fetched
        self._offered: dict[int, Body] = {}

    def offer(self, action: m.OfferLoan) -> None:
        """Put the bytes on offer, unless they are, and tell the borrower."""
        loan, parts = action.loan, self._parts
        body = self._offered.get(loan.number)
        if body is None:
            data = self._fetched[action.lender, loan.body.transfer]
            body = parts.transfers.outbox.add(_name(loan), data, min(parts.settings.net.chunk_bytes, FIRST_CHUNK))
            self._offered[loan.number] = body
        parts.roads.send(action.key, dataclasses.replace(loan, body=body))

    def end(self, loan: Loan) -> None:
        """Nobody needs them any more, whoever was fetching them."""
        if self._offered.pop(loan.number, None) is not None:
            self._parts.transfers.outbox.drop(_name(loan))
            self._parts.roads.drop_everywhere(_name(loan))


def _name(loan: Loan) -> str:
    return f"l/{loan.number}"
