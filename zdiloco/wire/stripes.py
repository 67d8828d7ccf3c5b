"""Which of the connections between a learner and its syncer takes the next chunk.

Rule: stripes carry chunks in turn, and one without room is passed over. One of which a chunk is asked for again rests:
a connection that is dead, or in the middle of a loss recovery, takes many chunks before it is full. After a rest it
gets one chunk, and rests on until that is known to have arrived: each time it was in vain twice as long, counted in
chunks that others carry.
"""

from collections.abc import Iterator

MOST_STRIPES = 4
REST = 8
"""Chunks that others carry while a stripe rests for the first time."""
MOST_DOUBLINGS = 9
MOST_TRANSFERS = 2048
"""Transfers whose chunks are remembered by their stripe; the oldest are forgotten first."""


class Stripes:
    """The `count` connections to one peer, by number."""

    __slots__ = ("_carried", "_first", "_rests", "_tried", "_vain", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._first = 0
        self._rests = [0] * count
        self._vain = [0] * count
        self._tried = [False] * count
        self._carried: dict[str, dict[int, int]] = {}

    def turns(self) -> Iterator[int]:
        """Yield those that may carry the next chunk, whoever is next first; if all of them rest, all."""
        wakeful = min(self._rests) == 0
        for number in range(self._first, self._first + self.count):
            if not (wakeful and self._rests[number % self.count]):
                yield number % self.count

    @property
    def resting(self) -> bool:
        """Whether some rest while others may carry."""
        return min(self._rests) == 0 < max(self._rests)

    def carries(self, stripe: int, transfer: str, index: int) -> None:
        """A stripe has taken a chunk."""
        if self.count == 1:
            return
        self._first = (stripe + 1) % self.count
        self._rests = [max(0, rest - 1) for rest in self._rests]
        self._tried[stripe] = True
        if self._vain[stripe]:
            self._rest(stripe)
        self._carried.setdefault(transfer, {})[index] = stripe
        if len(self._carried) > MOST_TRANSFERS:
            del self._carried[next(iter(self._carried))]

    def asked_again(self, transfer: str, index: int) -> None:
        """A chunk is asked for; if a stripe has taken it before, that one rests."""
        stripe = self._carried.get(transfer, {}).pop(index, None)
        if stripe is not None and self._tried[stripe]:  # of several that it carried since then, the first tells
            self._tried[stripe] = False
            self._vain[stripe] += 1
            self._rest(stripe)

    def _rest(self, stripe: int) -> None:
        self._rests[stripe] = REST << min(self._vain[stripe] - 1, MOST_DOUBLINGS)

    def wake(self) -> None:
        """A chunk is asked for that none has taken: those that rest are tried, too."""
        self._rests = [0] * self.count

    def arrived(self, transfer: str) -> None:
        """All of a transfer has arrived: the stripes that carried it are sound."""
        for stripe in self._carried.pop(transfer, {}).values():
            self._vain[stripe] = self._rests[stripe] = 0

    def forget(self, transfer: str) -> None:
        """A transfer is over, and nobody knows what of it arrived."""
        self._carried.pop(transfer, None)
