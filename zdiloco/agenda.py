"""Virtual time: what is still to happen, in order.

Rule: entries of one moment happen in the order in which they were made, so nothing depends on chance that has no seed.
"""

import heapq
import itertools
import math
from collections.abc import Callable

from zdiloco.errors import MachineError

MOST_AT_ONCE = 5_000
"""So many entries at one moment, and as many more as there are processes, mean that some deadline does not move on."""


class Broken(MachineError):
    """A rule of the protocol does not hold. `rule` names it in a word or two: faults alike have the same."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Agenda:
    """The clock of a world. `now` is in seconds and never falls."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.turns = 0
        self.most_at_once = MOST_AT_ONCE
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._same = 0

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have something happen in so many seconds (at once: after what happens now)."""
        heapq.heappush(self._heap, (self.now + max(delay_s, 0.0), next(self._numbers), what))

    def at_moment(self, moment: float, what: Callable[[], None]) -> None:
        """Have something happen at exactly this moment; at once where it has passed."""
        heapq.heappush(self._heap, (max(moment, self.now), next(self._numbers), what))

    @property
    def next_at(self) -> float:
        """When the next entry happens; infinity where there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def run(self, until: float) -> None:
        """Let everything happen up to a moment."""
        while self.next_at <= until:
            self.turn()
        self.now = max(self.now, until)

    def turn(self) -> None:
        """Let the next entry happen. Raises: Broken where time does not go on."""
        at, _, what = heapq.heappop(self._heap)
        self._same = self._same + 1 if at == self.now else 0
        if self._same > self.most_at_once:
            raise Broken("time stands still", f"{self._same} things at {at:g} s")
        self.now = at
        self.turns += 1
        what()

    def run_until(self, holds: Callable[[], bool], limit_s: float) -> None:
        """Go on until something holds. Raises: Broken where it does not within `limit_s` seconds."""
        ends = self.now + limit_s
        while not holds():
            if self.next_at > ends:
                raise Broken("not in time", f"not within {limit_s:g} s (now {self.now:.3f})")
            self.turn()
