"""What users of other trainers lived through as they joined over bad links, with the production's transfers in virtual
time (docs/cases.md). Bodies are 20,000 bytes, a limit without progress is 5 s."""

from typing import Any

import pytest

from zdiloco.core.params import SyncParams
from zdiloco.sim import chunks
from zdiloco.sim.actors import Actor
from zdiloco.sim.chunks import CHUNKED
from zdiloco.sim.links import Link
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World

pytestmark = pytest.mark.slow
STEP_S = 0.05


def fleet(count: int, fragments: int, **params: Any) -> tuple[World, list[Actor]]:
    """A world of near learners that train, with bodies in chunks."""
    world = World(SyncParams(**params), fragments, chunked=True)
    return world, [world.join(f"l{index}", STEP_S, Link(latency_s=0.01)) for index in range(count)]


def merged(world: World, actor: Actor) -> bool:
    """Whether something of the learner is in every fragment."""
    assert world.site is not None
    return all(any(entry.key == actor.key for entry in state.map) for state in world.site.body.states)


def test_a_newcomer_is_served_while_merges_run_back_to_back() -> None:
    """B-25: rounds of four fragments at nearly every step, all the time: the newcomer's state comes nevertheless."""
    world, _ = fleet(3, 4, sync_period=4)
    world.run(5.0)
    assert world.site is not None
    rounds = world.site.machine.rounds
    late = world.join("late", STEP_S, Link(latency_s=0.01))
    joined_at = world.now
    world.run_until(lambda: late.machine.step > 0, 5.0)
    assert world.now - joined_at < 2.0
    world.run(15.0)
    assert world.site.machine.rounds - rounds > 0.7 * 10.0 / STEP_S  # it was busy: a round in most steps
    assert merged(world, late)


def test_a_state_that_takes_five_rounds_to_come_is_joined_with() -> None:
    """B-27: at the rate of its link the whole state takes five rounds, while updates go on coming: it joins anyway."""
    fragments, period_s = 8, 24 * STEP_S
    world, _ = fleet(2, fragments)
    world.run(5.0)
    assert world.site is not None
    rounds = world.site.machine.rounds
    rate = fragments * NBYTES / (5 * period_s / fragments)
    slow = world.join("slow", STEP_S, Link(latency_s=0.05, down_bytes_s=rate))
    world.run_until(lambda: slow.machine.step > 0, 30.0)
    assert world.site.machine.rounds - rounds >= 5
    world.run_until(lambda: merged(world, slow), 30.0)
    steps = slow.machine.step
    world.run(world.now + 10.0)
    world.audit()
    assert slow.machine.step == pytest.approx(steps + 10.0 / STEP_S, abs=3)
    pairs = zip(world.site.body.states, slow.machine.duties, strict=True)
    assert max(state.stamp.version - duty.progress.seen.version for state, duty in pairs) <= 2


def test_a_death_in_the_middle_of_a_syncers_return_holds_nobody_up() -> None:
    """B-29: it dies when asked for what it alone seems to hold; another one holds the same, and it comes back."""
    world, actors = fleet(2, 3, sync_period=8, checkpoint_every_s=1000.0)
    world.run(20.0)
    first = world.site
    assert first is not None
    world.kill_syncer(first)
    world.run(21.0)
    recovery = world.start_syncer(first.disk).machine.reception.recovery
    assert recovery is not None
    world.run_until(lambda: bool(recovery.pending), 10.0)
    newest = max(recovery.pending.values())
    victim = next(actor for actor in actors if (actor.key, 0) in recovery.pending)
    world.kill(victim)
    died_at, again = world.now, world.join(victim.key.name)
    world.run_until(lambda: again.machine.step > 0, 30.0)
    assert world.now - died_at < world.params.gone_after_s + 1.0
    assert recovery.best[0] >= newest, "what the dead one was asked for came from the other"
    world.run(world.now + 5.0)
    assert merged(world, again)
    world.audit()


def test_a_push_that_takes_four_limits_is_late_and_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    """B-35: one contribution needs 20 s on its link, where 5 s without progress are the end: it is late, no more."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1024)  # a chunk a second
    world, fast = fleet(2, 1)
    slow = world.join("slow", STEP_S, Link(latency_s=0.05, up_bytes_s=NBYTES / (4 * CHUNKED.give_up_s)))
    world.run(90.0)
    world.audit()
    assert world.site is not None
    assert slow.machine.step == pytest.approx(90.0 / STEP_S, rel=0.05)
    assert merged(world, slow)
    assert slow.machine.counts["merged"] >= 3
    assert world.site.depot.inbox.counters.given_up == 0
    gaps = world.gaps(STEP_S, after_s=10.0)
    assert sum(gaps) / len(gaps) < 24 + 6  # nobody waits for it
    assert all(actor.machine.step == pytest.approx(90.0 / STEP_S, rel=0.05) for actor in fast)
