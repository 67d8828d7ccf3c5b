"""Pauses are what calls took within the disturbances, beyond the longest call of the control run."""

import pytest

from zdiloco.bench.loop import STEP_S, Record
from zdiloco.bench.pauses import Case, judge, quantile
from zdiloco.bench.rounds import Rounds

SOUND = Rounds(opened=100, with_us=100, apart_steps=25.0, others_tokens=0)
CONTROL = Record(began=0.0, ended=1.0, at=[0.1, 0.2], pauses=[0.001, 0.002])
CASE = Case("pause_x", spans=[(10.0, 11.0), (20.0, 21.0)])


def record(*calls: tuple[float, float]) -> Record:
    return Record(began=9.0, ended=30.0, at=[at for at, _ in calls], pauses=[took for _, took in calls])


def test_only_calls_within_the_disturbances_count_and_beyond_the_control_run() -> None:
    calls = record((9.0, 0.9), (9.99, 0.012), (10.5, 0.001), (11.5, 0.9), (20.5, 0.004))
    found = judge(CASE, CONTROL, calls, SOUND).to_obj()
    assert found["worst_ms"] == pytest.approx([10.0, 2.0]), "a call under way when it began counts"
    assert (found["calls"], found["pause_ms_max"]) == (3, pytest.approx(10.0))
    assert found["ratio"] == pytest.approx(0.010 / STEP_S)


def test_p99_and_the_longest_have_bars_of_their_own() -> None:
    calm = [(10.001 + i / 1000, 0.001) for i in range(500)]
    assert judge(CASE, CONTROL, record(*calm, (20.5, 0.050)), SOUND).faults == ()
    (fault,) = judge(CASE, CONTROL, record(*calm, (20.5, 0.060)), SOUND).faults
    assert fault == "pause_x: longest pause 58.0 ms, at most one step is allowed"
    slow = [(10.001 + i / 1000, 0.005) for i in range(10)]
    (fault,) = judge(CASE, CONTROL, record(*calm, *slow, (20.5, 0.001)), SOUND).faults
    assert fault == "pause_x: 0.060, at most 0.05 is asked for"


def test_an_unsound_run_makes_it_void() -> None:
    unsound = Rounds(opened=100, with_us=50, apart_steps=25.0, others_tokens=0)
    (fault,) = judge(CASE, CONTROL, record((10.5, 0.001), (20.5, 0.001)), unsound).faults
    assert fault.startswith("pause_x is void: 50 of 100 rounds")


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(i) for i in range(1, 201)]
    assert (quantile(values, 0.99), quantile(values, 1.0), quantile([3.0], 0.99)) == (198.0, 200.0, 3.0)
