"""All interleavings of a small world: nothing lost, nothing twice, and in the end everything is merged."""

from collections.abc import Callable

import pytest

from tests.sim.explore import Bounds
from tests.sim.mutations import MUTATIONS, mutated
from tests.sim.search import Search

MOST = 100_000
SMALL = Bounds(steps=2, learner_crashes=0, syncer_crashes=0, losses=0, repeats=0)
"""2 learners, 1 fragment, 2 contributions, no faults."""
FAULTS = {
    "no fault": Bounds(learner_crashes=0, syncer_crashes=0, losses=0, repeats=0),
    "one repetition": Bounds(learner_crashes=0, syncer_crashes=0, losses=0),
    "one learner crash": Bounds(syncer_crashes=0, losses=0, repeats=0),
}
LONG = {
    "one loss": Bounds(learner_crashes=0, syncer_crashes=0, repeats=0),
    "one syncer crash": Bounds(learner_crashes=0, losses=0, repeats=0),
    "one loss and one repetition": Bounds(learner_crashes=0, syncer_crashes=0),
    "one learner crash and one repetition": Bounds(syncer_crashes=0, losses=0),
    "one learner crash and one loss": Bounds(syncer_crashes=0, repeats=0),
}


def explore(name: str, bounds: Bounds, say: Callable[[str], None]) -> None:
    search = Search(bounds)
    count = search.run()
    say(f"{name}: {count} states, {len(search.audited)} sets of parts, {sum(search.ways_taken.values())} steps")


def test_every_order_without_faults(say: Callable[[str], None]) -> None:
    explore("no fault, two contributions", SMALL, say)


def broken(rule: str, bounds: Bounds) -> str:
    """How the search fails where a rule is broken."""
    (mutation,) = [each for each in MUTATIONS if each.rule == rule]
    with mutated(mutation), pytest.raises(AssertionError) as fault:
        Search(bounds).run(MOST)
    return str(fault.value)


def test_a_broken_rule_is_found() -> None:
    assert "merged and held" in broken("û is not subtracted", SMALL)


@pytest.mark.slow
def test_a_broken_rule_is_found_with_the_path_to_it_or_after_a_loss() -> None:
    told = broken("kept: freed before it is stable", FAULTS["no fault"])
    assert "nowhere but in what a crash would take" in told
    assert told.rstrip().endswith(" > beat")
    assert " > " in broken("after: it need not fit", Bounds(learner_crashes=0, syncer_crashes=0))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_every_order_of_three_contributions_and_a_fault(name: str, say: Callable[[str], None]) -> None:
    explore(name, FAULTS[name], say)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LONG)
def test_every_order_with_more_faults(name: str, say: Callable[[str], None]) -> None:
    explore(name, LONG[name], say)
