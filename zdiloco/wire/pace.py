"""What a link carries and how far it is, measured by what passes: how much may be under way, how large a chunk is.

Rule: only what was asked for tells. A receiver probes with the last chunk of each credit: the bytes owed at that moment
by the seconds until it comes are a rate. A queue of our own makes all of them late, a lost packet only those behind it,
so the best of the last ones counts: the window then follows what comes unhindered, instead of shrinking with every loss
until too little is under way to make up for the next. The way there and back is measured where nothing was owed before,
so that no queue of our own is taken for distance.
"""

from collections import deque

SPANS = 4
"""Probes count for so long: a span is over when as much has come as was owed when it began."""
WAYS = 4
"""So many of the last measurements of the way are looked at."""
GAIN = 2.0
"""Under way is so many times what the link holds: with less, a credit that is late leaves it idle."""
GENTLE_GAIN = 1.5
"""The same for what may come a little later, if words then wait less behind it: updates that are asked for."""
LEAST_WAY_S = 0.05
"""The way there and back is taken for no shorter: on a near link threads that wait for their turn are the delay."""
FIRST_CHUNKS = 2
FIRST_BYTES = 2**18
"""Under way on a link of which nothing is known: so many chunks, or so many bytes if that is more."""
CHUNK_S = 0.02
"""One chunk occupies a link for no longer, if it is not of the least size: control waits behind one at least."""
LEAST_CHUNK = 2**14
FIRST_CHUNK = 2**16
"""Bytes of a chunk on a link of which nothing is known: at 0.1 Mbit/s it takes 5 s."""
CAST_CHUNK = 2**18
"""Most bytes of a chunk of what is broadcast: who asks for it has two under way at least, 84 ms at 50 Mbit/s."""


class Pace:
    """The link from one peer, as the receiving end sees it. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._best: deque[float] = deque(maxlen=SPANS)
        self._span_bytes = 0
        self._ways: deque[float] = deque(maxlen=WAYS)
        self._probes: dict[str, dict[int, tuple[float, int]]] = {}
        self._alone_since: float | None = None

    @property
    def bytes_s(self) -> float:
        """The rate of the link; 0: not known. Where chunks overtake others it may be more than it carries."""
        return max(self._best, default=0.0)

    @property
    def way_s(self) -> float:
        """Seconds there and back, with one chunk; 0: not known."""
        return min(self._ways, default=0.0)

    def granted(self, transfer: str, last: int, owed_bytes: int, before_bytes: int, now: float) -> None:
        """A credit up to that chunk goes out: so much is owed from now on, and so much was before."""
        if not before_bytes:
            self._alone_since = now
        if self._span_bytes <= 0:
            self._span_bytes = owed_bytes
            if not self._best or self._best[-1]:  # a span that was disturbed before a probe came goes on
                self._best.append(0.0)
        self._probes.setdefault(transfer, {})[last] = now, owed_bytes

    def came(self, transfer: str, index: int, size: int, now: float) -> None:
        """A chunk that was owed is here."""
        if self._alone_since is not None:
            self._ways.append(now - self._alone_since)
            self._alone_since = None
        at, owed_bytes = self._probes.get(transfer, {}).pop(index, (now, 0))
        if now > at:
            self._best[-1] = max(self._best[-1], owed_bytes / (now - at))
        self._span_bytes -= size

    def ended(self, transfer: str) -> None:
        """Nothing more of it is owed."""
        self._probes.pop(transfer, None)

    def disturbed(self) -> None:
        """Something was asked for again, or is not wanted any more: what is under way measures nothing."""
        self._alone_since = None
        self._probes.clear()
        self._span_bytes = 0

    def window_bytes(self, chunk_bytes: int, most_bytes: int, gain: float = GAIN) -> int:
        """How much may be under way: `gain` times what the link holds, two chunks at least, `most_bytes` at most."""
        wanted = gain * self.bytes_s * max(self.way_s, LEAST_WAY_S) or FIRST_BYTES
        return min(most_bytes, max(int(wanted), FIRST_CHUNKS * chunk_bytes))


def chunk_for(bytes_s: float, most: int) -> int:
    """Bytes of a chunk for a link of this rate (0: not known), a power of two unless it is `most`."""
    if not bytes_s:
        return min(most, FIRST_CHUNK)
    wanted = max(LEAST_CHUNK, int(bytes_s * CHUNK_S))
    return min(most, 1 << (wanted.bit_length() - 1))
