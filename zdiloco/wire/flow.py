"""The flow of chunks from one peer: who may send how much, and when silence means loss.

Rule: the transfers of one peer share one window, oldest first (those that may wait, last of all), so that what is under
way is bounded however many there are; how much that is follows the link (`pace.py`). Silence is judged by the stream,
not by the transfer: one that waits behind others of the same peer is not lost until more than a window has passed it
by. Broadcast chunks come unasked and in order, so there a later transfer tells.
"""

import math
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from zdiloco.errors import ConfigError
from zdiloco.knobs import check_knobs, knob
from zdiloco.wire.assembly import Assembly
from zdiloco.wire.frames import CHUNK_BYTES
from zdiloco.wire.pace import GAIN, GENTLE_GAIN, Pace
from zdiloco.wire.transfer import MAX_RANGES, Credit

MAX_WINDOW_BYTES = 2**28
FORGET = 0.9
"""What is left of the memory of a gap after each chunk."""
FORGET_DOUBTFUL = 0.5
"""The same for a gap in which chunks were asked for again: it may be the link's pace, or the loss of these chunks."""


def check_flow(window_bytes: int, stall_s: float, give_up_s: float) -> None:
    """Raise ConfigError, naming the key in section net, unless an inbox can work with these."""
    if not 2**10 <= window_bytes <= MAX_WINDOW_BYTES:
        raise ConfigError(f"net.window_bytes is {window_bytes}; allowed is {2**10} to {MAX_WINDOW_BYTES}")
    if not 0.001 <= stall_s <= 1e6:
        raise ConfigError(f"net.stall_s is {stall_s}; allowed is 0.001 to 1e+06")
    if not 3 * stall_s <= give_up_s <= 1e7:
        raise ConfigError(
            f"net.give_up_s is {give_up_s}; it must be three times net.stall_s ({stall_s}) or more, and at most 1e+07"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxParams:
    """How much may be under way, and how long to wait for it."""

    budget_bytes: int = knob(2**30, "memory for bodies under way or held; more is not let in", "bytes")
    window_bytes: int = knob(8 * CHUNK_BYTES, "most bytes under way from one peer; a slower link gets less", "bytes")
    stall_s: float = knob(2.0, "a peer silent for so long is asked again, for exactly what is missing", "s")
    give_up_s: float = knob(30.0, "a transfer without any progress for so long is given up", "s")

    def __post_init__(self) -> None:
        check_knobs(self, "inbox", budget_bytes=(2**10, 2**50))  # whose memory it is, the owner knows
        check_flow(self.window_bytes, self.stall_s, self.give_up_s)


@dataclass(kw_only=True, slots=True, eq=False)
class Incoming:
    """One transfer under way. `told`: chunks granted so far; `owed_bytes`: granted and not in yet; `last`: whatever
    else comes from its peer goes before it; `gentle`: less of it is under way; `unheard`: nothing of it came by
    broadcast."""

    peer: Hashable
    assembly: Assembly
    order: int
    broadcast: bool
    last: bool = False
    gentle: bool = False
    repairing: bool = False
    unheard: bool = False
    done: bool = False
    told: int = 0
    named_to: int = 0
    owed_bytes: int = 0
    resend: bool = False
    corrupt: set[int] = field(default_factory=set)
    quiet_since: float = 0.0
    asked_at: float = -math.inf
    starved_from: float | None = None
    repeats: int = 0
    mark: int = 0
    timer_at: float = math.inf

    @property
    def transfer(self) -> str:
        """The name of the transfer."""
        return self.assembly.body.transfer

    @property
    def watched(self) -> bool:
        """Whether chunks should be coming: credit is open, or they are broadcast."""
        return not self.done and (self.owed_bytes > 0 or (self.broadcast and not self.repairing))

    def credit(self) -> Credit:
        """Return what to tell the sender now; what this credit names is not named again until it is missed again.

        A broadcast body has no order of sending for this peer, so there all that is granted is named.
        """
        assembly = self.assembly
        if self.resend:
            missing = assembly.missing(0, self.told)
            if self.repeats == 1 and not assembly.received_bytes:
                # Perhaps the first chunk needs longer than our patience: a second window behind it would be in its way.
                missing = [(first, 1) for first, _ in missing[:1]]
        else:
            named = {index for index in self.corrupt if not assembly.has(index)}
            if self.repairing:
                for first, count in assembly.missing(self.named_to, self.told):
                    named.update(range(first, first + count))
            missing = _ranges(named)
        self.resend, self.named_to = False, self.told
        self.corrupt.clear()
        upto = 0 if self.broadcast else min(self.told * assembly.body.chunk_bytes, assembly.body.nbytes)
        return Credit(
            transfer=self.transfer, upto=upto, received=assembly.received_bytes, missing=tuple(missing[:MAX_RANGES])
        )


class Stream:
    """What comes from one peer, on request or by broadcast: its unfinished transfers, oldest first."""

    def __init__(self, params: InboxParams) -> None:
        self.entries: dict[str, Incoming] = {}
        self.owed_bytes = 0
        self.heard_at = -math.inf
        self.pace = Pace()
        self.vain: Counter[str] = Counter()
        """Requests for what is missing of each transfer since anything has come from the peer."""
        self._starved: dict[str, Incoming] = {}
        self._params = params
        self._waiting: deque[Incoming] = deque()
        self._arrived_bytes = 0
        self._newest_order = -1
        self._gap_s = 0.0
        self._doubtful_gap_s = 0.0
        self._asked_at = -math.inf

    def add(self, entry: Incoming, now: float) -> None:
        """Take a transfer in; unless it is broadcast it waits for `grant`."""
        if not self.entries:
            self.heard_at = max(self.heard_at, now)
        self.entries[entry.transfer] = entry
        entry.quiet_since = now
        if not entry.broadcast or entry.repairing:
            before = sum(other.last for other in self._waiting) if not entry.last else 0
            self._waiting.insert(len(self._waiting) - before, entry)

    def remove(self, entry: Incoming) -> None:
        """Forget a transfer; what it was owed is free for others at the next `grant`."""
        del self.entries[entry.transfer]
        self.vain.pop(entry.transfer, None)
        self._fed(entry)
        self.pace.ended(entry.transfer)
        if entry.owed_bytes:
            self.pace.disturbed()
        self.owed_bytes -= entry.owed_bytes
        entry.owed_bytes = 0
        if entry in self._waiting:
            self._waiting.remove(entry)

    def arrived(self, entry: Incoming, index: int, now: float) -> list[Incoming]:
        """Count a new chunk; return the transfers that it shows to be overtaken, whose time may have come."""
        size = entry.assembly.size_of(index)
        gap_s = now - self.heard_at
        self._gap_s *= FORGET
        self._doubtful_gap_s *= FORGET_DOUBTFUL
        if self._asked_at > self.heard_at:
            self._doubtful_gap_s = max(gap_s, self._doubtful_gap_s)
        else:
            self._gap_s = max(gap_s, self._gap_s)
        self.heard_at = entry.quiet_since = now
        self.vain.clear()
        overtaken = []
        if entry.order > self._newest_order and entry.broadcast:
            overtaken = [older for older in self.entries.values() if older.order < entry.order]
        self._newest_order = max(self._newest_order, entry.order)
        self._arrived_bytes += size
        if index < entry.told:
            entry.owed_bytes -= size
            self.owed_bytes -= size
            self.pace.came(entry.transfer, index, size, now)
        entry.mark, entry.repeats = self._arrived_bytes, 0
        self._fed(entry)
        for later in self._starved.values():
            if later.order > entry.order:  # it waits behind this one, which moves
                later.starved_from = now
        return overtaken

    def grant(self, now: float) -> list[Incoming]:
        """Deal out what is free of the window, oldest first; return the transfers whose credit has grown.

        A credit grows by a quarter of the window at least, unless it reaches the end or nothing else is under way.
        """
        grown, before_bytes = [], self.owed_bytes
        while self._waiting:
            entry = self._waiting[0]
            gain = GENTLE_GAIN if entry.gentle else GAIN
            window_bytes = self.pace.window_bytes(entry.assembly.body.chunk_bytes, self._params.window_bytes, gain)
            end, size = self._next_grant(entry, window_bytes - self.owed_bytes)
            final = end == entry.assembly.count
            if end == entry.told or not (final or not entry.owed_bytes or size >= window_bytes // 4):
                break
            if not entry.owed_bytes:
                entry.quiet_since, entry.mark = now, self._arrived_bytes
                self._fed(entry)
            entry.told = end
            entry.owed_bytes += size
            self.owed_bytes += size
            grown.append(entry)
            self.pace.granted(entry.transfer, end - 1, self.owed_bytes, before_bytes, now)
            if not final:
                break
            self._waiting.popleft()
        return grown

    def asked(self, entry: Incoming, now: float) -> None:
        """Note that all that is missing of a transfer is asked for again."""
        self.starves(entry, max(self._base_at(entry), now - self._wait_s(entry)))
        entry.asked_at = self._asked_at = now
        self.pace.disturbed()
        entry.mark = self._arrived_bytes
        entry.repeats += 1
        self.vain[entry.transfer] += 1

    def starves(self, entry: Incoming, since: float) -> None:
        """A transfer gets nothing new, from that moment on unless an earlier one is known."""
        if entry.starved_from is None:
            entry.starved_from = since
            self._starved[entry.transfer] = entry

    def _fed(self, entry: Incoming) -> None:
        entry.starved_from = None
        self._starved.pop(entry.transfer, None)

    def due_at(self, entry: Incoming) -> float:
        """Return when to look at a transfer next, if nothing comes: to ask again, or to give up."""
        if not entry.watched:
            return math.inf
        again_at = max(self._base_at(entry), entry.asked_at) + self._wait_s(entry)
        return min(again_at, self.give_up_at(entry))

    def give_up_at(self, entry: Incoming) -> float:
        """Return when a transfer is given up, if nothing comes."""
        return math.inf if entry.starved_from is None else entry.starved_from + self._params.give_up_s

    def _base_at(self, entry: Incoming) -> float:
        if entry.broadcast and not entry.repairing:
            overtaken = self._newest_order > entry.order
        else:
            overtaken = self._arrived_bytes - entry.mark > self._params.window_bytes
        return entry.quiet_since if overtaken else max(entry.quiet_since, self.heard_at)

    def _wait_s(self, entry: Incoming) -> float:
        """Patience: never less than twice the longest gap seen lately, so that a slow link is not taken for a dead
        one and flooded; and twice as long after each vain request."""
        patience = max(self._params.stall_s, 2 * self._gap_s, 2 * self._doubtful_gap_s)
        return float(min(patience * 2 ** min(entry.repeats, 10), self._params.give_up_s / 3))

    def _next_grant(self, entry: Incoming, free: int) -> tuple[int, int]:
        """Return up to which chunk so many free bytes reach, and how many bytes of these are not in yet."""
        assembly, end, size = entry.assembly, entry.told, 0
        while end < assembly.count:
            more = 0 if assembly.has(end) else assembly.size_of(end)
            # A chunk larger than the window goes alone, else nothing would ever move.
            if size + more > free and self.owed_bytes + size > 0:
                break
            end += 1
            size += more
        return end, size


def _ranges(indices: set[int]) -> list[tuple[int, int]]:
    """Return ascending disjoint ranges (first, count) that cover exactly the given indices."""
    ranges: list[tuple[int, int]] = []
    for index in sorted(indices):
        if ranges and sum(ranges[-1]) == index:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((index, 1))
    return ranges
