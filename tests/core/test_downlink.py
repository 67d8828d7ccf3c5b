"""A learner takes of the broadcast what its downlink carries: all, or nothing, and then the newest states by pulls."""

import pytest

from zdiloco.core import downlink as downlinks
from zdiloco.core.downlink import BEHIND_BEATS, REST_FIRST_S
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.messages import Body, Update
from zdiloco.core.params import SyncParams
from zdiloco.core.status import status
from zdiloco.sim.actors import Actor
from zdiloco.sim.links import Link
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World
from zdiloco.units import Stamp

STEP_S = 0.05
FRAGMENTS = 6
PUBLISHED = FRAGMENTS * NBYTES / (24 * STEP_S)
"""Bytes per second that a syncer publishes: each fragment every 24 steps."""


@pytest.fixture
def world() -> World:
    """Two near learners that train, with bodies in chunks."""
    made = World(SyncParams(), FRAGMENTS, exact=False, chunked=True)
    for name in ("near", "nearer"):
        made.join(name, STEP_S, Link(latency_s=0.01))
    made.run(6.0)
    return made


def lags(world: World, actor: Actor) -> list[int]:
    """Versions of each fragment that are published and not adopted."""
    assert world.site is not None
    held = [duty.progress.seen.version for duty in actor.machine.duties]
    return [state.stamp.version - version for state, version in zip(world.site.body.states, held, strict=True)]


def listens(actor: Actor) -> bool:
    return actor.machine.inflow.downlink.listening


def age_of(world: World, actor: Actor, seconds: float) -> float:
    """Versions of a fragment that the learner is behind on average, looked at every second."""
    seen = []
    for _ in range(int(seconds)):
        world.run(world.now + 1.0)
        seen.append(sum(lags(world, actor)) / FRAGMENTS)
    return sum(seen) / len(seen)


def test_near_learners_listen_once_their_values_are_loaded(world: World) -> None:
    assert all(listens(actor) and actor.listening for actor in world.actors.values())
    late = world.join("late", STEP_S, Link(latency_s=0.04))
    world.run_until(lambda: late.machine.phase is LearnerPhase.RESTORING, 5.0)
    assert not listens(late)
    world.run_until(lambda: late.machine.phase is LearnerPhase.TRAINING, 5.0)
    world.run(world.now + 5.0)
    assert listens(late)
    pulled = late.machine.counts["pulled"]
    world.run(world.now + 8.0)
    assert late.machine.counts["pulled"] == pulled  # in a steady state nothing is pulled
    assert max(lags(world, late)) <= 1


@pytest.mark.parametrize("first", [False, True], ids=["a newcomer", "the first of all"])
def test_where_one_update_would_hold_the_link_each_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, world: World, first: bool
) -> None:
    """It takes every update as before, but none comes unasked; also where nothing was published when it began."""
    monkeypatch.setattr(downlinks, "LEAST_BURST", 0)
    monkeypatch.setattr(downlinks, "TELLING_BYTES", 0)
    world = World(SyncParams(), FRAGMENTS, exact=False, chunked=True) if first else world
    slow = world.join("slow", STEP_S, Link(latency_s=0.04, down_bytes_s=3 * PUBLISHED))
    near = world.join("near by", STEP_S, Link(latency_s=0.01))
    world.run(world.now + 15.0)
    assert listens(slow)
    assert (slow.listening, near.listening) == (False, True)
    notes = [note for note in world.notes if "asks for the updates" in note]
    assert [note.split(":")[0].split()[-1] for note in notes] == ["slow"]
    pulled, held = slow.machine.counts["pulled"], [duty.progress.seen.version for duty in slow.machine.duties]
    world.run(world.now + 8.0)
    assert slow.machine.counts["pulled"] == pulled
    assert all(duty.progress.seen.version >= held[duty.index] + 4 for duty in slow.machine.duties)
    assert max(lags(world, slow)) <= 1


