"""Stories of a whole fleet in virtual time: pace, slow links, deaths, lost messages. Steps are 50 ms, H = 24."""

import random
import statistics
from typing import Any

import pytest

from zdiloco import trace
from zdiloco.core.machine import SYNCER, Received
from zdiloco.core.messages import Call, Contribution, Hello, Report, Update, Welcome
from zdiloco.core.params import SyncParams
from zdiloco.sim.actors import Actor
from zdiloco.sim.learner_side import TOKENS
from zdiloco.sim.links import Link
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World
from zdiloco.units import MemberKey

STEP_S = 0.05
ROUND_TRIP_S = 0.2
NEVER_FEWER = 24 - 1e-3  # the syncer reckons steps between two reports by the average pace


def ages(world: World, actor: Actor, after_s: float) -> tuple[float, float]:
    """How old the work of a learner was when it was merged, at most, and the age of the oldest that is not."""
    merged, open_ = [0.0], [0.0]
    for work, at in actor.work_at.items():
        for fragment in range(world.num_fragments):
            if at >= after_s:
                when = world.merged_at.get((fragment, work))
                (open_.append(world.now - at) if when is None else merged.append(when - at))
    return max(merged), max(open_)


def fleet_of(count: int, num_fragments: int, **params: object) -> tuple[World, list[Actor]]:
    world = World(SyncParams(**params), num_fragments)
    return world, [world.join(f"l{index}", link=Link(latency_s=ROUND_TRIP_S / 2)) for index in range(count)]


@pytest.mark.parametrize("num_fragments", [1, pytest.param(24, marks=pytest.mark.slow)])
def test_a_learner_with_a_slow_uplink_holds_nobody_up_and_is_merged(num_fragments: int) -> None:
    world, fast = fleet_of(3, num_fragments)
    slow = world.join("slow", link=Link(latency_s=ROUND_TRIP_S / 2, up_bytes_s=NBYTES / 4.0))
    world.run(4.0 * num_fragments * 1.1 + 60)
    world.audit()
    gaps = world.gaps(STEP_S, after_s=5.0)
    assert min(gaps) >= NEVER_FEWER
    assert statistics.mean(gaps) <= 24 + 2 + ROUND_TRIP_S / STEP_S
    # Work done right after a cut waits for the turn of its fragment (P pushes of 4 s), then for its own push, and for
    # a round to close at both ends. While the link is being measured at the start, two more pushes may queue.
    round_s = 24 * STEP_S + ROUND_TRIP_S + 2 * STEP_S
    bound_s = 4.0 * num_fragments + (4.0 + ROUND_TRIP_S) + 2 * round_s
    assert ages(world, slow, after_s=30.0)[0] <= bound_s
    assert max(ages(world, slow, after_s=0.0)) <= bound_s + 2 * 4.0
    for actor in fast:
        assert actor.machine.step == pytest.approx(world.now / STEP_S, rel=0.05)
        assert ages(world, actor, after_s=0.0)[1] <= 2 * round_s


class Uneven(Link):
    """A near link: 5 to 35 ms for a contribution, one after the other, and now and then 100 to 200 ms."""

    def body_up(self, nbytes: int, now: float, rng: random.Random) -> float:
        took = rng.uniform(0.1, 0.2) if rng.random() < 0.02 else rng.uniform(0.005, 0.035)
        self.up.bytes_s = nbytes / took
        return super().body_up(nbytes, now, rng)


def test_near_a_syncer_hardly_a_round_goes_without_a_learner() -> None:
    """P = H: on average one fragment is called a step, often two at once, and a slow learner answers some of them."""
    world = World(SyncParams(), 24)
    world.join("fast", link=Uneven())
    world.join("slow", 5 * STEP_S, Uneven())
    world.run(5.0)
    told: list[trace.Record] = []
    world.on_record = told.append
    world.run(35.0)
    world.audit()
    rounds = [{part.name for part in record.members} for record in told if isinstance(record, trace.Merge)]
    assert len(rounds) > 500
    assert sum("fast" in members for members in rounds) >= 0.95 * len(rounds)
    assert sum("slow" in members for members in rounds) >= 0.1 * len(rounds)
    assert statistics.mean(world.gaps(STEP_S, after_s=5.0)) <= 24 + 2


def test_a_donor_whose_welcome_is_lost_says_hello_again() -> None:
    """It hears the beats of the run that it began, so it does not take the syncer for silent."""
    world = World(SyncParams(), 2)
    lost: list[Welcome] = []
    world.lose = lambda road, message: isinstance(message, Welcome) and not lost and not lost.append(message)
    only = world.join("only")
    world.run(5.0)
    assert lost
    assert only.machine.phase == "training"
    assert only.machine.step > 50


