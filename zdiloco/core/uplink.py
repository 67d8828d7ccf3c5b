"""How many contributions a learner may have under way: enough to fill its link, too few to queue on it.

Rule: one number, the window. Answer times near the shortest one seen mean that the link has room, so a full window
grows by one; answers that take much longer mean a queue, so it shrinks by one, and is each time slower to try that size
again. A link that takes 4 s for a fragment ends at one, a link of 200 ms round trip at as many as the period needs.
"""

from collections import deque

from zdiloco.units import FragmentId

ROOM = 1.3
"""An answer within so many times the shortest one means room."""
QUEUE = 1.8
"""An answer beyond so many times the shortest one means a queue."""
PATIENCE = 64
"""Good answers in a row before a size that once queued is tried again; doubles with each failure."""
NEARLY = 0.9
"""Share of the shortest answer time after which the oldest contribution is as good as through: the next may follow."""


class Uplink:
    """The window of one learner's uplink; times in monotonic seconds."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.window = 1
        self.queued_at = most + 1
        self.good, self.patience = 0, PATIENCE
        self.overlap = True
        self.under_way: dict[tuple[FragmentId, int], tuple[float, int]] = {}
        self.alone: deque[float] = deque(maxlen=8)

    @property
    def shortest_s(self) -> float:
        """The shortest recent answer time of a contribution that had the link for itself; 0 before the first.

        Others would hide a queue: once all of them wait, their shortest wait looks like the link's own time.
        """
        return min(self.alone, default=0.0)

    def free(self, now: float) -> bool:
        """Whether one more contribution may be cut. The link must not run empty between two."""
        if len(self.under_way) != self.window:
            return len(self.under_way) < self.window
        oldest = min(at for at, _ in self.under_way.values())
        return self.overlap and bool(self.alone) and now - oldest >= NEARLY * self.shortest_s

    def eta_s(self, now: float) -> float:
        """In how many seconds the oldest contribution under way is usually answered."""
        oldest = min((at for at, _ in self.under_way.values()), default=now)
        return max(0.0, oldest + self.shortest_s * len(self.under_way) - now)

    def start(self, fragment: FragmentId, seq: int, now: float) -> None:
        """A contribution was cut."""
        self.under_way[fragment, seq] = (now, len(self.under_way) + 1)

    def end(self, fragment: FragmentId, seq: int) -> None:
        """It is under way no more, for whatever reason; its time says nothing."""
        self.under_way.pop((fragment, seq), None)

    def answered(self, fragment: FragmentId, seq: int, now: float) -> None:
        """It has arrived: its answer time moves the window."""
        started = self.under_way.pop((fragment, seq), None)
        if started is None:
            return
        took, beside = now - started[0], started[1]
        if beside == 1 or took < self.shortest_s:
            self.alone.append(took)
            self.overlap = True
        if took > QUEUE * self.shortest_s:
            self._shrink()
        elif took <= ROOM * self.shortest_s:
            self.good += 1
            if beside >= self.window:
                self._grow()

    def _shrink(self) -> None:
        if self.window >= self.queued_at:
            self.patience *= 2
        if self.window == 1:
            self.overlap = False  # even so there is a queue: measure the link alone again
        self.queued_at, self.good = self.window, 0
        self.window = max(1, self.window - 1)

    def _grow(self) -> None:
        if self.window >= self.queued_at > 1:
            self.queued_at, self.patience = self.most + 1, PATIENCE  # the link has become faster
        if self.window < self.most and (self.window + 1 < self.queued_at or self.good >= self.patience):
            self.window += 1
            self.good = 0
