"""The receiving end of transfers: bodies are announced, granted, assembled, taken and released.

Rule: memory is reserved when a body is let in and counted until it is released, so no peer can make it exceed the
budget. After each call that took `now`, ask `turn` what to send; `deadline` says when to call `turn` at the latest.
Peers are any hashable values; what a peer does wrong ends its own transfer and nothing else.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, auto

from zdiloco.core.messages import Body
from zdiloco.errors import MachineError, MalformedFrame
from zdiloco.wire.assembly import Assembly, Outcome
from zdiloco.wire.flow import InboxParams, Incoming, Stream
from zdiloco.wire.frames import Buffer
from zdiloco.wire.transfer import Chunk, Credit, Gone

MAX_TRANSFERS = 2048
"""Most transfers of one peer at one time: the initial values of every fragment twice."""
IDLE_PEERS = 1024
"""Of so many peers of whom nothing is here, the pace of their links is remembered: incarnations come and go."""

Key = tuple[Hashable, str]


class Expected(Enum):
    """The answer to `expect`."""

    WAITING = auto()
    COMPLETE = auto()
    """All of it is here: it was expected before, or has no bytes. No COMPLETE will come from `on_chunk`."""
    FULL = auto()
    """It does not fit into what is left of the budget; nothing was changed."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A transfer that ended without its body, and why. Its memory is free."""

    peer: Hashable
    transfer: str
    why: str


@dataclass(kw_only=True, slots=True)
class Turn:
    """What to send, in order, and which transfers have just ended in vain."""

    to_send: list[tuple[Hashable, Credit | Gone]] = field(default_factory=list)
    given_up: list[GivenUp] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class InboxCounters:
    """What has come in since the inbox was made: chunks by what became of them, and requests to send again."""

    chunks: Counter[Outcome] = field(default_factory=Counter)
    received_bytes: int = 0
    asked_again: int = 0
    given_up: int = 0


