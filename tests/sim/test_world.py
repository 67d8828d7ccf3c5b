"""The virtual world itself: the same seed gives the same records, and links, paces and signals do what they say."""

import itertools
import random
import statistics
from typing import Any

import msgspec
import pytest

from zdiloco import trace
from zdiloco.agenda import Agenda, Broken
from zdiloco.core.messages import Report
from zdiloco.core.params import SyncParams
from zdiloco.sim.chaos import chaos
from zdiloco.sim.fault_names import OF_RELAYS, OF_SYNCER, FaultName
from zdiloco.sim.links import Link, Passage
from zdiloco.sim.play import Story
from zdiloco.sim.scenario import Fault, LearnerSpec, RelaySpec, Scenario
from zdiloco.sim.speeds import Speed
from zdiloco.sim.world import World


def tape(seed: int) -> bytes:
    """The full trace of one chaos, with every event and every step, as lines."""
    lines: list[bytes] = []
    story = Story(chaos(seed), on_record=lambda record: lines.append(trace.line_of(record)))
    story.world.record_steps = story.world.record_events = True
    story.play()
    return b"".join(lines)


def test_the_same_seed_gives_the_same_trace_byte_for_byte() -> None:
    once = tape(3)
    assert once == tape(3)
    assert once != tape(4)
    records = [trace.record_of(msgspec.json.decode(line)) for line in once.splitlines()]
    assert [record.t for record in records] == sorted(record.t for record in records)
    missing = set(trace.KINDS) - {str(record.__struct_config__.tag) for record in records}
    of_others = {"stopped", "continued", "phase", "adapted"}
    assert missing == of_others, "faults that this seed has not; what only a real syncer, or one that adapts, tells"


def two(**kinds: Any) -> tuple[World, list[trace.Record]]:
    records: list[trace.Record] = []
    world = World(SyncParams(sync_period=8, min_quorum=2), 2, on_record=records.append, **kinds)
    for name in ("a", "b"):
        world.join(name, 0.1, Link(0.02))
    return world, records


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_arrive_with_what_was_sent_whichever_way_they_travel(chunked: bool) -> None:
    world, records = two(chunked=chunked)
    world.run(20.0)
    world.audit()
    merges = [record for record in records if isinstance(record, trace.Merge)]
    arrived = [record for record in records if isinstance(record, trace.Arrived)]
    assert len(merges) >= 2 * 15
    assert all(record.tokens > 0 for record in merges)
    assert all(0.04 < record.answer_s < 0.5 for record in arrived[4:])
    held = [actor.link.up.nbytes for actor in world.actors.values()]
    assert all(20_000 * len(arrived) / 2 < nbytes < 21_500 * len(arrived) / 2 + 150_000 for nbytes in held)


def test_lost_chunks_are_asked_for_again_and_nothing_else_is_lost() -> None:
    world, _ = two(chunked=True)
    chance = random.Random(1)
    world.lose = lambda road, what: road == "chunk" and chance.random() < 0.1
    world.run(60.0)
    assert sum(actor.depot.inbox.counters.asked_again for actor in world.actors.values()) > 5
    assert world.sites[0].depot.inbox.counters.asked_again > 5
    assert all(actor.machine.counts["merged"] > 40 for actor in world.actors.values())
    world.audit()


def test_what_waits_for_a_stopped_process_is_heard_before_a_deadline_is_judged() -> None:
    world, _ = two()
    world.run(10.0)
    site = world.site
    assert site is not None
    world.stop(site)
    world.run(30.0)
    assert site.waiting
    world.resume(site)
    assert {str(member.state) for member in site.machine.fleet} == {"live"}, "none is blamed for its stall"
    world.run(40.0)
    assert all(actor.machine.phase == "training" for actor in world.actors.values())


def test_a_stopped_learner_makes_no_step_and_goes_on() -> None:
    world, _ = two()
    world.run(10.0)
    actor = next(iter(world.actors.values()))
    steps = actor.steps
    world.stop(actor)
    world.run(30.0)
    assert actor.steps == steps
    world.resume(actor)
    world.run(60.0)
    assert actor.steps == pytest.approx(steps + 300, abs=5)
    assert actor.machine.phase == "training"


def test_time_that_stands_still_is_found() -> None:
    agenda = Agenda()

    def again() -> None:
        agenda.at(0.0, again)

    again()
    with pytest.raises(Broken, match="time stands still"):
        agenda.run(1.0)


# ---- links and paces