def test_a_few_bytes_at_a_start_are_no_measure_of_a_link(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """All its values together came slowly, and are little: that may have been anybody's doing."""
    monkeypatch.setattr(downlinks, "LEAST_BURST", 0)
    world.join("slow", STEP_S, Link(latency_s=0.04, down_bytes_s=3 * PUBLISHED))
    world.run(world.now + 15.0)
    assert not [note for note in world.notes if "asks for the updates" in note]


@pytest.mark.slow
def test_a_downlink_that_carries_half_of_what_is_published_joins_and_keeps_up_by_pulls(world: World) -> None:
    """Its values are never more than some versions old, though two of three versions never reach it (A-11, B-27)."""
    slow = world.join("slow", STEP_S, Link(latency_s=0.04, down_bytes_s=PUBLISHED / 2))
    joined_at = world.now
    world.run_until(lambda: slow.machine.step > 0, 60.0)
    took_s = world.now - joined_at
    assert took_s < 3 * FRAGMENTS * NBYTES / (PUBLISHED / 2)  # thrice what its values take on an empty link
    age_of(world, slow, 20)
    assert age_of(world, slow, 40) < 4
    assert world.site is not None
    share = slow.link.down.nbytes / (world.now - joined_at) / (PUBLISHED / 2)
    assert share < 1.3  # what it cannot use is not sent to it
    assert not listens(slow)
    shown = status(world.site.machine, world.now)["learners"]
    assert {row["name"]: row["listening"] for row in shown} == {"near": True, "nearer": True, "slow": False}
    merged = slow.machine.counts["merged"]
    world.run(world.now + 20.0)
    assert slow.machine.counts["merged"] >= merged + FRAGMENTS


@pytest.mark.slow
def test_who_falls_behind_leaves_the_broadcast_and_comes_back_when_its_link_is_better(world: World) -> None:
    """A link that gets slow, then fast again: each change once, with its reason; it never flaps."""
    actor = next(iter(world.actors.values()))
    ordinary, actor.link.down.bytes_s = actor.link.down.bytes_s, PUBLISHED / 3
    world.run_until(lambda: not listens(actor), 60.0)
    assert not actor.link.down.waiting or len(actor.link.down.waiting) < 2 * FRAGMENTS
    world.run(world.now + 60.0)
    assert not listens(actor)
    assert sum(lags(world, actor)) / FRAGMENTS < 6
    actor.link.down.bytes_s = ordinary
    world.run_until(lambda: listens(actor), REST_FIRST_S + 60.0)
    world.run(world.now + 60.0)
    assert listens(actor)
    assert max(lags(world, actor)) <= 1
    left = [note for note in world.notes if f"{actor.key.name}: leaves the broadcast" in note]
    assert len(left) == 1
    assert "versions of fragment" in left[0]


def test_beats_that_waited_while_the_process_stalled_are_one(world: World) -> None:
    """They are read before the first chunk that waited with them: nothing is slow."""
    actor = next(iter(world.actors.values()))
    downlink, duty = actor.machine.inflow.downlink, actor.machine.duties[0]
    version = duty.progress.seen.version + 3
    assert [downlink.beaten(duty, version, world.now + number / 1000) for number in range(20)] == [[]] * 20
    every_s = actor.machine.sync.beat_every_s
    assert downlink.beaten(duty, version, world.now + every_s) == []
    assert downlink.beaten(duty, version, world.now + 2 * every_s) != [], "the third that is one of its own"
    assert not listens(actor)


def test_who_lacks_only_what_was_announced_a_moment_ago_is_not_behind(world: World) -> None:
    """Six versions a second, of which the last five are on their way; then they should be here, and are not."""
    actor = next(iter(world.actors.values()))
    downlink, duty = actor.machine.inflow.downlink, actor.machine.duties[0]
    here, now = duty.progress.seen, world.now
    body = Body(transfer="u", nbytes=1, chunk_bytes=1, digest=0)

    for number in range(1, 60):
        update = Update(
            fragment=0, stamp=Stamp(here.epoch, here.version + number), full=False, codec="fp32", value_bytes=1,
            body=body,
        )  # fmt: skip
        downlink.announced(update, now + number / 6)
        duty.progress.seen = Stamp(here.epoch, here.version + max(0, number - 5))
        if number % 6 == 5:
            assert downlink.beaten(duty, downlink.known[0], now + number / 6) == []
    late = [downlink.beaten(duty, downlink.known[0], now + 20 + beat) for beat in range(BEHIND_BEATS + 1)]
    assert [bool(actions) for actions in late] == [False] * BEHIND_BEATS + [True]


@pytest.mark.slow
def test_a_newcomer_that_is_further_away_than_rounds_are_apart_listens_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No pull ever brings the newest version, nor many bytes a second; but its values are never a second old."""
    monkeypatch.setattr(downlinks, "SPAN_S", 2.0)
    world = World(SyncParams(sync_period=2), 2, exact=False, chunked=True)
    for name in ("near", "nearer"):
        world.join(name, 0.01, Link(latency_s=0.001))
    world.run(1.0)
    far = world.join("far", 0.01, Link(latency_s=0.2))
    world.run_until(lambda: listens(far), 10.0)
    world.run(world.now + 1.0)
    assert listens(far)
