"""When each of many is to be looked at."""

from hypothesis import given
from hypothesis import strategies as st

from zdiloco.core.moments import Moments

names = st.sampled_from(["ann", "bob", "eve"])
times = st.one_of(st.none(), st.integers(0, 9).map(float))


def test_the_earliest_first_and_a_later_moment_never_puts_an_earlier_one_off() -> None:
    moments = Moments()
    assert moments.first() is None
    moments.expect("ann", 5.0)
    moments.expect("bob", 3.0)
    moments.expect("ann", 9.0)
    assert moments.first() == 3.0
    assert moments.take(5.0) == ["bob", "ann"]
    assert moments.first() is None, "who was looked at is not expected any more"


def test_whoever_is_not_expected_any_more_wakes_nobody() -> None:
    moments = Moments()
    moments.expect("ann", 5.0)
    moments.expect("bob", 6.0)
    moments.expect("ann", None)
    assert moments.first() == 6.0
    assert moments.take(9.0) == ["bob"]


@given(st.lists(st.one_of(st.tuples(names, times), st.integers(0, 9).map(float))))
def test_the_same_as_a_plain_table(moves: list) -> None:
    moments, table = Moments(), dict[str, float]()
    for move in moves:
        if isinstance(move, float):
            taken = sorted((at, name) for name, at in table.items() if at <= move)
            assert moments.take(move) == [name for _, name in taken]
            table = {name: at for name, at in table.items() if at > move}
        elif move[1] is None:
            moments.expect(*move)
            table.pop(move[0], None)
        else:
            moments.expect(*move)
            table[move[0]] = min(move[1], table.get(move[0], 99.0))
        assert moments.first() == min(table.values(), default=None)
