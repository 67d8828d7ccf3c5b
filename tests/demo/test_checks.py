"""Each claim of the demo holds where it should, and fails for every way in which it can be untrue."""

import math

import pytest

from zdiloco.demo import checks
from zdiloco.demo.checks import Lone, Pauses

LONE = Lone(steps=1000, loss=1.7, noise=0.01)


@pytest.mark.parametrize(("loss", "passes"), [(1.5, True), (2.4, False), (2.3999, True), (math.nan, False)])
def test_the_loss_must_lie_below_its_limit(loss: float, passes: bool) -> None:
    check = checks.check_loss(loss)
    assert check.passed is passes
    assert "2.4" in check.figure


@pytest.mark.parametrize(
    ("loss", "lone", "passes", "says"),
    [
        (1.60, LONE, True, "10.0 standard deviations below"),
        (1.7199, LONE, True, "2.0 standard deviations above"),
        (1.7201, LONE, False, "2.0 standard deviations above"),
        (1.73, LONE, False, "3.0 standard deviations above"),
        (1.73, Lone(steps=9, loss=1.7, noise=0.01, noise_factor=2.0), True, "noise times 2"),
        (1.75, Lone(steps=9, loss=1.7, noise=0.01, noise_factor=2.0), False, "2.5 standard deviations above"),
        (1.7, Lone(steps=9, loss=1.7, noise=0.0), True, "inf"),
        (1.7001, Lone(steps=9, loss=1.7, noise=0.0), False, "inf"),
        (math.nan, LONE, False, "nan"),
    ],
)
def test_no_worse_than_one_learner_alone(loss: float, lone: Lone, passes: bool, says: str) -> None:
    check = checks.check_lone(loss, lone)
    assert check.passed is passes
    assert says in check.figure


@pytest.mark.parametrize(
    ("merged", "passes"), [({"a": 5, "c": 1}, True), ({"a": 5, "c": 0}, False), ({"a": 0}, False), ({}, False)]
)
def test_every_survivor_is_merged_after_the_kill(merged: dict[str, float], passes: bool) -> None:
    check = checks.check_survivors(merged, "b")
    assert check.passed is passes
    assert "b" in check.name


def test_without_a_kill_there_are_no_survivors_to_judge() -> None:
    check = checks.check_survivors({"a": 0}, "b", was_killed=False)
    assert (check.passed, check.figure) == (None, "the run was over before the kill")


@pytest.mark.parametrize(
    ("merged", "back_s", "passes", "says"),
    [
        (1.0, 3.0, True, "tokens merged: 1"),
        (0.0, 15.0, False, "tokens merged: 0"),
        (0.0, 14.9, None, "over 14.9 s after b was started again"),
        (0.0, None, None, "over before b was started again"),
    ],
)
def test_who_came_back_is_merged_again_if_there_was_time(
    merged: float, back_s: float | None, passes: bool | None, says: str
) -> None:
    check = checks.check_returned("b", merged, back_s)
    assert check.passed is passes
    assert says in check.figure


def test_without_a_yardstick_nobody_is_measured() -> None:
    check = checks.check_lone(1.0, None, "the lone curve begins at 200 steps, the fastest learner made 20")
    assert check.passed is None
    assert "begins at 200 steps" in check.figure


@pytest.mark.parametrize(
    ("gaps", "apart", "says"),
    [
        ({"a fragment 0": 0, "a fragment 1": 768}, {}, "worst a fragment 1"),
        ({"a fragment 0": 1, "a fragment 1": -1}, {}, "gap 2"),
        ({"a fragment 0": 0}, {"b fragment 3": 5}, "journal and checkpoint differ at b fragment 3"),
        ({}, {}, "0 accounts"),
    ],
)
def test_an_unbalanced_ledger_fails(gaps: dict[str, int], apart: dict[str, int], says: str) -> None:
    check = checks.check_ledger(gaps, apart, 1000.0)
    assert not check.passed
    assert says in check.figure


def test_a_balanced_ledger_passes() -> None:
    check = checks.check_ledger({"a fragment 0": 0}, {"a fragment 0": 0}, 1_234_567.0)
    assert check.passed
    assert "1,234,567" in check.figure
    assert "gap 0" in check.figure


def test_pauses_are_judged_by_the_worst_learner() -> None:
    fine = Pauses(step_s=0.1, p99_s=0.02, longest_s=0.5)
    slow = Pauses(step_s=0.3, p99_s=0.02, longest_s=0.03)
    held_up = Pauses(step_s=0.04, p99_s=0.0101, longest_s=0.02)
    passed = checks.check_pauses({"fine": fine, "slow": slow})
    assert passed.passed
    assert "worst is fine" in passed.figure
    assert "longest call of all 500.0 ms" in passed.figure
    failed = checks.check_pauses({"fine": fine, "held up": held_up})
    assert not failed.passed
    assert "worst is held up" in failed.figure
    assert not checks.check_pauses({}).passed


@pytest.mark.parametrize(
    ("values", "percent", "found"),
    [([1.0], 99, 1.0), (list(range(1, 101)), 99, 99), (list(range(1, 102)), 99, 100), ([3, 1, 2], 50, 2)],
)
def test_percentiles_are_values_that_occurred(values: list[float], percent: float, found: float) -> None:
    assert checks.percentile(values, percent) == found


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no percentile"):
        checks.percentile([], 50)


def test_one_long_call_in_two_hundred_is_the_longest_and_not_the_99th() -> None:
    pauses = checks.pauses_of([0.05] * 200, [0.001] * 199 + [0.4])
    assert pauses == Pauses(step_s=0.05, p99_s=0.001, longest_s=0.4)
