"""What users of other trainers lived through, in virtual time (docs/cases.md). Steps are 50 ms, H = 24 unless said."""

import statistics
from typing import Any

import pytest

from tests.core.test_fleet import ROUND_TRIP_S, STEP_S, ages, fleet_of
from zdiloco.core.membership import MemberState
from zdiloco.core.messages import Pull
from zdiloco.core.params import SyncParams
from zdiloco.core.status import status
from zdiloco.sim.actors import Actor
from zdiloco.sim.learner_side import TOKENS
from zdiloco.sim.links import Link
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World


def syncer_of(world: World) -> Any:
    assert world.site is not None
    return world.site.machine


def test_a_dead_member_is_no_member_and_a_newcomer_makes_the_quorum() -> None:
    """A-1: K = 2; one of two is killed, another name comes: rounds go on, and the same syncer serves them."""
    world, (_, victim) = fleet_of(2, 2, min_quorum=2)
    world.run(10.0)
    site, rounds = world.site, syncer_of(world).rounds
    world.kill(victim)
    newcomer = world.join("another", link=Link(latency_s=ROUND_TRIP_S / 2))
    world.run(16.5)
    assert syncer_of(world).fleet.members["l1"].state is MemberState.GONE
    world.run(40.0)
    assert world.site is site
    assert syncer_of(world).rounds > rounds + 10
    assert newcomer.machine.counts["merged"] > 5


def test_after_a_death_is_known_no_round_waits_for_the_dead() -> None:
    """A-2: four learners, K = 3, one is killed: rounds do not pay a grace window each from then on."""
    world, actors = fleet_of(4, 2, min_quorum=3)
    world.run(20.0)
    before = statistics.mean(world.gaps(STEP_S, after_s=5.0))
    world.kill(actors[3])
    world.run(20.0 + 7.0)
    world.calls.clear()
    world.run(60.0)
    after = world.gaps(STEP_S, after_s=0.0)
    assert statistics.mean(after) <= before + 1  # another third fastest, that is all
    assert statistics.mean(after) <= 24 + 2 + ROUND_TRIP_S / STEP_S


def test_half_a_contribution_of_the_dead_costs_nothing() -> None:
    """A-3: killed in the middle of a push: what had come is discarded, its memory is free, the survivors go on."""
    world, survivors = fleet_of(2, 2)
    victim = world.join("victim", link=Link(latency_s=ROUND_TRIP_S / 2, up_bytes_s=NBYTES / 30.0))
    syncer = syncer_of(world)
    world.run_until(lambda: bool(victim.sending), 20.0)
    steps = [actor.machine.step for actor in survivors]
    died_at = world.now
    world.kill(victim)
    world.run(died_at + 60.0)
    assert all(entry.key != victim.key for state in world.history.values() for entry in state.map)
    for actor, step in zip(survivors, steps, strict=True):
        assert actor.machine.step == pytest.approx(step + 60.0 / STEP_S, abs=2)
    world.run_until(lambda: not any(desk.round or desk.intake.held for desk in syncer.desk), 5.0)
    assert syncer.intakes.used_bytes == 0


def test_a_newcomer_takes_the_fragments_in_the_order_of_the_syncer() -> None:
    """A-7: nothing of a newcomer's own says which fragment is next: it answers what is called, and every fragment."""
    world, _ = fleet_of(2, 6, min_quorum=2)
    world.run(23.0)
    late = world.join("late", link=Link(latency_s=ROUND_TRIP_S / 2))
    world.run(40.0)
    order = [fragment for at, fragment, _ in world.calls if at > 30.0]
    turns = [order[at : at + 6] for at in range(0, len(order) - 5, 6)]
    assert len(turns) > 5
    assert all(len(set(turn)) == 6 for turn in turns)
    assert all(any(entry.key == late.key for entry in state.map) for state in world.site.body.states)


@pytest.mark.slow
def test_in_a_steady_state_nobody_asks_for_whole_values() -> None:
    """A-9: three learners; after their joins not one whole state is asked for."""
    world, _ = fleet_of(3, 4)
    pulls: list[float] = []
    send = world.up

    def up(actor: Actor, message: Any) -> None:
        if isinstance(message, Pull):
            pulls.append(world.now)
        send(actor, message)

    world.up = up
    world.run(120.0)
    assert syncer_of(world).rounds > 200
    assert all(at < 3.0 for at in pulls)


def test_one_twenty_times_slower_joins_and_is_merged() -> None:
    """A-11: it joins while the fast ones merge on and on, and its tokens count."""
    world, (fast, _) = fleet_of(2, 2)
    world.run(10.0)
    slow = world.join("slow", step_s=20 * STEP_S, link=Link(latency_s=ROUND_TRIP_S / 2))
    world.run(120.0)
    assert slow.machine.counts["merged"] > 2
    assert slow.machine.step == pytest.approx(110.0 / (20 * STEP_S), rel=0.1)
    assert fast.machine.step == pytest.approx(120.0 / STEP_S, rel=0.05)
    gaps = world.gaps(STEP_S, after_s=30.0)
    assert statistics.mean(gaps) <= 24 + 2 + ROUND_TRIP_S / STEP_S + 20 / 2  # a grace window of its step, at most


def test_who_is_ahead_of_a_syncer_that_went_back_is_not_idle() -> None:
    """A-13: a learner holds versions that a syncer started from an old disk, without the fleet's answers, never had."""
    world, actors = fleet_of(2, 2, checkpoint_every_s=1e6, recover_wait_s=0.0)
    world.run(20.0)
    site = world.site
    assert site is not None
    ahead = [duty.progress.seen.version for duty in actors[0].machine.duties]
    world.kill_syncer(site)
    world.run(30.0)
    world.start_syncer(site.disk)
    world.run(31.0)
    assert all(state.stamp.version < version for state, version in zip(world.site.body.states, ahead, strict=True))
    world.run(60.0)
    world.audit()
    for actor in actors:
        assert actor.machine.counts["rolled_back"] > 0
        assert max(ages(world, actor, after_s=30.0)) < 10.0  # what it makes since is merged as ever