class Inbox:
    """All bodies that this process expects or holds. `counters` may be read at any time.

    `unheard`: broadcasts in a row of which not a single chunk came by broadcast, though all did by credit.
    """

    def __init__(self, params: InboxParams) -> None:
        self.params = params
        self.counters = InboxCounters()
        self._entries: dict[Key, Incoming] = {}
        self._streams: dict[tuple[Hashable, bool], Stream] = {}
        self._reserved_bytes = 0
        self._orders = itertools.count()
        self._held: Counter[Hashable] = Counter()
        self._idle: dict[Hashable, None] = {}
        self._timers: list[tuple[float, int, Key]] = []
        self._ticket = itertools.count()
        self._pending: dict[Key, None] = {}
        self._freed: dict[Hashable, None] = {}
        self._now = 0.0
        self._gone: list[tuple[Hashable, Gone]] = []
        self.unheard = 0
        self._given_up: list[GivenUp] = []

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all bodies let in and not yet released; never more than the budget."""
        return self._reserved_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that the budget still has for new bodies."""
        return self.params.budget_bytes - self._reserved_bytes

    @property
    def owed_bytes(self) -> int:
        """Bytes granted to peers and not yet arrived."""
        return sum(stream.owed_bytes for stream in self._streams.values())

    def expect(
        self, peer: Hashable, body: Body, now: float, *, passive: bool = False, last: bool = False, gentle: bool = False
    ) -> Expected:
        """Let a body in: reserve its memory, and grant credit as the peer's window allows.

        `passive`: its chunks are broadcast, so nothing is granted; only what was lost will be asked for. `last`: it is
        granted what others of this peer leave. `gentle`: less is under way. Expecting the same body again is harmless.
        Raises: MalformedFrame where the peer announces another body under a name in use, chunk sizes that are not
        allowed, more than MAX_TRANSFERS transfers, or an empty body with a wrong digest.
        """
        self._now = max(self._now, now)
        known = self._entries.get((peer, body.transfer))
        if known is not None:
            return self._expect_again(known, body)
        if body.nbytes > self.room_bytes:
            return Expected.FULL
        if self._held[peer] >= MAX_TRANSFERS:
            raise MalformedFrame(f"a peer has {MAX_TRANSFERS} transfers under way; more are not let in")
        entry = Incoming(
            peer=peer, assembly=Assembly(body), order=next(self._orders), broadcast=passive, last=last, gentle=gentle
        )
        if entry.assembly.complete and not entry.assembly.digest_is_right:
            raise MalformedFrame(f"the empty transfer {body.transfer!r} has a wrong digest")
        self._entries[(peer, body.transfer)] = entry
        self._reserved_bytes += body.nbytes
        self._held[peer] += 1
        self._idle.pop(peer, None)
        if entry.assembly.complete:
            entry.done = True
            self._acknowledge(entry)
            return Expected.COMPLETE
        self._stream(entry).add(entry, now)
        self._arm(entry)
        self._grant(peer, now)
        return Expected.WAITING

    def knows(self, peer: Hashable, transfer: str) -> bool:
        """Whether a transfer of that name is let in: under way, or complete and not released."""
        return (peer, transfer) in self._entries

    def assembly(self, peer: Hashable, transfer: str) -> Assembly | None:
        """What is in of a body that was let in, whole or not; None where it is not known (any more)."""
        entry = self._entries.get((peer, transfer))
        return entry.assembly if entry else None

    def on_chunk(self, peer: Hashable, chunk: Chunk, payload: Buffer, now: float) -> Outcome:
        """Take a chunk in; the payload may be reused afterwards. COMPLETE: call `take`."""
        self._now = max(self._now, now)
        outcome = self._take_in(peer, chunk, payload, now)
        self.counters.chunks[outcome] += 1
        return outcome

    def on_gone(self, peer: Hashable, gone: Gone) -> bool:
        """The sender no longer has a transfer. Returns whether it was under way here: then its memory is free again.

        A body that is already complete is kept.
        """
        return self.cancel(peer, gone.transfer)

    def take(self, peer: Hashable, transfer: str) -> memoryview:
        """Return the bytes of a complete body, without copying; the budget counts them until `release`.

        Raises: MachineError where it is not complete.
        """
        entry = self._entries.get((peer, transfer))
        if entry is None or not entry.done:
            raise MachineError(f"the transfer {transfer!r} of {peer!r} was taken before it was complete")
        return entry.assembly.data

    def release(self, peer: Hashable, transfer: str) -> bool:
        """Give the memory of a complete body back to the budget. Returns whether there was one."""
        entry = self._entries.get((peer, transfer))
        if entry is None or not entry.done:
            return False
        self._forget(entry)
        return True

    def cancel(self, peer: Hashable, transfer: str) -> bool:
        """Drop a transfer that is under way; complete ones stay until `release`. Returns whether there was one.

        The sender gets no more credit, and is told nothing else: why, is for a message to say.
        """
        entry = self._entries.get((peer, transfer))
        if entry is None or entry.done:
            return False
        self._stream(entry).remove(entry)
        self._forget(entry)
        self._freed[peer] = None
        return True

    def cancel_peer(self, peer: Hashable) -> list[str]:
        """Drop all that is under way from a peer that is gone for good; return the names. Complete bodies stay."""
        names = []
        for passive in (False, True):
            stream = self._streams.pop((peer, passive), None)
            for entry in stream.entries.values() if stream else ():
                self._forget(entry)
                names.append(entry.transfer)
        self._idle.pop(peer, None)
        return names

    def asked_in_vain(self, peer: Hashable) -> int:
        """How often a peer was asked for the same while nothing at all came on request."""
        stream = self._streams.get((peer, False))
        return max(stream.vain.values(), default=0) if stream else 0

    def forgive(self, peer: Hashable) -> None:
        """Count from here on what is asked for in vain."""
        self.unheard = 0
        stream = self._streams.get((peer, False))
        if stream:
            stream.vain.clear()

    def resume(self, peer: Hashable, now: float) -> None:
        """The connection to a peer is new: what was on its way is lost, so ask for it without waiting for a stall."""
        self._now = max(self._now, now)
        stream = self._streams.get((peer, False))
        for entry in list(stream.entries.values()) if stream else ():
            if entry.watched:
                entry.repeats = 0  # what was in vain before says nothing of this connection
                self._ask(entry, now)

    def turn(self, now: float, judge: bool = True) -> Turn:
        """Judge what is due, and return what to send and what has ended in vain since the last turn.

        Without `judge` nobody's silence is judged: for moments at which what was said may not have been heard yet.
        """
        self._now = max(self._now, now)
        for peer in self._freed:
            self._grant(peer, now)
        self._freed.clear()
        while judge and self._timers and self._timers[0][0] <= now:
            at, _, key = heapq.heappop(self._timers)
            entry = self._entries.get(key)
            if entry is not None and entry.timer_at == at:
                entry.timer_at = math.inf
                self._judge(entry, now)
        turn = Turn(to_send=list(self._gone), given_up=self._given_up)
        for key in self._pending:
            if key in self._entries:
                turn.to_send.append((key[0], self._entries[key].credit()))
        self._pending.clear()
        self._gone.clear()
        self._given_up = []
        return turn

    def deadline(self) -> float | None:
        """Return when `turn` is to be called at the latest; None: not before the next event. Early calls do no harm."""
        if self._pending or self._freed or self._gone or self._given_up:
            return self._now
        return self._timers[0][0] if self._timers else None

    # ---- inside

    def _stream(self, entry: Incoming) -> Stream:
        key = (entry.peer, entry.broadcast and not entry.repairing)
        if key not in self._streams:
            self._streams[key] = Stream(self.params)
        return self._streams[key]

    def _expect_again(self, entry: Incoming, body: Body) -> Expected:
        if entry.assembly.body != body:
            raise MalformedFrame(f"the transfer {body.transfer!r} was announced twice, with different bodies")
        if not entry.done:
            return Expected.WAITING
        self._acknowledge(entry)
        return Expected.COMPLETE

    def _take_in(self, peer: Hashable, chunk: Chunk, payload: Buffer, now: float) -> Outcome:
        entry = self._entries.get((peer, chunk.transfer))
        if entry is None:
            return Outcome.UNKNOWN
        if entry.done:
            return Outcome.DUPLICATE
        outcome = entry.assembly.put(chunk, payload)
        if outcome is Outcome.CORRUPT:
            self._on_corrupt(entry, chunk.index)
            return outcome
        stream = self._stream(entry)
        if entry.broadcast and not entry.repairing:
            self.unheard = 0
        if outcome is Outcome.DUPLICATE:
            # The link lives, so do not ask again yet; but this is no progress, so giving up is not put off.
            stream.heard_at = now
            stream.vain.clear()
            stream.starves(entry, now)
            return outcome
        self.counters.received_bytes += entry.assembly.size_of(chunk.index)
        for overtaken in stream.arrived(entry, chunk.index, now):
            self._arm(overtaken)
        if outcome is Outcome.COMPLETE:
            outcome = self._finish(entry)
        elif entry.broadcast and not entry.repairing and chunk.index == entry.assembly.count - 1:
            self._ask(entry, now)  # broadcasts come in order: what is not here now will not come
        self._grant(peer, now)
        return outcome

    def _on_corrupt(self, entry: Incoming, index: int) -> None:
        if index < entry.told or (entry.broadcast and index < entry.assembly.count):
            entry.corrupt.add(index)
            self._pending[(entry.peer, entry.transfer)] = None

    def _finish(self, entry: Incoming) -> Outcome:
        if not entry.assembly.digest_is_right:
            self._fail(entry, "all chunks are here, but together they do not have the announced digest")
            return Outcome.CORRUPT
        self._stream(entry).remove(entry)
        self.unheard += entry.unheard
        entry.done = True
        self._acknowledge(entry)
        return Outcome.COMPLETE

    def _acknowledge(self, entry: Incoming) -> None:
        if not entry.broadcast or entry.repairing:
            self._pending[(entry.peer, entry.transfer)] = None

    def _grant(self, peer: Hashable, now: float) -> None:
        stream = self._streams.get((peer, False))
        for entry in stream.grant(now) if stream else ():
            self._pending[(peer, entry.transfer)] = None
            self._arm(entry)

    def _ask(self, entry: Incoming, now: float) -> None:
        """Ask again for what is missing; of a broadcast, ask for the first time: from now on it goes by credit."""
        self.counters.asked_again += 1
        stream = self._stream(entry)
        stream.asked(entry, now)
        if entry.broadcast and not entry.repairing:
            entry.unheard = not entry.assembly.received_bytes
            stream.remove(entry)
            entry.repairing, entry.repeats = True, 0
            self._stream(entry).add(entry, now)
            self._grant(entry.peer, now)
            return
        entry.resend = True
        self._pending[(entry.peer, entry.transfer)] = None
        self._arm(entry)

    def _judge(self, entry: Incoming, now: float) -> None:
        stream = self._stream(entry)
        if now < stream.due_at(entry):
            self._arm(entry)
        elif now >= stream.give_up_at(entry):
            self._fail(entry, f"no progress for {self.params.give_up_s:g} s")
            self._grant(entry.peer, now)
        else:
            self._ask(entry, now)

    def _arm(self, entry: Incoming) -> None:
        """Set the entry's timer, unless an earlier one is set: that one will look again."""
        due_at = self._stream(entry).due_at(entry)
        if due_at < entry.timer_at:
            entry.timer_at = due_at
            heapq.heappush(self._timers, (due_at, next(self._ticket), (entry.peer, entry.transfer)))

    def _fail(self, entry: Incoming, why: str) -> None:
        self._stream(entry).remove(entry)
        self._forget(entry)
        self.counters.given_up += 1
        self._given_up.append(GivenUp(entry.peer, entry.transfer, why))
        self._gone.append((entry.peer, Gone(transfer=entry.transfer, by_sender=False, reason=why)))

    def _forget(self, entry: Incoming) -> None:
        del self._entries[(entry.peer, entry.transfer)]
        self._reserved_bytes -= entry.assembly.body.nbytes
        self._held[entry.peer] -= 1
        if not self._held[entry.peer]:
            del self._held[entry.peer]
            self._idle[entry.peer] = None
            if len(self._idle) > IDLE_PEERS:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                for passive in (False, True):
                    self._streams.pop((oldest, passive), None)
