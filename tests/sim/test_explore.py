"""All interleavings of a small world: nothing lost, nothing twice, and in the end everything is merged."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.explore import Bounds
from tests.sim.mutations import MUTATIONS, mutated
from tests.sim.search import Search

MOST = 100_000
NONE = Bounds(learner_crashes=0, syncer_crashes=0, losses=0, repeats=0)
"""Two contributions at least; each that is refused is cut again and makes one more."""
BOTH = replace(NONE, steps=4, min_quorum=2)
"""The same where a round needs both: far fewer orders."""
FAULTS = {
    "no fault": NONE,
    "one repetition": replace(NONE, repeats=1),
    "one loss": replace(NONE, losses=1),
    "one learner crash": replace(NONE, learner_crashes=1),
    "one syncer crash, K = 2": replace(BOTH, syncer_crashes=1),
    "one loss and one repetition, K = 2": replace(BOTH, losses=1, repeats=1),
}
LONG = {
    "one syncer crash": replace(NONE, syncer_crashes=1),
    "one loss and one repetition": replace(NONE, losses=1, repeats=1),
    "one learner crash and one repetition": replace(NONE, learner_crashes=1, repeats=1),
    "one learner crash and one loss": replace(NONE, learner_crashes=1, losses=1),
    "one more step, three contributions": replace(NONE, steps=4),
}
CRASHES = replace(BOTH, learner_crashes=1, syncer_crashes=1)
FULL_MOST = 2_000_000
"""Worlds of the full bounds that are looked at: there are far more, a gigabyte for each million."""


def explore(name: str, bounds: Bounds, say: Callable[[str], None], most: int = 1 << 60) -> Search:
    search = Search(bounds)
    count = search.run(most)
    steps, sets = sum(search.ways_taken.values()), len(search.audited)
    rest = "" if search.is_complete else "; the rest is not looked at"
    say(f"{name}: {count} states, {sets} sets of parts, {steps} steps, {search.contributions} contributions{rest}")
    assert search.contributions >= 2
    return search


def test_every_order_without_faults(say: Callable[[str], None]) -> None:
    assert explore("no fault, K = 2", BOTH, say).is_complete


def broken(rule: str, bounds: Bounds) -> str:
    """How the search fails where a rule is broken."""
    (mutation,) = [each for each in MUTATIONS if each.rule == rule]
    with mutated(mutation), pytest.raises(AssertionError) as fault:
        Search(bounds).run(MOST)
    return str(fault.value)


def test_a_broken_rule_is_found() -> None:
    assert "merged and held" in broken("û is not subtracted", BOTH)


@pytest.mark.slow
def test_a_broken_rule_is_found_with_the_path_to_it_or_after_a_loss() -> None:
    told = broken("kept: freed before it is stable", NONE)
    assert "nowhere but in what a crash would take" in told
    assert told.rstrip().endswith(" > beat")
    assert " > " in broken("after: it need not fit", replace(NONE, losses=1, repeats=1))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_every_order_with_a_fault(name: str, say: Callable[[str], None]) -> None:
    assert explore(name, FAULTS[name], say).is_complete


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LONG)
def test_every_order_with_more_faults(name: str, say: Callable[[str], None]) -> None:
    assert explore(name, LONG[name], say).is_complete


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_order_with_a_crash_of_each_side(say: Callable[[str], None]) -> None:
    assert explore("one crash of each side, K = 2", CRASHES, say).is_complete


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_shortest_ways_of_crashes_loss_and_repetition_together(say: Callable[[str], None]) -> None:
    explore("one crash of each side, one loss, one repetition", Bounds(), say, FULL_MOST)
