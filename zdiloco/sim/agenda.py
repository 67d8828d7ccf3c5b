"""Virtual time: what is still to happen, in order.

Rule: entries of one moment happen in the order in which they were made, so nothing depends on chance that has no seed.
"""

import heapq
import itertools
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

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        self.most_at_once = MOST_AT_ONCE
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._same = 0

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have something happen in so many seconds (at once: after what happens now)."""
        heapq.heappush(self._heap, (self.now + max(delay_s, 0.0), next(self._numbers), what))

    def run(self, until: float) -> None:
        """Let everything happen up to a moment."""
        heap = self._heap
        while heap and heap[0][0] <= until:
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
            if not self._heap or self._heap[0][0] > ends:
                raise Broken("not in time", f"not within {limit_s:g} s (now {self.now:.3f})")
            self.turn()