def test_bodies_queue_on_their_road_and_words_pass_them() -> None:
    rng, link = random.Random(1), Link(0.1, up_bytes_s=1000.0)
    assert link.body_up(500, 0.0, rng) == pytest.approx(0.6)
    assert link.body_up(500, 0.0, rng) == pytest.approx(1.1)
    assert link.up.word(10, 0.0, rng) == pytest.approx(0.11)
    assert link.up.nbytes == 1010
    assert link.body_down(500, 0.0, rng) < 0.2, "the other way is a road of its own"


def test_a_region_shares_its_uplink() -> None:
    world = World(SyncParams(), 1)
    trunk, rng = world.trunk("west", up_bytes_s=1000.0), random.Random(1)
    first, second = (Link(0.1, trunk=trunk) for _ in range(2))
    assert first.body_up(1000, 0.0, rng) == pytest.approx(1.1)
    assert second.body_up(1000, 0.0, rng) == pytest.approx(2.1)
    assert world.trunk("west") is trunk


def test_jitter_reorders_nothing_on_one_road() -> None:
    rng, link = random.Random(1), Link(0.1, 0.5)
    times = [link.up.word(10, 0.01 * index, rng) for index in range(200)]
    assert times == sorted(times)
    assert statistics.pstdev(later - earlier for earlier, later in itertools.pairwise(times)) > 0.01


def test_a_road_that_holds_back_delivers_all_at_once_and_one_that_is_cut_nothing() -> None:
    world = World(SyncParams(), 1)
    link, heard = Link(0.1), []
    for passage, name in ((Passage.OPEN, "open"), (Passage.CUT, "cut"), (Passage.HELD, "held")):
        link.up.passage = passage
        world.send(link.up, 10, False, lambda name=name: heard.append((name, world.now)))
    world.run(5.0)
    assert [name for name, _ in heard] == ["open"]
    world.open_road(link.up)
    world.run(6.0)
    assert heard[1] == ("held", pytest.approx(5.1))


@pytest.mark.parametrize(
    ("speed", "mean", "spread"),
    [
        (Speed(0.2), (0.2, 0.2), (0.0, 1e-9)),
        (Speed(0.2, jitter=0.2), (0.19, 0.21), (0.03, 0.05)),
        (Speed(0.2, drift=0.05), (0.07, 0.6), (0.01, 0.3)),
        (Speed(0.2, stalls=0.1, stall_s=1.0), (0.25, 0.35), (0.2, 0.4)),
        (Speed(0.2, slow=4.0), (0.8, 0.8), (0.0, 1e-9)),
    ],
    ids=["constant", "jittering", "drifting", "stalling", "slowed"],
)
def test_steps_take_as_long_as_the_pace_says(speed: Speed, mean: Any, spread: Any) -> None:
    rng = random.Random(1)
    steps = [speed.next_s(rng) for _ in range(2000)]
    assert mean[0] - 1e-9 <= statistics.mean(steps) <= mean[1] + 1e-9
    assert spread[0] <= statistics.pstdev(steps) <= spread[1]
    assert min(steps) > 0


# ---- faults


FLEET = tuple(
    LearnerSpec(name=f"l{index}", step_s=0.1, stripes=1 + index, region="east" if index % 2 else "west")
    for index in range(4)
)


def who_of(name: FaultName) -> str:
    """Whom a fault hits here."""
    if name in OF_RELAYS or name is FaultName.HALF_GONE:
        return "west"
    return "" if name in OF_SYNCER else "east" if name is FaultName.CUT_REGION else "l1"


@pytest.mark.slow
@pytest.mark.parametrize("name", FaultName)
def test_each_fault_alone_is_survived(name: FaultName) -> None:
    faults = tuple(Fault(at_s=at, name=name, who=who_of(name), for_s=2.0) for at in (5.0, 5.31, 9.0))
    scenario = Scenario(
        seconds=14.0, learners=FLEET, faults=faults, sync={"sync_period": 5, "recover_wait_s": 0.5, "min_quorum": 2},
        relays=(RelaySpec(name="west"),) if name in OF_RELAYS else (),
    )  # fmt: skip
    story = Story(scenario)
    outcome = story.play()
    assert outcome.seen[f"fault: {name}"] >= 1
    assert outcome.seen["rounds"] > 20


def test_reports_are_heard_only_where_the_road_is_open() -> None:
    """A link that is cut one way: the syncer hears a learner that hears nothing."""
    world, _ = two()
    heard: list[str] = []
    tell = world.tell_syncer

    def listen(site: Any, event: Any) -> None:
        if isinstance(getattr(event, "message", None), Report):
            heard.append(event.key.name)
        tell(site, event)

    world.tell_syncer = listen
    a, b = world.actors.values()
    world.run(5.0)
    a.link.down.passage = b.link.up.passage = Passage.CUT
    world.run(6.0)
    heard.clear()
    world.run(9.0)
    assert set(heard) == {"a"}
