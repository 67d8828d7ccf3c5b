"""The arithmetic of a plan, beside the simulator that runs the real machines, and against sums made by hand."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from zdiloco import trace
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.errors import ConfigError
from zdiloco.goodput import figures_of, spread
from zdiloco.node.params import MergeParams, NetParams, RelayParams
from zdiloco.plan.advice import FULL
from zdiloco.plan.against import compare, measured_of
from zdiloco.plan.answer import Asked, plan
from zdiloco.plan.bandwidths import needs_of, table_of
from zdiloco.plan.bill import bill_of
from zdiloco.plan.flight import MERGE_VALUES_S, rounds_of
from zdiloco.plan.model import Model, of_parameters
from zdiloco.plan.params import GBIT, Fleet, Region, Settings, alike, region_of
from zdiloco.plan.road import PAYLOAD, road_bytes_s
from zdiloco.plan.traffic import Pace, all_flows, learner_flows, period_s, syncer_flows
from zdiloco.sim.links import Link
from zdiloco.sim.recorded import RecordedWorld
from zdiloco.sim.sizes import NUMEL

FRAGMENTS, STEP_S = 4, 0.5
FP32 = Settings(
    sync=SyncParams(sync_period=24), learner=LearnerParams(codec="fp32"), merge=MergeParams(publish_codec="fp32")
)
SMALL = Model(numels=(NUMEL,) * FRAGMENTS, tensors=FRAGMENTS)
TWELVE = of_parameters(12e9, 0)


def played(bytes_s: float, rtt_s: float, learners: int = 2) -> RecordedWorld:
    """Two learners, each with a link of its own, for a few periods."""
    world = RecordedWorld(FP32.sync, FRAGMENTS, exact=False)
    for number in range(learners):
        world.join(f"l{number}", STEP_S, Link(rtt_s / 2, up_bytes_s=bytes_s, down_bytes_s=bytes_s))
    world.run(120.0)
    return world


def links(bytes_s: float, rtt_s: float, learners: int = 2) -> Fleet:
    """The same, as a plan knows them."""
    one = Region(name="l", learners=1, step_s=STEP_S, gbit_s=bytes_s / GBIT, rtt_s=rtt_s)
    return Fleet(regions=tuple(alike(learners, one)))


def pace_of(bytes_s: float, rtt_s: float) -> Pace:
    return Pace(step_s=STEP_S, period_s=period_s(links(bytes_s, rtt_s), FP32))


def flights(world: RecordedWorld) -> list[float]:
    """Seconds from each call to each adoption of its version, once the run is under way."""
    called = {(record.fragment, record.version): record.t for record in world.of(trace.Call)}
    return [
        record.t - called[record.fragment, record.version]
        for record in world.of(trace.Adopted)
        if record.t > 30.0 and (record.fragment, record.version) in called
    ]


@pytest.mark.parametrize(("bytes_s", "rtt_s"), [(1e5, 0.1), (2e4, 0.05), (1e4, 0.4), (2e4, 1.0)])
def test_a_round_flies_as_long_as_in_the_simulator(bytes_s: float, rtt_s: float, say: Callable[[str], None]) -> None:
    found = flights(played(bytes_s, rtt_s))
    measured = sum(found) / len(found)
    planned = rounds_of(links(bytes_s, rtt_s), SMALL, FP32).flight_s
    say(f"{bytes_s:g} bytes/s, {rtt_s:g} s: a round flies {measured:.2f} s, planned {planned:.2f}")
    assert planned == pytest.approx(measured, rel=0.2)


def test_a_learner_sends_and_receives_as_in_the_simulator(say: Callable[[str], None]) -> None:
    world = played(1e5, 0.1)
    planned = [each.mean_bytes_s for each in learner_flows(SMALL, FP32, pace_of(1e5, 0.1))]
    before = [(actor.link.up.nbytes, actor.link.down.nbytes) for actor in world.actors.values()]
    world.run(world.now + 10 * 24 * STEP_S)
    after = [(actor.link.up.nbytes, actor.link.down.nbytes) for actor in world.actors.values()]
    for way in (0, 1):
        sent = sum(late[way] - early[way] for early, late in zip(before, after, strict=True))
        measured = sent / len(before) / (10 * 24 * STEP_S)
        say(f"{('up', 'down')[way]}: {measured:.0f} bytes/s, planned {planned[way]:.0f}")
        assert planned[way] == pytest.approx(measured, rel=0.05)


def test_bytes_are_those_of_the_codecs_and_relays_halve_them() -> None:
    """12 B in bf16 are 24 GB a turn for each learner; a relay takes one copy down for two, may send one bundle up."""
    fleet = Fleet(regions=tuple(alike(4, Region(name="r", gbit_s=5.0))))
    flows, settings = all_flows(fleet, TWELVE, Settings()), Settings()
    assert [flow.period_bytes for flow in flows["r0"]] == pytest.approx([48e9, 48e9], rel=1e-3)
    into, out = syncer_flows(fleet, TWELVE, settings)
    assert into.mean_bytes_s == pytest.approx(8 * 24e9 / 25, rel=1e-3), "H = 24 steps, and the one until the cut"
    assert out.mean_bytes_s == pytest.approx(into.mean_bytes_s, rel=1e-3)
    behind = Fleet(regions=tuple(replace(region, relay=True) for region in fleet.regions))
    assert [f.period_bytes for f in all_flows(behind, TWELVE, settings)["r0"]] == pytest.approx([48e9, 24e9], rel=1e-3)
    merged = Settings(relay=RelayParams(premerge=True, premerge_codec="bf16"))
    assert all_flows(behind, TWELVE, merged)["r0"][0].period_bytes == pytest.approx(24e9, rel=1e-3)
    dear = Settings(relay=RelayParams(premerge=True, premerge_codec="fp32"))
    assert all_flows(behind, TWELVE, dear)["r0"][0].period_bytes == pytest.approx(48e9, rel=1e-3), "it does not pay"
    four = Settings(learner=LearnerParams(codec="4bit"), merge=MergeParams(delta_codec="4bit"))
    each = (0.5 + 2 / 64) * 12e9
    assert [f.period_bytes for f in all_flows(behind, TWELVE, four)["r0"]] == pytest.approx([2 * each, each], rel=1e-3)


def test_windows_and_losses_bound_a_road_and_stripes_widen_it() -> None:
    long = Region(name="far", gbit_s=100.0, rtt_s=0.1)
    assert road_bytes_s(long, Settings(), 1) == pytest.approx(2**23 / 0.1)
    assert road_bytes_s(long, Settings(), 3) == pytest.approx(3 * 2**23 / 0.1)
    lossy, striped = replace(long, loss=0.01), Settings(net=NetParams(stripes=4))
    assert road_bytes_s(lossy, striped, 1) == pytest.approx(4 * road_bytes_s(lossy, Settings(), 1))
    assert road_bytes_s(replace(long, gbit_s=0.1), Settings(), 3) == pytest.approx(0.1 * GBIT * PAYLOAD)


@pytest.mark.parametrize(
    ("congestion", "loss", "mbit"),
    [("reno", 0.001, 4.47), ("cubic", 0.001, 4.47), ("cubic", 1e-5, 122.0), ("bbr", 0.001, 96.4)],
)
def test_a_loss_costs_what_the_congestion_control_makes_of_it(congestion: str, loss: float, mbit: float) -> None:
    """Sums made by hand for 100 Mbit/s and 100 ms: Reno 1.22 / sqrt(loss) segments, Cubic 1.054 (rtt / loss)^(3/4)
    where that is more and the link carries it, and with BBR only what is lost."""
    road = Region(name="far", gbit_s=1.0 if loss < 1e-4 else 0.1, rtt_s=0.1, loss=loss, congestion=congestion)
    roomy = Settings(net=NetParams(window_bytes=2**26))
    assert road_bytes_s(road, roomy, 1) * 8e-6 == pytest.approx(mbit, rel=0.01)


@pytest.mark.parametrize(
    ("parts", "load", "rtt_steps"),
    [(6, 0.9, 0.4), (6, 2.0, 0.4), (6, 4.0, 1.7), (12, 1.3, 1.7), (12, 2.0, 0.4), (6, 1.3, 7.3)],
)
def test_a_learner_whose_link_is_full_answers_as_late_as_in_the_simulator(
    parts: int, load: float, rtt_steps: float, say: Callable[[str], None]
) -> None:
    """Its contributions wait for each other, and calls come as its uplink takes turns; just below full they do not."""
    period, rtt_s = FP32.sync.sync_period, rtt_steps * STEP_S
    body_s = load * period * STEP_S / parts
    world, bytes_s = RecordedWorld(FP32.sync, parts, exact=False), 4 * NUMEL / body_s
    world.join("l", STEP_S, Link(rtt_s / 2, up_bytes_s=bytes_s, down_bytes_s=bytes_s))
    world.run(60 * parts * (body_s + 2 * rtt_s))  # a window that failed at the start is tried again after a while
    late = [record for record in world.told if record.t > world.now / 2]
    found = figures_of(late)
    answer = spread(r.answer_s for r in late if isinstance(r, trace.Arrived) and r.answer_s is not None)
    assert found.period_s
    assert answer
    one = Region(name="l", learners=1, step_s=STEP_S, gbit_s=bytes_s / GBIT / PAYLOAD, rtt_s=rtt_s)
    planned = rounds_of(Fleet(regions=(one,)), Model(numels=(NUMEL,) * parts, tensors=parts), FP32)
    say(f"answer {answer.mean:.2f} s, planned {planned.trips[0].answer_s:.2f}; "
        f"call to call {found.period_s.mean:.2f} s, planned {planned.apart_s:.2f}")  # fmt: skip
    assert planned.trips[0].answer_s == pytest.approx(answer.mean, rel=0.2)
    assert planned.apart_s == pytest.approx(found.period_s.mean, rel=0.2)


def test_a_far_region_gets_a_grace_window_or_is_late() -> None:
    """The window is as long as the last needs it where there is slack, and never longer than gamma allows."""
    near, far = Region(name="near", gbit_s=1.0, rtt_s=0.01), Region(name="far", gbit_s=0.2, rtt_s=0.2)
    fleet, model = Fleet(regions=(near, far)), of_parameters(1e8, 24)
    rounds = rounds_of(fleet, model, Settings())
    assert rounds.grace_s == pytest.approx(rounds.trips[1].answer_s - rounds.quorum_s)
    assert rounds.participants == 4
    hurried = rounds_of(fleet, model, Settings(sync=SyncParams(grace="off")))
    assert (hurried.grace_s, hurried.participants) == (0.0, 2)
    assert not hurried.trips[1].in_time


def test_the_table_and_the_bill_are_sums_that_can_be_made_by_hand() -> None:
    """Four regions send 2 * 3/4 * 24 GB in a step of data-parallel; busy for a half at exactly that rate."""
    fleet = Fleet(regions=tuple(alike(4, Region(name="r"))))
    needs = needs_of(fleet, TWELVE, Settings())
    assert needs[0].data_parallel == pytest.approx(288.0)
    assert needs[0].diloco == pytest.approx(12.0)
    row = table_of(fleet, TWELVE, Settings(), MERGE_VALUES_S, (288.0,))[0]
    assert row.data_parallel == pytest.approx(0.5)
    assert row.diloco == pytest.approx(24 / 25)
    bill = bill_of(fleet, TWELVE, Settings(), 0.05, 10)
    assert bill.ring_day == pytest.approx(4 * 36 * 86_400 * 0.05)
    assert bill.day == pytest.approx(16 * 24 / 25 * 86_400 * 0.05, rel=1e-3)
    assert bill.run == 10 * bill.day


def test_what_is_short_is_named_and_what_is_advised_suffices() -> None:
    """A link that is to carry more than it can; with the codec that is named it can."""
    fleet, model = Fleet(regions=(Region(name="r", learners=1, gbit_s=0.5, rtt_s=0.001),)), of_parameters(1e9, 24)
    found = plan(Asked(fleet=fleet, model=model, settings=Settings()))
    assert not found.keeps_pace
    line = next(line for line in found.advice if " up; " in line)
    assert "learner.codec = 'int8'" in line
    better = Settings(learner=LearnerParams(codec="int8"), merge=MergeParams(delta_codec="int8"))
    after = plan(Asked(fleet=fleet, model=model, settings=better))
    assert after.keeps_pace
    assert after.rounds.trips[0].up_load < FULL
    assert not [line for line in after.advice if "its link" in line]
    narrow = plan(Asked(fleet=replace(fleet, syncer_gbit_s=0.2), model=model, settings=better))
    assert not narrow.keeps_pace
    assert any(line.startswith("the syncer's link is to carry") for line in narrow.advice)


def test_a_plan_stands_beside_what_a_run_measured() -> None:
    world = played(2e4, 0.05)
    run = measured_of(world.told)
    assert run.learners == 2
    assert run.step_s == pytest.approx(STEP_S, rel=0.05)
    usual = Region(name="l", gbit_s=2 * 2e4 / GBIT, rtt_s=0.05)
    for row in compare(run, usual, FP32):
        if row.what != "grace":
            assert row.ratio == pytest.approx(1.0, rel=0.2), row
    with pytest.raises(ConfigError, match="no contribution yet"):
        measured_of([trace.Start(t=0.0)])
    wrong = trace.Start(t=0.0, sync={"min_quorum": 1.5})
    with pytest.raises(ConfigError, match=r"sync.min_quorum was 1.5: it cannot be"):
        measured_of([*world.told, wrong])


@pytest.mark.parametrize(
    ("text", "fault"),
    [("east:gbit=", "gbit is ''"), ("east:learners=1.5", "learners is '1.5'"), ("east:colour=red", "'colour=red'"),
     ("east:loss=0.9", "loss is 0.9"), (":gbit=1", "a region is named ''"), ("east:gbit=nan", "gbit"),
     ("east:learners=1e999", "learners is '1e999'")],
)  # fmt: skip
def test_a_region_that_cannot_be_is_named(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        region_of(text, Region(name="usual"))


@pytest.mark.parametrize("wrong", [{"learners": 10**400}, {"rtt_s": math.inf}, {"loss": math.nan}], ids=" ".join)
def test_a_number_beyond_all_bounds_is_named(wrong: dict[str, float]) -> None:
    (key,) = wrong
    with pytest.raises(ConfigError, match=f"region far: {key} is .* allowed is") as caught:
        replace(Region(name="far"), **wrong)
    assert len(str(caught.value)) < 200


def test_a_region_takes_what_it_leaves_out_from_the_usual_one() -> None:
    found = region_of("east:learners=3,rtt-ms=40,relay", Region(name="usual", gbit_s=5.0))
    assert found == Region(name="east", learners=3, rtt_s=0.04, relay=True, gbit_s=5.0)
