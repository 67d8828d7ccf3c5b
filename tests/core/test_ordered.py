"""Numbers in order while single ones come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.core.ordered import Ordered
from zdiloco.errors import MachineError


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.5, 1.0, float("inf")]))))
def test_the_same_as_sorting_what_is_there(moves: list[tuple[bool, float]]) -> None:
    ordered, there = Ordered(), list[float]()
    for comes, value in moves:
        if comes:
            ordered.add(value)
            there.append(value)
        elif value in there:
            ordered.remove(value)
            there.remove(value)
        assert ordered.values == sorted(there)
        assert ordered.least == min(there, default=None)
        assert len(ordered) == len(there)


def test_what_is_not_there_cannot_be_taken_out() -> None:
    ordered = Ordered()
    ordered.add(1.0)
    for value in (0.5, 2.0):
        with pytest.raises(MachineError, match=f"{value} is not among the 1 numbers"):
            ordered.remove(value)
