"""Unequal learners: what is counted of their rounds, and that the table shows what it is to show."""

import pytest

from zdiloco.core.params import SyncParams
from zdiloco.errors import ConfigError
from zdiloco.sim import unequal
from zdiloco.sim.gathering import Gathering
from zdiloco.sim.unequal import SETTINGS, paces, table

STEPS_S = (1.0, 1.07, 1.13, 1.22)
SECONDS = 240.0


def test_what_is_counted_is_what_the_machine_counts() -> None:
    fleet = Gathering(SyncParams(grace="off"), 3, [lambda step_s=step_s: step_s for step_s in STEPS_S])
    fleet.run(SECONDS)
    assert fleet.site is not None
    machine = fleet.site.machine
    assert len(fleet.closed) - machine.rounds in (0, 1, 2, 3)  # one of each fragment may be merging
    assert sum(each.participants for each in fleet.closed) >= machine.contributions > 20
    assert sum(each.late for each in fleet.closed) == pytest.approx(machine.intakes.late, abs=4)


def test_a_fleet_of_near_equals_is_always_whole() -> None:
    fleet = Gathering(SyncParams(), 2, [lambda: 1.0, lambda: 1.001, lambda: 1.002])
    fleet.run(200.0)
    assert {each.participants for each in fleet.closed} == {3}
    assert sum(each.late for each in fleet.closed) == 0
    assert fleet.goodput(120.0) == 1.0


def test_each_learner_has_its_own_pace() -> None:
    draws = [[draw() for _ in range(400)] for draw in paces(2.0, 1)]
    means = [sum(each) / 400 for each in draws]
    assert means[:4] == pytest.approx([2.0] * 4, rel=0.03)
    assert means[4:] == pytest.approx([2.0 / (1 - unequal.BEHIND)] * 4, rel=0.03)
    assert len({each[0] for each in draws}) == 8
    assert [draw() for draw in paces(2.0, 1)] == [each[0] for each in draws]


@pytest.mark.slow
def test_the_table_of_unequal_learners() -> None:
    """Waiting for all costs what was published within 3 points; without waiting nothing is lost, and grace brings the
    others into the round in time."""
    waits, alone, grace, all_ = table(1.0, [1, 2])
    assert [row.setting for row in (waits, alone, grace, all_)] == [setting.name for setting in SETTINGS]
    assert waits.goodput == pytest.approx(84, abs=3)
    assert [row.goodput for row in (alone, grace, all_)] == pytest.approx([100.0] * 3, abs=0.1)
    assert alone.participants * (1 - alone.late / 100) < 1.5
    assert grace.participants * (1 - grace.late / 100) > 7.4
    assert all_.participants == 8.0
    assert all_.rounds < 0.85 * grace.rounds


@pytest.mark.parametrize("bad", [0.01, 1000.0, float("nan")])
def test_steps_that_the_table_cannot_have(bad: float) -> None:
    with pytest.raises(ConfigError, match="--step-time is"):
        table(bad, [1])
