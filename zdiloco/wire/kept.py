"""Bodies of contributions that a relay keeps until the syncer has said what became of them.

Rule: a body is found by its place and by its transfer name, and both go together. Its memory is counted by the inbox
from when it is let in until it is dropped.
"""

from dataclasses import dataclass, field

from zdiloco.core.bundling import Place
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Contribution
from zdiloco.errors import PeerError
from zdiloco.units import MemberKey
from zdiloco.wire.inbox import Expected, Inbox
from zdiloco.wire.outbox import ChunkOut, Outbox
from zdiloco.wire.transfer import Credit


@dataclass(slots=True)
class Kept:
    """One contribution and its bytes: `data` and `box` have them when all are here.

    `credit`: what the syncer said last, unanswered; `squares` and `norm`: what was found in them.
    """

    message: Contribution
    box: Outbox = field(default_factory=Outbox)
    data: memoryview | None = None
    credit: Credit | None = None
    squares: tuple[float, ...] | None = None
    norm: float = 0.0


class KeptBodies:
    """All bodies that one relay keeps; `inbox` fetches them."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._bodies: dict[Place, Kept] = {}
        self._places: dict[tuple[MemberKey, str], Place] = {}

    def __getitem__(self, place: Place) -> Kept:
        return self._bodies[place]

    def get(self, place: Place) -> Kept | None:
        """The body at a place; None: none is kept there."""
        return self._bodies.get(place)

    def place(self, key: MemberKey, transfer: str) -> Place | None:
        """Where a transfer of a learner belongs; None: it is not kept here."""
        return self._places.get((key, transfer))

    def let_in(self, key: MemberKey, message: Contribution, now: float) -> Expected | None:
        """Fetch the body of a contribution whose place is free. None: it has no room, or the name of another one, or
        cannot be fetched; nothing is kept of it."""
        place, transfer = (key, message.fragment), message.body.transfer
        if (key, transfer) in self._places:  # its bytes are another one's: for the syncer to judge
            return None
        try:
            found = self.inbox.expect(key, message.body, now)
        except PeerError:
            return None
        if found is Expected.FULL:
            return None
        self._bodies[place] = Kept(message)
        self._places[key, transfer] = place
        return found

    def arrived(self, place: Place) -> tuple[Kept, memoryview]:
        """The body at this place is complete: from here on it is answered from. Returns it with its bytes."""
        body, key = self._bodies[place], place[0]
        assembly = self.inbox.assembly(key, body.message.body.transfer)
        assert assembly is not None
        body.data = self.inbox.take(key, body.message.body.transfer)
        body.box.hold(body.message.body, assembly.data, assembly.checksums)
        return body, body.data

    def answer(self, place: Place) -> list[ChunkOut]:
        """The chunks that answer the syncer's last credit; none where they were sent, or its bytes are not here."""
        body = self._bodies[place]
        if body.credit is None or body.data is None:
            return []
        chunks = body.box.on_credit(SYNCER, body.credit)
        assert isinstance(chunks, list), "what is kept is on offer"
        body.credit = None
        return chunks

    def drop(self, place: Place) -> None:
        """Let a body go, wherever it is; nothing happens where none is kept."""
        body = self._bodies.pop(place, None)
        if body is None:
            return
        key, transfer = place[0], body.message.body.transfer
        del self._places[key, transfer]
        if not self.inbox.release(key, transfer):
            self.inbox.cancel(key, transfer)
