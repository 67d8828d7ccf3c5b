"""Who is where for the round of one fragment, kept member by member: nobody else is looked at when one of them moves.

Rule: whatever changes where a member belongs is followed by `place` for that member. While the grace window is open the
pace of everybody who is waited for is followed, too.
"""

import heapq
from collections.abc import Callable, Iterable

from zdiloco.units import MemberKey

PaceOf = Callable[[MemberKey], float | None]
"""Seconds per step of a member as it is now; None or 0: not known."""


class Roll:
    """`held`: whose held contribution counts; `fresh`: who of them answered this call; `absent`: still waited for."""

    __slots__ = ("_pace_of", "_slow", "absent", "fresh", "held")

    def __init__(self) -> None:
        self.held: set[MemberKey] = set()
        self.fresh: set[MemberKey] = set()
        self.absent: set[MemberKey] = set()
        self._pace_of: PaceOf | None = None
        self._slow: list[tuple[float, MemberKey]] = []

    def open(self, absent: Iterable[MemberKey]) -> None:
        """A round opens: nobody has answered, and these are waited for."""
        self.fresh, self.absent = set(), set(absent)
        self.end_grace()

    def close(self) -> None:
        """The round takes all that is held."""
        self.held, self.fresh, self.absent = set(), set(), set()
        self.end_grace()

    def place(self, key: MemberKey, *, held: bool, fresh: bool, absent: bool) -> None:
        """Put a member where it belongs now."""
        for keys, belongs in ((self.held, held), (self.fresh, fresh)):
            if belongs:
                keys.add(key)
            else:
                keys.discard(key)
        if not absent:
            self.absent.discard(key)
        elif key not in self.absent:
            self.absent.add(key)
            self.paced(key)

    def begin_grace(self, pace_of: PaceOf) -> None:
        """From now on the slowest of those who are waited for is asked for."""
        self._pace_of = pace_of
        self._slow = [(-pace, key) for key in self.absent if (pace := pace_of(key))]
        heapq.heapify(self._slow)

    def end_grace(self) -> None:
        """Nobody asks for the slowest any more."""
        self._pace_of, self._slow = None, []

    def paced(self, key: MemberKey) -> None:
        """The pace of a member has changed."""
        if self._pace_of is None or key not in self.absent:
            return
        pace = self._pace_of(key)
        if pace:
            heapq.heappush(self._slow, (-pace, key))
        if len(self._slow) > 2 * len(self.absent) + 64:
            self.begin_grace(self._pace_of)  # mostly paces of long ago

    def slowest_s(self) -> float | None:
        """Seconds per step of the slowest who is waited for; None: no pace of any of them is known."""
        while self._slow and self._pace_of:
            pace, key = -self._slow[0][0], self._slow[0][1]
            if key in self.absent and self._pace_of(key) == pace:
                return pace
            heapq.heappop(self._slow)
        return None
