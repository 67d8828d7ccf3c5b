"""How many contributions a learner may have under way: enough to fill its link, too few to queue on it.

Rule: one number, the window. Answer times near the shortest one seen mean that the link has room, so a full window
grows by one; answers that take much longer mean a queue, so it shrinks by one, and is each time slower to try that size
again. A link that takes 4 s for a fragment ends at one, a link of 200 ms round trip at as many as the period needs.

Near a syncer an answer takes milliseconds, and threads and merges make it late by tens of them: a ratio would take that
for a queue. What a wait costs is measured in steps. What is not cut at a boundary is cut a step later at the earliest,
so as many as are answered one after the other within a step may always be under way; and a wait of less than an eighth
of a period makes no contribution late, so it is no queue.
"""

from collections import deque

from zdiloco.units import FragmentId

ROOM = 1.3
"""An answer within so many times the shortest one means room."""
QUEUE = 1.8
"""An answer beyond so many times the shortest one means a queue."""
HARMLESS = 0.125
"""Share of a period (H steps) that a contribution may wait for others without harm. A round waits for usual answers up
to half of its slack; this is a quarter of that."""
PATIENCE = 64
"""Good answers in a row before a size that once queued is tried again; doubles with each failure."""
NEARLY = 0.9
"""Share of the shortest answer time after which the oldest contribution is as good as through: the next may follow."""
RECENT = 8
"""Steps, and answers of contributions that were alone, of which the shortest counts."""


class Uplink:
    """The window of one learner's uplink; times in monotonic seconds. `sync_period`: H, in steps."""

    def __init__(self, most: int, sync_period: int = 1) -> None:
        self.most, self.sync_period = most, sync_period
        self.window = 1
        self.queued_at = most + 1
        self.good, self.patience = 0, PATIENCE
        self.late = 0
        self.overlap = True
        self.under_way: dict[tuple[FragmentId, int], tuple[float, int]] = {}
        self.alone: deque[float] = deque(maxlen=RECENT)
        self.steps: deque[float] = deque(maxlen=RECENT)

    @property
    def shortest_s(self) -> float:
        """The shortest recent answer time of a contribution that had the link for itself; 0 before the first.

        Others would hide a queue: once all of them wait, their shortest wait looks like the link's own time.
        """
        return min(self.alone, default=0.0)

    @property
    def step_s(self) -> float:
        """The shortest recent step of this learner: what a cut is put off by, at least; 0 before the first."""
        return min(self.steps, default=0.0)

    @property
    def harmless_s(self) -> float:
        """How long a contribution may wait for others: at least a step, by which a cut would be put off otherwise."""
        return self.step_s * max(1.0, HARMLESS * self.sync_period)

    @property
    def room(self) -> int:
        """How many may be under way: the window, or as many as keep the last one waiting for less than a step.

        When more than these in a row were late, the link is not what it was: the window alone counts, until one is not.
        """
        near = min(self.most, 1 + int(self.step_s / self.shortest_s)) if self.shortest_s > 0.0 else 1
        return max(self.window, near) if self.late <= near else self.window

    def stepped(self, seconds: float) -> None:
        """The learner has made a step that took so long; 0: nobody knows."""
        if seconds > 0.0:
            self.steps.append(seconds)

    def free(self, now: float) -> bool:
        """Whether one more contribution may be cut. The link must not run empty between two."""
        room = self.room
        if len(self.under_way) != room:
            return len(self.under_way) < room
        oldest = min(at for at, _ in self.under_way.values())
        return self.overlap and bool(self.alone) and now - oldest >= NEARLY * self.shortest_s

    def soon(self, now: float, ahead: int) -> bool:
        """Whether what cannot be cut now, with so many `ahead` of it, can be before the wait does harm."""
        if self.shortest_s == 0.0 or not self.under_way:
            return False
        due = min(at for at, _ in self.under_way.values()) + self.shortest_s
        turns = ahead // self.room
        wait_s = max(0.0, due - now) + turns * max(self.step_s, self.shortest_s)
        return wait_s <= self.harmless_s and now <= due + self.harmless_s

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
        late = self._waited(took, QUEUE)
        self.late = self.late + 1 if late else 0
        if late:
            self._shrink()
        elif not self._waited(took, ROOM):
            self.good += 1
            if beside >= self.window:
                self._grow()

    def _waited(self, took: float, times: float) -> bool:
        """Whether an answer took more than so many times the shortest time, and waited for longer than is harmless."""
        shortest = self.shortest_s
        return took - shortest > max((times - 1.0) * shortest, self.harmless_s)

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
