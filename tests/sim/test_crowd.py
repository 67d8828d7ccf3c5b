"""A crowd of learners around the real syncer machine: right whoever they are, and what an event costs when many."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.core.dumb_desk import Beside
from zdiloco.core.machine import SyncerEvent
from zdiloco.core.params import SyncParams
from zdiloco.sim import costs
from zdiloco.sim.crowd import Crowd, CrowdParams

GRUDGING = SyncParams(min_quorum=4, sync_period=6, report_every_s=0.5, park_after_s=3.0, budget_bytes=2**16)
CASES: dict[str, tuple[CrowdParams, SyncParams]] = {
    "one": (CrowdParams(learners=1, fragments=2), SyncParams(sync_period=4)),
    "few, K = 1": (CrowdParams(learners=9, declines=0.2, leaves=0.02), SyncParams(sync_period=6)),
    "few, K = 8 of 9": (
        CrowdParams(learners=9, spread=0.6, leaves=0.01),
        SyncParams(min_quorum=8, sync_period=6, on_lost_quorum="degrade"),
    ),
    "slow uploads": (CrowdParams(learners=12, upload_s=3.0, step_s=0.3, leaves=0.01), SyncParams(sync_period=6)),
    "no room": (CrowdParams(learners=12, body_bytes=(1000, 4000, 7000), upload_s=1.0, leaves=0.01), GRUDGING),
    "offenders": (CrowdParams(learners=6, offends=0.05, leaves=0.01), SyncParams(min_quorum=4, sync_period=6)),
    "machines": (CrowdParams(learners=8, machines=True, leaves=0.01), SyncParams(min_quorum=2, sync_period=6)),
}
"""Fleets that differ in all that the syncer adds up over its members."""
SAMPLE = SyncParams(min_quorum=1, sync_period=6, report_every_s=1.0)


def watched(params: CrowdParams, sync: SyncParams, until: float) -> tuple[Crowd, Beside]:
    """A crowd whose syncer is compared with dumb sums before each event, which is after the one before."""
    looks: list[Beside] = []

    def listen(now: float, event: SyncerEvent) -> None:
        if looks:
            looks[0].look(last[0])
        last[0] = now

    last = [0.0]
    crowd = Crowd(params, sync, listen)
    looks.append(Beside(crowd.machine))
    crowd.run(until)
    return crowd, looks[0]


@pytest.mark.slow
def test_the_sums_agree_in_every_fleet() -> None:
    seen: Counter[str] = Counter()
    for name, (params, sync) in CASES.items():
        crowd, beside = watched(params, sync, 25.0)
        assert crowd.rounds > 3, name
        seen.update(beside.seen)
        seen["replaced or late"] += crowd.machine.intakes.replaced + crowd.machine.intakes.late
        seen["parked"] += crowd.machine.desk.parked
    for what in (
        "absent", "held", "fresh", "slowest", "in quarantine", "due, without a slot", "due later, for sure", "no room",
        "replaced or late",
    ):  # fmt: skip
        assert seen[what] > 0, (what, seen)


def test_the_same_seed_is_the_same_crowd_and_a_tape_of_it_is_the_same_syncer() -> None:
    params = CrowdParams(learners=5, machines=True, leaves=0.02)
    tape, crowd = costs.record(params, SAMPLE, 15.0)
    assert costs.record(params, SAMPLE, 15.0)[0] == tape
    again = costs.play(tape, SAMPLE)
    assert [desk.stamp for desk in again.desk] == [desk.stamp for desk in crowd.machine.desk]
    assert sum(desk.stamp.version for desk in again.desk) > 5
    assert costs.record(CrowdParams(learners=5, machines=True, leaves=0.02, seed=1), SAMPLE, 15.0)[0] != tape


def test_every_learner_of_a_crowd_is_merged() -> None:
    for machines in (False, True):
        crowd = Crowd(CrowdParams(learners=20, machines=machines, leaves=0.0), SAMPLE)
        crowd.run(20.0)
        for map_ in crowd.maps:
            assert {key.name for key in map_} == set(crowd.learners)


def sync_for(learners: int, share: float) -> SyncParams:
    return SyncParams(min_quorum=max(1, int(share * learners)), sync_period=6, report_every_s=1.0)


def per_event_us(learners: int, sync: SyncParams, until: float) -> float:
    tape, crowd = costs.record(CrowdParams(learners=learners), sync, until)
    assert crowd.parts > 2 * learners
    return costs.per_event_us(tape, sync)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", [0.0, 0.9], ids=["K = 1", "K = 90 %"])
def test_an_event_costs_hardly_more_among_sixteen_times_as_many(
    share: float, say: Callable[[str], None]
) -> None:
    """A cost linear in the number of learners would give 16; what is allowed for is caches and longer searches."""
    found = {learners: per_event_us(learners, sync_for(learners, share), 10.0) for learners in (125, 2000)}
    ratio = found[2000] / found[125]
    say(f"{found[125]:.0f} us per event among 125 learners, {found[2000]:.0f} among 2000: {ratio:.2f} times")
    assert ratio <= 3.0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", [0.0, 0.9], ids=["K = 1", "K = 90 %"])
def test_figures_of_ten_thousand_real_machines(share: float, say: Callable[[str], None]) -> None:
    """Every learner of them is a real learner machine; each gets merged."""
    for learners in (100, 1000, 10_000):
        sync = sync_for(learners, share)
        params = CrowdParams(learners=learners, machines=True)
        tape, crowd = costs.record(params, sync, 15.0)
        kinds, mean = costs.by_kind(tape, sync), costs.per_event_us(tape, sync, 1)
        rows = [f"  {kind:13s} {cost.count:8d} x {cost.mean_us:7.1f} us" for kind, cost in sorted(kinds.items())]
        where = [f"  {part:6.1%}  {name}" for name, part in costs.by_function(tape, sync)]
        head = f"{learners} learners, K = {sync.min_quorum}: {len(tape)} events, {mean:.1f} us of CPU each, "
        core = f"{mean * len(tape) / 15e6:.2f} cores; {costs.bytes_held(tape, sync) / learners:.0f} bytes per learner; "
        done = f"{crowd.rounds} rounds of {crowd.parts / crowd.rounds:.0f} contributions"
        for line in (head + core + done, *rows, *where):
            say(line)
        assert crowd.parts > learners
