"""Unequal learners: the desk driven here agrees with whole machines, and the table shows what it is to show."""

import pytest

from tests.sim.chips_fleet import NUM_FRAGMENTS, play_unequal
from zdiloco.core.params import SyncParams
from zdiloco.errors import ConfigError
from zdiloco.sim import unequal
from zdiloco.sim.gathering import ANSWER_S, Gathering
from zdiloco.sim.unequal import SETTINGS, paces, table

STEPS_S = (1.0, 1.07, 1.13, 1.22)
SECONDS = 240.0


@pytest.mark.parametrize("grace", ["adaptive", "off"])
def test_the_desk_alone_does_what_whole_machines_do(grace: str) -> None:
    """The same learners through SyncerMachine and LearnerMachine: as many rounds, as many in each, as many late."""
    params = SyncParams(grace=grace)
    played = play_unequal(params, STEPS_S, ANSWER_S, SECONDS)
    fleet = Gathering(params, NUM_FRAGMENTS, [lambda step_s=step_s: step_s for step_s in STEPS_S])
    fleet.run(SECONDS)
    merged = sum(each.participants for each in fleet.closed)
    late = sum(each.late for each in fleet.closed)
    assert len(fleet.closed) == pytest.approx(played.rounds, rel=0.06)
    assert merged / len(fleet.closed) == pytest.approx(played.participants, abs=0.2)
    assert late / merged == pytest.approx(played.late, abs=0.06)


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
