"""Numbers that are kept in ascending order while single ones come and go: smallest, largest and percentiles at once.

Rule: whoever adds a number takes the very same one out again.
"""

from bisect import bisect_left, insort

from zdiloco.errors import MachineError


class Ordered:
    """Numbers in ascending order. A change costs a search and a shift: a few microseconds among ten thousand."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: list[float] = []

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float) -> None:
        """Take one number in."""
        insort(self.values, value)

    def remove(self, value: float) -> None:
        """Take one number out; MachineError if it is not there."""
        place = bisect_left(self.values, value)
        if place == len(self.values) or self.values[place] != value:
            raise MachineError(f"{value} is not among the {len(self.values)} numbers")
        del self.values[place]

    @property
    def least(self) -> float | None:
        """The smallest; None: there is none."""
        return self.values[0] if self.values else None