@pytest.mark.slow
def test_sixty_four_push_at_once_also_while_a_checkpoint_is_written() -> None:
    """A-15: all of one moment, for K = 64, with a checkpoint after every round."""
    world = World(SyncParams(min_quorum=64, checkpoint_every_s=0.01), 2)
    for index in range(64):
        world.join(f"l{index:02}", link=Link(latency_s=ROUND_TRIP_S / 2))
    world.run(20.0)
    world.audit()
    assert syncer_of(world).contributions == 64 * syncer_of(world).rounds > 64 * 15
    assert all(desk.stable.version > 5 for desk in syncer_of(world).desk)


def test_a_syncer_without_learners_says_so_and_serves_the_next() -> None:
    """A-21: every learner dies; the syncer idles, tells what is missing, and goes on with whoever comes."""
    world, actors = fleet_of(3, 2)
    world.run(10.0)
    rounds = syncer_of(world).rounds
    for actor in actors:
        world.kill(actor)
    world.run(60.0)
    found = status(syncer_of(world), world.now)
    assert (found["live"], {each["state"] for each in found["learners"]}) == (0, {"gone"})
    assert all("0 of 1" in each["why"] or each["round"] for each in found["fragments"])
    assert sum(" is gone (silent for" in note for note in world.notes) == 3
    world.join("next")
    world.run(80.0)
    assert syncer_of(world).rounds > rounds + 10


def test_two_seconds_without_a_word_are_not_death() -> None:
    """A-23: a learner under full load, whose every word comes 2 s late in bursts."""
    world, actors = fleet_of(2, 2)
    send = world.up

    def up(actor: Actor, message: Any) -> None:
        if actor is actors[1]:
            pause = 2.0 - world.now % 2.0
            world.at(pause, lambda: send(actor, message))
        else:
            send(actor, message)

    world.up = up
    world.run(60.0)
    assert not [note for note in world.notes if "is suspect" in note or "is gone" in note]
    assert actors[1].machine.counts["merged"] > 10


@pytest.mark.parametrize("sync_period", [1, 4])
def test_a_very_small_period_is_kept_and_the_slow_take_part(sync_period: int) -> None:
    """C-47: rounds never come more often than the period says, however fast the link; one five times slower is in."""
    world = World(SyncParams(sync_period=sync_period), 1)
    world.join("fast", link=Link(latency_s=0.0001, up_bytes_s=NBYTES / 0.0001))
    slow = world.join("slow", step_s=5 * STEP_S, link=Link(latency_s=0.0001, up_bytes_s=NBYTES / 0.0001))
    world.run(60.0)
    gaps = world.gaps(STEP_S, after_s=5.0)
    assert min(gaps) >= sync_period - 1e-6
    assert slow.machine.counts["merged"] > 60.0 / (5 * STEP_S * max(5, sync_period)) / 4
    assert ages(world, slow, after_s=5.0)[0] < 5.0


def test_a_tiny_rest_of_the_fleet_takes_no_outer_steps() -> None:
    """C-51: seven of eight are gone: below K nothing is merged, and the syncer says what it waits for."""
    world, actors = fleet_of(8, 1, min_quorum=4, drain_s=5.0)
    syncer = syncer_of(world)
    world.run(20.0)
    for actor in actors[1:]:
        world.kill(actor)
    world.run(60.0)
    tail = [merge for merge in world.site.body.merges if len(merge.parts) < 4]
    assert tail == []  # below K nothing is merged at all, unless on_lost_quorum = "degrade"
    assert any("1 of 4" in desk.why or (desk.round and "1 of 4" in desk.round.why) for desk in syncer.desk)


@pytest.mark.parametrize("min_quorum", [1, 4])
def test_the_last_merges_of_a_rest_are_shorter_and_marked(min_quorum: int) -> None:
    """C-51: when the target is reached seven of eight die: what is merged of the last one counts in full, but its
    step is shorter, and learner, log, status and reason of the round say so."""
    params = SyncParams(min_quorum=min_quorum, drain_s=60.0, park_after_s=5.0)
    world = World(params, 2, target_tokens=8 * 400 * TOKENS)
    actors = [world.join(f"l{index}", link=Link(latency_s=0.1 if index else 0.01)) for index in range(8)]
    syncer = syncer_of(world)
    body = world.site.body
    world.run(15.0)
    assert syncer.desk.fragments[0].turnout.usual.value > 3  # with K = 1 the others are often late
    world.run_until(lambda: any(desk.round and len(desk.intake.held) == 1 for desk in syncer.desk), 5.0)
    syncer.target_tokens = int(syncer.merged_tokens)  # now, while the first is in
    for actor in actors[1:]:
        world.kill(actor)
    before, thin = len(body.merges), status(syncer, world.now)["thin_rounds"]
    world.run_until(lambda: bool(world.stops), 120.0)
    tail = list(body.merges)[before:]
    assert tail
    for merge in tail:
        assert len(merge.parts) == len(merge.merged) < 4
        assert all(0.35 <= part.clip < 0.71 for part in merge.parts)
        assert all(member.tokens > 0 for member in merge.merged)
    assert actors[0].machine.counts["remark: tail"] == len(tail)
    found = status(syncer, world.now)
    assert found["thin_rounds"] - thin == len(tail)
    assert found["remarks"]["tail"] == sum(len(merge.parts) for merge in tail)
    assert any("usual, at the end of the run: scaled by" in note for note in world.notes)
