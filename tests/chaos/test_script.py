"""Scripts: the same seed gives the same one, everything comes, and nothing is longer than it should be."""

import itertools

import pytest

from zdiloco.chaos.inside import HALF, LEARNER_PLACES, SYNCER_PLACES
from zdiloco.chaos.script import EVERYTHING, KILLS, SYNCER, Deed, Kind, Times, deeds

NAMES = ("a", "b", "c")
STRETCH = sum(EVERYTHING.values())


def script(seed: int, count: int = STRETCH) -> list[Deed]:
    return list(itertools.islice(deeds(seed, NAMES), count))


def test_a_seed_is_a_script() -> None:
    assert script(7) == script(7)
    assert script(7) != script(8)
    assert script(7, 10) == script(7, 50)[:10]


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_comes_as_often_as_it_should(seed: int) -> None:
    found = [each.kind for each in script(seed, 2 * STRETCH)]
    assert {kind: found[:STRETCH].count(kind) for kind in Kind} == EVERYTHING
    assert {kind: found[STRETCH:].count(kind) for kind in Kind} == EVERYTHING
    counts = {Kind.KILL_SYNCER: 2, Kind.COLD: 1}
    few = list(itertools.islice(deeds(seed, NAMES, counts), 3))
    assert {kind: [each.kind for each in few].count(kind) for kind in counts} == counts


def test_what_a_deed_holds_fits_its_kind() -> None:
    """Over 2000 deeds: who, how long, where; and that the exact places are all drawn, in starts too."""
    times = Times(suspect_after_s=3.0, gone_after_s=6.0)
    places: set[tuple[str, bool]] = set()
    for each in itertools.islice(deeds(1, NAMES, times=times), 2000):
        assert set(each.whom) <= {SYNCER, *NAMES}
        assert 0 <= each.pause_s <= 3
        if each.kind is Kind.KILL_BOTH:
            assert each.whom[0] == SYNCER
            assert len(each.whom) > 1
        if each.kind in (Kind.HOLE, Kind.REFUSE, Kind.RESET, Kind.KILL_LEARNER):
            assert SYNCER not in each.whom
        if each.kind is Kind.HOLD:
            assert 0 < each.for_s < times.suspect_after_s
        if each.kind in (Kind.STOP, Kind.HOLE, Kind.REFUSE):
            assert each.for_s > times.gone_after_s
        if each.place:
            assert each.kind in KILLS
            assert each.place in (HALF, *(SYNCER_PLACES if each.whom[0] == SYNCER else LEARNER_PLACES))
            places.add((each.place, each.joining))
        assert bool(each.ahead_s) is (each.kind is Kind.CLOCK)
        assert str(each.kind).split(",")[0] in str(each)
    everywhere = (HALF, *SYNCER_PLACES, *LEARNER_PLACES)
    assert places == {(place, joining) for place in everywhere for joining in (True, False)}


def test_no_counts_no_deeds() -> None:
    assert list(deeds(1, NAMES, {})) == []
