"""Both ends of the chunked transfers of one process, joined to its roads.

Rule: credits and good-byes of transfers travel on the control road, chunks on the bulk road. A body that does not fit
the byte budget now waits its turn, in order. Chunks of a broadcast that overtake their announcement wait in a small
bounded place (the oldest goes first), so that a race between two connections does not cost a repair.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from zdiloco.core.messages import Body
from zdiloco.errors import PeerError
from zdiloco.node.roads import Roads
from zdiloco.units import MemberKey
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.early import Early
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Expected, Inbox
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Chunk, Credit, Gone

Arrived = Callable[[MemberKey, str, float], None]
Lost = Callable[[MemberKey, str, str, float], None]
MOST_WAITING = 4096
"""Bodies that may wait for room: the machines ask for far fewer, whatever their peers offer."""


class _Waiting(NamedTuple):
    key: MemberKey
    body: Body
    passive: bool
    last: bool
    gentle: bool


class Transfers:
    """Inbox and outbox of a process. `arrived` and `lost` are called with the peer, the transfer's name and now.

    `keeps_early`: hold chunks that come before they are expected (a subscriber). `on_credit` and `on_refused` may be
    replaced to see what peers say of our own payloads.
    """

    def __init__(self, roads: Roads, params: InboxParams, arrived: Arrived, lost: Lost, *, keeps_early: bool) -> None:
        self.roads = roads
        self.inbox = Inbox(params)
        self.outbox = Outbox()
        self._arrived = arrived
        self._lost = lost
        self._waiting: deque[_Waiting] = deque()
        self._keeps_early = keeps_early
        self._early = Early()
        self.on_credit: Callable[[MemberKey, Credit, float], None] = lambda key, credit, now: None
        self.on_refused: Callable[[MemberKey, Gone, float], None] = lambda key, gone, now: None

    # ---- bodies that come in

    def expect(
        self, key: MemberKey, body: Body, now: float, *, passive: bool = False, last: bool = False, gentle: bool = False
    ) -> None:
        """Assemble this body, as soon as memory allows; ends in `arrived` or `lost`, perhaps at once. `last`: behind
        whatever else comes from this peer; `gentle`: with less under way."""
        waiting = _Waiting(key, body, passive, last, gentle)
        if body.nbytes > self.inbox.params.budget_bytes:
            self._lost(key, body.transfer, f"{body.nbytes} bytes are more than the whole byte budget", now)
        elif self.inbox.knows(key, body.transfer):  # a name in use needs no room: it is the same body, or refused
            self._let_in(waiting, now)
        elif self._waiting or not self._let_in(waiting, now):
            self._wait(waiting, now)

    def _wait(self, waiting: _Waiting, now: float) -> None:
        """Have a body wait for room, once; a crowd that waits already is no honest one."""
        if waiting in self._waiting:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._lost(waiting.key, waiting.body.transfer, f"{MOST_WAITING} bodies wait for room already", now)
        else:
            self._waiting.append(waiting)

    def _let_in(self, waiting: _Waiting, now: float) -> bool:
        """Reserve memory for a body; False: there is no room."""
        key, body, passive, last, gentle = waiting
        try:
            answer = self.inbox.expect(key, body, now, passive=passive, last=last, gentle=gentle)
        except PeerError as error:
            self.roads.offends(key, "body")
            self._lost(key, body.transfer, str(error), now)
            return True
        if answer is Expected.FULL:
            return False
        if answer is Expected.COMPLETE:
            self._arrived(key, body.transfer, now)
        for chunk, payload in self._early.take((key, body.transfer)):
            self.on_chunk(key, chunk, payload, now)
        return True

    def _admit(self, now: float) -> None:
        while self._waiting and self._let_in(self._waiting[0], now):
            self._waiting.popleft()

    def release(self, key: MemberKey, transfer: str, now: float) -> None:
        """Give the memory of a body back, complete or not; whoever waits for room may come in."""
        if not self.inbox.release(key, transfer):
            self.inbox.cancel(key, transfer)
            self._waiting = deque(w for w in self._waiting if (w.key, w.body.transfer) != (key, transfer))
        self._admit(now)

    def on_chunk(self, key: MemberKey, chunk: Chunk, payload: memoryview, now: float) -> bool:
        """Take one chunk; calls `arrived` with the last one. Returns whether it brings bytes that were not here."""
        outcome = self.inbox.on_chunk(key, chunk, payload, now)
        if outcome is Outcome.COMPLETE:
            self._arrived(key, chunk.transfer, now)
        elif outcome is Outcome.CORRUPT:
            self.roads.offends(key, "chunk")
        elif outcome is Outcome.UNKNOWN and self._keeps_early:
            self._early.keep((key, chunk.transfer), chunk, payload)
        return outcome.brings

    def forget_early(self) -> None:
        """Drop the chunks that have come before their announcements: these broadcasts are not listened to any more."""
        self._early = Early()

    # ---- messages and time

    def on_message(self, key: MemberKey, message: Any, now: float) -> bool:
        """Take a message of a transfer; False: it is none."""
        if isinstance(message, Credit):
            if self.roads.is_crowded(key):  # an honest receiver asks again
                self.roads.of(key).dropped += 1
                return True
            answer = self.outbox.on_credit(key, message)
            if isinstance(answer, Gone):
                self.roads.send(key, answer)
            else:
                if self.outbox.is_through(message):
                    self.roads.stripes_of(key).arrived(message.transfer)
                self.roads.send_chunks(key, answer)
                self.on_credit(key, message, now)
            return True
        if not isinstance(message, Gone):
            return False
        if message.by_sender:
            if self.inbox.on_gone(key, message):
                self._lost(key, message.transfer, message.reason, now)
                self._admit(now)
        else:
            self.outbox.on_gone(key, message)
            self.roads.drop_transfer(key, message.transfer)
            self.on_refused(key, message, now)
        return True

    def turn(self, now: float, judge: bool = True) -> None:
        """Send the credits that are due, and tell of transfers that ended in vain; `judge`: also of those now due."""
        turn = self.inbox.turn(now, judge)
        for key, message in turn.to_send:
            self.roads.send(_member(key), message)
        for given_up in turn.given_up:
            self._lost(_member(given_up.peer), given_up.transfer, given_up.why, now)
        if turn.given_up:
            self._admit(now)

    def deadline(self) -> float | None:
        """When `turn` is due next."""
        return self.inbox.deadline()


def _member(peer: Any) -> MemberKey:
    assert isinstance(peer, MemberKey)
    return peer