def test_what_the_uplink_has_no_room_for_is_declined_only_if_it_would_be_late() -> None:
    """Two fragments called at once on a link that takes a fifth of a period, then on one that takes two steps."""
    for up_s, declined in ((0.24, True), (0.09, False)):
        world = World(SyncParams(), 2)
        only = world.join("only", link=Link(up_bytes_s=NBYTES / up_s))
        world.run(10.0)
        world.run_until(lambda only=only: all(duty.state == "idle" for duty in only.machine.duties), 5.0)
        only.machine.outflow.uplink.window = 1
        for duty in only.machine.duties:
            call = Call(epoch=only.machine.epoch, fragment=duty.index, version=99)
            world.tell(only, Received(key=SYNCER, message=call))
            assert duty.state == "called"
        before = only.machine.counts.get("declined", 0)
        world.run(world.now + STEP_S)
        assert (only.machine.counts.get("declined", 0) > before) is declined


def test_the_other_learner_dies_while_a_contribution_of_the_survivor_is_held() -> None:
    world, (survivor, other) = fleet_of(2, 1)
    late = Link(latency_s=ROUND_TRIP_S / 2, up_bytes_s=NBYTES / 2.0)
    survivor.link = late
    key = survivor.key
    world.run_until(lambda: bool(world.site and world.site.machine.desk.fragments), 5.0)
    intake = world.site.machine.desk.fragments[0].intake
    world.run_until(lambda: key in intake.held and world.site.machine.desk.fragments[0].round is None, 60.0)
    world.kill(other)
    rounds = world.site.machine.rounds
    world.run_until(lambda: world.site.machine.rounds >= rounds + 5, 60.0)
    assert ages(world, survivor, after_s=0.0)[1] < 15.0


@pytest.mark.parametrize("num_fragments", [1, 6, 24])
def test_a_fleet_of_one(num_fragments: int) -> None:
    world, (only,) = fleet_of(1, num_fragments)
    world.run(40.0)
    world.audit()
    gaps = world.gaps(STEP_S, after_s=3.0)
    assert min(gaps) >= NEVER_FEWER
    assert statistics.mean(gaps) <= 24 + 2 + ROUND_TRIP_S / STEP_S
    assert world.site.machine.progress == 0.0
    assert only.machine.counts["merged"] == pytest.approx(num_fragments * 40.0 / (30 * STEP_S), rel=0.1)


def test_everybody_must_come_and_one_call_is_lost() -> None:
    world, actors = fleet_of(3, 2, min_quorum=3)
    lost: list[float] = []

    def lose(road: str, message: object) -> bool:
        if isinstance(message, Call) and road == "broadcast" and not lost and world.now > 5.0:
            lost.append(world.now)
            return True
        return False

    world.lose = lose
    world.run(5.0)
    before = world.site.machine.rounds
    world.run(30.0)
    assert lost
    gaps = world.gaps(STEP_S, after_s=3.0)
    assert statistics.mean(gaps) <= 24 + 2 + ROUND_TRIP_S / STEP_S + 1  # one beat of a second, once
    assert world.site.machine.rounds - before >= 2 * 25.0 / (30 * STEP_S) - 2
    assert all(actor.machine.counts["merged"] > 20 for actor in actors)


@pytest.mark.parametrize("num_fragments", [1, pytest.param(24, marks=pytest.mark.slow)])
def test_reports_every_two_seconds(num_fragments: int) -> None:
    world, _ = fleet_of(3, num_fragments, report_every_s=2.0)
    world.run(40.0)
    gaps = world.gaps(STEP_S, after_s=5.0)
    assert min(gaps) >= 23.0  # steps between reports are estimated
    assert statistics.mean(gaps) <= 24 + 2 + ROUND_TRIP_S / STEP_S


def test_a_learner_that_missed_updates_and_a_late_joiner_hold_the_published_values() -> None:
    world, (first, second) = fleet_of(2, 3)
    deaf = True
    world.lose = lambda road, message: deaf and road == "broadcast" and isinstance(message, Update)
    world.run(20.0)
    assert second.machine.counts["repaired"] > 0
    deaf = False
    joiner = world.join("late", link=Link(latency_s=ROUND_TRIP_S / 2))
    world.run(30.0)
    for actor in (first, second, joiner):
        for fragment in range(3):
            stamp = actor.machine.duties[fragment].progress.seen
            assert world.site.body.states[fragment].stamp.version - stamp.version <= 1
            assert actor.body.reference[fragment] == world.history[fragment, stamp].value
    world.audit()


def test_a_dead_learner_leaves_and_the_rest_goes_on() -> None:
    world, (first, second) = fleet_of(2, 2)
    world.run(10.0)
    world.kill(second)
    world.run(30.0)
    assert world.site.machine.fleet.members["l1"].state == "gone"
    gaps = world.gaps(STEP_S, after_s=18.0)
    assert statistics.mean(gaps) <= 24 + 2 + ROUND_TRIP_S / STEP_S
    again = world.join("l1", link=Link(latency_s=ROUND_TRIP_S / 2))
    world.run(50.0)
    assert again.machine.counts["merged"] > 5
    assert first.machine.phase == "training"


