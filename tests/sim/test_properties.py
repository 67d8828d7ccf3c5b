"""Properties of the protocol with figures: pace, slow uplinks, fleets of one and of a thousand, lost calls."""

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from zdiloco.core.params import SyncParams
from zdiloco.sim.actors import Actor
from zdiloco.sim.fault_names import FaultName
from zdiloco.sim.links import Link
from zdiloco.sim.play import Story
from zdiloco.sim.scenario import Fault, LearnerSpec, Scenario
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.speeds import Speed
from zdiloco.sim.world import World

STEP_S = 0.05
ROUND_TRIP_S = 0.2
PERIOD = 24
SPARE = 0.01
"""Steps between two reports are estimated."""


def merged_share(world: World, actor: Actor, older_than_s: float) -> float:
    """Share of a learner's tokens, over all fragments, that are older than so many seconds and merged."""
    old = [work for work, at in actor.work_at.items() if at < world.now - older_than_s]
    places = [(fragment, work) for work in old for fragment in range(world.num_fragments)]
    return sum(place in world.merged_at for place in places) / len(places)


@pytest.mark.parametrize("quorum", [1, *(pytest.param(quorum, marks=pytest.mark.slow) for quorum in (2, 3))])
def test_rounds_are_never_closer_than_the_period_of_the_kth_fastest(
    quorum: int, say: Callable[[str], None]
) -> None:
    world = World(SyncParams(min_quorum=quorum), 3, seed=quorum)
    paces = (STEP_S, 1.6 * STEP_S, 4 * STEP_S)
    for index, pace in enumerate(paces):
        world.join(f"l{index}", link=Link(ROUND_TRIP_S / 2), speed=Speed(pace))
    world.run(60.0)
    gaps = world.gaps(paces[quorum - 1], after_s=5.0)
    say(f"K={quorum}: calls {min(gaps):.2f} to {max(gaps):.2f} steps of the K-th fastest apart ({len(gaps)})")
    assert len(gaps) > 20
    assert min(gaps) >= PERIOD - SPARE


@pytest.mark.slow
@pytest.mark.parametrize("fragments", [1, 6])
def test_a_push_longer_than_a_round_loses_nobodys_work(fragments: int, say: Callable[[str], None]) -> None:
    push_s = 4.0
    world = World(SyncParams(), fragments, chunked=True)
    for name in ("a", "b"):
        world.join(name, STEP_S, Link(ROUND_TRIP_S / 2))
    slow = world.join("slow", STEP_S, Link(ROUND_TRIP_S / 2, up_bytes_s=NBYTES / push_s))
    world.run(120.0 + 2 * fragments * push_s)
    share = merged_share(world, slow, older_than_s=fragments * push_s)
    say(f"P={fragments}: push of {push_s} s, rounds of 1.5 s: {share:.1%} of what is older than a pass merged")
    assert share >= 0.9
    assert min(world.gaps(STEP_S, after_s=5.0)) >= PERIOD - SPARE, "and it holds nobody up"
    world.audit()


def test_a_fleet_of_one_merges_all_that_it_makes() -> None:
    world = World(SyncParams(), 3, chunked=True)
    only = world.join("only", STEP_S, Link(ROUND_TRIP_S / 2))
    world.run(40.0)
    assert merged_share(world, only, older_than_s=4.0) == 1.0
    assert statistics.mean(world.gaps(STEP_S, after_s=3.0)) <= PERIOD + 2 + ROUND_TRIP_S / STEP_S


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fleet_of_a_thousand(say: Callable[[str], None]) -> None:
    world = World(SyncParams(sync_period=10, min_quorum=500, budget_bytes=2**26), 1)
    for index in range(1000):
        world.join(f"l{index}", link=Link(0.05), speed=Speed(1.0, jitter=0.1))
    world.run(36.0)
    world.audit()
    shares = [merged_share(world, actor, older_than_s=25.0) for actor in world.actors.values()]
    merges = [len(merge.merged) for merge in world.site.body.merges]
    say(f"1000 learners: {len(merges)} merges of {statistics.mean(merges):.0f}; least share {min(shares):.1%}")
    assert min(shares) >= 0.9
    assert len(merges) >= 2


def fleet(count: int, faults: tuple[Fault, ...], **sync: Any) -> Story:
    specs = tuple(LearnerSpec(name=f"l{n}", step_s=STEP_S, latency_s=ROUND_TRIP_S / 2) for n in range(count))
    return Story(Scenario(seconds=40.0, fragments=2, learners=specs, faults=faults, sync=sync))


def test_all_but_one_are_dead_and_the_one_goes_on_at_its_own_pace() -> None:
    story = fleet(4, tuple(Fault(at_s=10.0, name=FaultName.KILL, who=f"l{n}") for n in (1, 2, 3)))
    story.play()
    assert statistics.mean(story.world.gaps(STEP_S, after_s=18.0)) <= PERIOD + 2 + ROUND_TRIP_S / STEP_S
    only = next(iter(story.world.actors.values()))
    assert merged_share(story.world, only, older_than_s=9.0) == 1.0, "nothing hangs on the dead"


def test_as_many_live_as_must_come_and_one_call_is_lost() -> None:
    story = fleet(3, (Fault(at_s=15.0, name=FaultName.LOST_CALL, who="l1"),), min_quorum=3)
    story.play()
    gaps = story.world.gaps(STEP_S, after_s=3.0)
    usual = statistics.median(gaps)
    assert sorted(gaps)[-3] <= usual + 2, "one call costs one round of one fragment (and the end of the run)"
    assert max(gaps) <= usual + (1.0 + ROUND_TRIP_S) / STEP_S + 2, "a beat later it is repeated"


def test_a_recovery_that_reaches_a_part_of_the_fleet_loses_nothing() -> None:
    faults = tuple(Fault(at_s=at, name=FaultName.UNREACHABLE, for_s=1.0) for at in (10.0, 22.0))
    story = fleet(4, faults, checkpoint_every_s=8.0, recover_wait_s=1.0)
    outcome = story.play()
    assert outcome.seen["recovered"] == 2
    for actor in story.world.actors.values():
        assert merged_share(story.world, actor, older_than_s=9.0) == 1.0
