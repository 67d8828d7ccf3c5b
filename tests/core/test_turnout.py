"""A round of few is noted; at the end of a run its step is shorter, by how many are in it."""

import math

import pytest

from zdiloco.core.norms import WHOLE, Passed, Remark
from zdiloco.core.turnout import Turnout


def usual_of(count: int) -> Turnout:
    turnout = Turnout(0.125)
    for _ in range(50):
        assert turnout.judge([WHOLE] * count, 1, ending=False) == ([WHOLE] * count, "")
    return turnout


def test_while_a_run_goes_on_one_of_eight_takes_the_whole_step_and_is_counted() -> None:
    turnout = usual_of(8)
    assert turnout.judge([WHOLE], 1, ending=False) == ([WHOLE], "1 where 8 are usual")
    assert turnout.thin == 1


def test_rounds_of_one_are_nothing_special_where_they_are_usual() -> None:
    turnout = usual_of(1)
    assert turnout.judge([WHOLE], 1, ending=True) == ([WHOLE], "")
    assert turnout.thin == 0


@pytest.mark.parametrize("count", range(4, 9))
def test_at_the_end_half_of_the_usual_number_is_enough(count: int) -> None:
    assert usual_of(8).judge([WHOLE] * count, 1, ending=True) == ([WHOLE] * count, "")


@pytest.mark.parametrize("count", range(1, 4))
def test_at_the_end_fewer_take_a_shorter_step(count: int) -> None:
    passed, why = usual_of(8).judge([WHOLE] * count, 1, ending=True)
    assert [each.clip for each in passed] == [pytest.approx(math.sqrt(count / 8))] * count
    assert {each.remark for each in passed} == {Remark.TAIL}
    assert why.startswith(f"{count} where 8 are usual, at the end of the run: scaled by 0.")


def test_below_the_quorum_of_the_settings_it_is_k_that_is_usual() -> None:
    """Even where no round was ever merged."""
    passed, _ = Turnout(0.125).judge([WHOLE] * 3, 4, ending=True)
    assert passed[0].clip == pytest.approx(math.sqrt(3 / 4))


def test_what_was_said_of_a_contribution_stays_said() -> None:
    clipped = Passed(clip=0.1, remark=Remark.CLIPPED, why="too large")
    zero = Passed(clip=0.0, remark=Remark.ZERO, why="zeros")
    passed, why = usual_of(8).judge([clipped, zero], 1, ending=True)
    assert [each.clip for each in passed] == [pytest.approx(0.1 / math.sqrt(8)), 0.0]
    assert [each.remark for each in passed] == [Remark.CLIPPED, Remark.ZERO]
    assert passed[0].why == f"too large; {why}"


def test_rounds_of_too_few_for_a_robust_merge_are_counted_and_said_once() -> None:
    turnout = Turnout(0.125)
    assert turnout.merged(3, "") == []
    notes = [turnout.merged(3, "2 contributions, a robust merge takes 3")[0] for _ in range(3)]
    assert [note.level for note in notes] == ["info", "debug", "debug"]
    assert notes[0].what == "fragment 3 is merged as if nobody were hostile"
    assert "2 contributions" in notes[0].why
    assert turnout.plain == 3


def test_nothing_at_all_is_left_to_the_merge() -> None:
    zero = Passed(clip=0.0, remark=Remark.ZERO, why="zeros")
    assert usual_of(8).judge([zero], 1, ending=True) == ([zero], "")


def test_the_cosine_of_the_few_with_the_many_is_what_scales_them() -> None:
    """The reason for the root: the mean of n of N orthogonal directions against the mean of all, both of length 1."""
    count, usual = 3, 8
    few = [1 / math.sqrt(count)] * count + [0.0] * (usual - count)
    many = [1 / math.sqrt(usual)] * usual
    assert sum(a * b for a, b in zip(few, many, strict=True)) == pytest.approx(math.sqrt(count / usual))
