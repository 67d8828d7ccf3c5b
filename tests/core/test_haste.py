"""Of whom a run is too fast: said once, shown while it holds, and never of a fleet that can keep up."""

import pytest

from tests.core.test_fleet import STEP_S
from zdiloco.core.params import SyncParams
from zdiloco.core.status import status
from zdiloco.sim.actors import Actor
from zdiloco.sim.links import Link
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.speeds import Speed
from zdiloco.sim.world import World

NEAR = 0.0001


def fleet_of(*step_s: float, up_s: float = NEAR, **params: object) -> tuple[World, list[Actor]]:
    """Learners near the syncer; only the last one sends at `up_s` a contribution."""
    world = World(SyncParams(**params), 1, target_tokens=0)
    links = [Link(latency_s=NEAR, up_bytes_s=NBYTES / each) for each in [NEAR] * (len(step_s) - 1) + [up_s]]
    return world, [
        world.join(f"l{index}", step_s=each, link=link)
        for index, (each, link) in enumerate(zip(step_s, links, strict=True))
    ]


def said(world: World) -> list[str]:
    return [note.split("syncer: ")[1] for note in world.notes if "cannot keep the pace" in note]


def behind(world: World) -> dict[str, str]:
    assert world.site is not None
    return {each["name"]: each["behind"] for each in status(world.site.machine, world.now)["learners"]}


@pytest.mark.parametrize("sync_period", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_who_takes_longer_for_a_step_than_a_period_is_named_once(sync_period: int) -> None:
    """C-47: five times slower, on a fast link; it is merged all the same."""
    world, (_, slow) = fleet_of(STEP_S, 5 * STEP_S, sync_period=sync_period)
    world.run(120.0)
    (line,) = [line for line in said(world) if line.startswith("l1 cannot keep the pace")]
    assert "sync.sync_period = 5 would" in line or "sync.sync_period = 6 would" in line
    assert "a fragment come every" in behind(world)["l1"]
    if sync_period > 1:  # with one step even the way to the syncer is longer than a period
        assert behind(world)["l0"] == ""
    assert slow.machine.counts["merged"] > 20


def test_what_is_advised_is_enough() -> None:
    """C-47: with the period that the warning names nobody is behind, and K = 2 makes the slow one the measure."""
    for params in ({"sync_period": 7}, {"sync_period": 2, "min_quorum": 2}):
        world, _ = fleet_of(STEP_S, 5 * STEP_S, **params)
        world.run(60.0)
        assert said(world) == []
        assert set(behind(world).values()) == {""}


def test_a_link_too_slow_for_the_period_is_named() -> None:
    """C-47: equal steps, but one answer takes longer than a period."""
    world, _ = fleet_of(STEP_S, STEP_S, up_s=1.0, sync_period=8)
    world.run(60.0)
    assert len(said(world)) == 1
    assert "l1 cannot keep the pace (an answer of it takes" in said(world)[0]


@pytest.mark.slow
def test_a_usual_fleet_is_left_alone() -> None:
    """H = 24, five times slower, 200 ms of round trip."""
    world = World(SyncParams(), 4)
    for index, step_s in enumerate((STEP_S, STEP_S, 2 * STEP_S, 5 * STEP_S)):
        world.join(f"l{index}", step_s=step_s, link=Link(latency_s=0.1))
    world.run(120.0)
    assert said(world) == []


def test_it_is_shown_no_more_when_it_holds_no_more() -> None:
    world, (_, slow) = fleet_of(STEP_S, 5 * STEP_S, sync_period=4)
    world.run(60.0)
    assert behind(world)["l1"]
    slow.speed = Speed(STEP_S)
    world.run(120.0)
    assert behind(world)["l1"] == ""
    assert len(said(world)) == 1


def test_at_the_end_it_is_said_of_whom_nothing_was_merged() -> None:
    """C-47: a target that the fast ones reach before the first contribution of a slow one."""
    world = World(SyncParams(sync_period=1), 1, target_tokens=2000)
    world.join("fast", link=Link(latency_s=NEAR, up_bytes_s=NBYTES / NEAR))
    world.join("slow", step_s=1.0, link=Link(latency_s=NEAR, up_bytes_s=NBYTES / 60.0))
    world.run(60.0)
    assert any("nothing of slow was merged (the target was reached before" in note for note in world.notes)
    assert not any("nothing of fast" in note for note in world.notes)