def test_a_quorum_that_is_lost_is_waited_for_and_said() -> None:
    world, (_, second) = fleet_of(2, 2, min_quorum=2, park_after_s=4.0)
    world.run(10.0)
    world.kill(second)
    world.run(30.0)
    rounds = world.site.machine.rounds
    world.run(40.0)
    assert world.site.machine.rounds == rounds
    assert any("1 of 2" in desk.why for desk in world.site.machine.desk)
    world.join("l1", link=Link(latency_s=ROUND_TRIP_S / 2))
    world.run(60.0)
    assert world.site.machine.rounds > rounds + 10


def test_a_lost_quorum_may_degrade() -> None:
    world, (_, second) = fleet_of(2, 2, min_quorum=2, on_lost_quorum="degrade")
    world.run(10.0)
    world.kill(second)
    world.run(30.0)
    rounds = world.site.machine.rounds
    world.run(40.0)
    assert world.site.machine.rounds > rounds + 10


def test_the_target_ends_the_run_and_the_books_balance() -> None:
    world = World(SyncParams(), 2, target_tokens=3 * 200 * TOKENS)
    for index in range(3):
        world.join(f"l{index}", link=Link(latency_s=ROUND_TRIP_S / 2))
    world.run_until(lambda: world.site is None, 120.0)
    assert len(world.stops) == 4
    assert world.stops[-1].startswith("syncer: the target is reached; everybody has left")


def test_a_syncer_that_comes_back_goes_on_from_disk_and_fleet() -> None:
    world, actors = fleet_of(3, 4, checkpoint_every_s=3.0)
    world.run(20.0)
    site = world.site
    versions = [state.stamp.version for state in site.body.states]
    world.kill_syncer(site)
    world.run(35.0)
    world.start_syncer(site.disk)
    assert [s.stamp.version for s in site.disk.states] < versions
    world.run(60.0)
    world.audit()
    assert world.site.machine.epoch.counter == 2
    assert [s.stamp.version for s in world.site.body.states] > versions
    for actor in actors:
        assert max(ages(world, actor, after_s=0.0)) < 25.0  # what was done while it was away is merged


def test_late_and_repeated_offers_to_a_new_syncer_hasten_nothing() -> None:
    """They come before any report and tell of cuts long ago; a pace is between two reports, and so is the period."""
    world, actors = fleet_of(2, 2, recover_wait_s=1.0)
    old: dict[MemberKey, Contribution] = {}
    deaf = [False]

    def lose(road: str, message: Any) -> bool:
        for actor in actors:
            if isinstance(message, Contribution) and actor.machine.duties[message.fragment].offer == message:
                old.setdefault(actor.key, message)
        return deaf[0] and isinstance(message, Report)

    world.lose = lose
    world.run(10.0)
    world.kill_syncer(world.site)
    world.start_syncer(world.sites[0].disk)
    for tenth in range(100):
        deaf[0] = tenth < 80  # the reports of the first seconds are lost, but not the offers
        world.run(10.0 + tenth / 10)
        for key, message in old.items():
            world.tell_syncer(world.site, Received(key=key, message=message))
        for member in world.site.machine.fleet.counted():
            assert member.pace.value is None or member.pace.value >= 0.95 * STEP_S
    world.lose = lambda road, message: False
    world.run(30.0)
    world.audit()
    assert len(old) == 2
    assert min(world.gaps(STEP_S, after_s=10.0)) >= NEVER_FEWER


def test_a_newer_process_of_the_same_name_wins() -> None:
    world, (old, _) = fleet_of(2, 2)
    world.run(5.0)
    new = world.join("l0", link=Link(latency_s=ROUND_TRIP_S / 2))
    world.run(10.0)
    assert not old.alive
    assert any(stop.startswith("l0: a newer process named 'l0'") for stop in world.stops)
    assert new.machine.phase == "training"


def test_a_donor_that_dies_half_way_is_replaced() -> None:
    world = World(SyncParams(), 3)
    first, second = world.join("a"), world.join("b")
    world.run_until(lambda: bool(world.site.machine.reception.donation.taken), 5.0)
    world.kill(first)
    world.run(30.0)
    assert second.machine.phase == "training"


def test_without_a_syncer_a_learner_calls_again_ever_less_often() -> None:
    world = World(SyncParams(), 1)
    world.kill_syncer(world.site)
    hellos: list[float] = []
    world.lose = lambda road, message: (isinstance(message, Hello) and hellos.append(world.now)) or False
    world.join("a")
    world.run(60.0)
    assert 10 <= len(hellos) <= 20
    assert sum("waits" in note or "silent" in note for note in world.notes) <= 1


def test_a_learner_over_its_unmerged_limit_drops_and_goes_on() -> None:
    world, _ = fleet_of(2, 2)
    slow = world.join("slow", link=Link(latency_s=ROUND_TRIP_S / 2, up_bytes_s=NBYTES / 9.0), max_unmerged_steps=100)
    world.run(60.0)
    world.audit()
    assert slow.machine.counts["dropped"] > 0


def test_lost_reports_do_not_stop_anything() -> None:
    world, actors = fleet_of(2, 2)
    world.lose = lambda road, message: isinstance(message, Report) and world.rng.random() < 0.5
    world.run(30.0)
    assert all(actor.machine.counts["merged"] > 20 for actor in actors)
