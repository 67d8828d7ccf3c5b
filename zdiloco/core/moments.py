"""When each of many names is to be looked at: the next moment at once, however many there are.

Rule: a moment may come early, never late. Whoever is looked at is expected anew, or not at all.
"""

import heapq
import math


class Moments:
    """One moment per name, in seconds; the earliest first."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._at: dict[str, float] = {}

    def expect(self, name: str, at: float | None) -> None:
        """Have a name looked at by `at`, or sooner if that was expected; None: not any more."""
        if at is None:
            self._at.pop(name, None)
        elif at < self._at.get(name, math.inf):
            self._at[name] = at
            heapq.heappush(self._heap, (at, name))

    def take(self, until: float) -> list[str]:
        """The names whose moment is not after `until`, earliest first; they are not expected any more."""
        taken = []
        while self._heap and self._heap[0][0] <= until:
            at, name = heapq.heappop(self._heap)
            if self._at.get(name) == at:
                del self._at[name]
                taken.append(name)
        return taken

    def first(self) -> float | None:
        """The earliest moment; None: nobody is expected."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
