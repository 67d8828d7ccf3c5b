"""The adaptive grace window: never longer than its bound, never shorter than one step of whom it waits for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.core.grace import Average, GraceInputs, grace_ends, p90
from zdiloco.core.params import SyncParams

PARAMS = SyncParams(sync_period=10, gamma=0.5)


def ends(params: SyncParams = PARAMS, **other: Any) -> float:
    """The end of the window; unless said otherwise slack is 10 * 1 - 1 - 1 = 8 s and answers usually take 20 s."""
    fields: dict[str, Any] = {
        "called_at": 100.0, "quorum_at": 101.0, "step_s": 1.0, "quorum_s": 1.0, "sync_s": 1.0, "waiting_steps_s": (),
        "answers_s": (20.0,),
    }  # fmt: skip
    return grace_ends(GraceInputs(**{**fields, **other}), params)[0]


def test_the_first_sample_is_taken_whole_and_later_ones_by_their_share() -> None:
    average = Average(0.25)
    assert average.value is None
    average.add(8.0)
    assert average.value == 8.0
    average.add(4.0)
    assert average.value == 7.0


def test_the_window_is_a_share_of_the_slack() -> None:
    assert ends() == 101.0 + 0.5 * (10 * 1.0 - 1.0 - 1.0)
    assert ends(SyncParams(sync_period=10, gamma=0.25)) == 101.0 + 0.25 * 8.0


def test_quorum_and_sync_time_shorten_the_slack() -> None:
    assert ends(quorum_s=3.0) == 101.0 + 0.5 * (10 - 3.0 - 1.0)
    assert ends(sync_s=3.0) == 101.0 + 0.5 * (10 - 1.0 - 3.0)


def test_no_slack_is_no_window() -> None:
    assert ends(quorum_s=50.0) == 101.0


@pytest.mark.parametrize("missing", ["step_s", "quorum_s", "sync_s"])
def test_while_an_average_is_missing_there_is_no_slack(missing: str) -> None:
    assert ends(**{missing: None}) == 101.0
    assert ends(**{missing: None}, waiting_steps_s=(0.5,)) == 101.5


def test_it_ends_when_nine_in_ten_have_usually_answered() -> None:
    answers = [2.0] * 9 + [60.0]
    assert ends(answers_s=answers) == 102.0, "2 s after the call"
    assert ends(answers_s=[*answers, 60.0]) == 105.0, "only nine in eleven answer within 2 s: the slack decides"


def test_late_quorums_do_not_reach_back() -> None:
    assert ends(quorum_at=110.0, answers_s=(2.0,)) == 110.0, "the usual time is already over"


def test_nobody_has_ever_answered_so_only_one_step_is_waited() -> None:
    assert ends(answers_s=()) == 101.0


def test_at_least_one_step_of_the_slowest_that_is_waited_for() -> None:
    assert ends(quorum_s=50.0, waiting_steps_s=(0.5, 7.0, 3.0)) == 108.0
    assert ends(answers_s=(1.0,), waiting_steps_s=(3.0,)) == 104.0


def test_off_means_off() -> None:
    off = SyncParams(sync_period=10, grace="off")
    assert ends(off, waiting_steps_s=(7.0,)) == 101.0


def test_the_reason_names_the_figures() -> None:
    inputs = GraceInputs(
        called_at=0.0, quorum_at=1.0, step_s=1.0, quorum_s=1.0, sync_s=1.0, waiting_steps_s=(0.25,), answers_s=(3.0,)
    )
    why = grace_ends(inputs, PARAMS)[1]
    assert why == "grace window 2.000 s (slack 8.000 s, usual answer 2.000 s after quorum, step 0.250 s)"


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 19, 20, 21, 100])
def test_p90_is_the_nearest_rank(count: int) -> None:
    """The smallest value that at least nine in ten do not exceed."""
    found = p90([float(n) for n in range(count, 0, -1)])
    assert 10 * found >= 9 * count
    assert 10 * (found - 1) < 9 * count


seconds = st.floats(0.0, 1e4)
maybe = st.one_of(st.none(), seconds)
inputs_of = st.builds(
    GraceInputs,
    called_at=st.just(0.0),
    quorum_at=seconds,
    step_s=maybe,
    quorum_s=maybe,
    sync_s=maybe,
    waiting_steps_s=st.lists(seconds, max_size=5),
    answers_s=st.lists(seconds, max_size=5),
)


@given(inputs_of, st.floats(0, 1))
def test_whatever_the_inputs_the_window_keeps_its_bounds(inputs: GraceInputs, gamma: float) -> None:
    window = grace_ends(inputs, SyncParams(sync_period=10, gamma=gamma))[0] - inputs.quorum_at
    one_step = max(inputs.waiting_steps_s, default=0.0)
    slack = 0.0
    if inputs.step_s is not None and inputs.quorum_s is not None and inputs.sync_s is not None:
        slack = max(0.0, 10 * inputs.step_s - inputs.quorum_s - inputs.sync_s)
    usual = max(0.0, p90(inputs.answers_s) - inputs.quorum_at) if inputs.answers_s else 0.0
    room = 1e-9 * (1 + inputs.quorum_at + one_step + slack)
    assert window >= one_step - room
    assert window <= max(one_step, gamma * slack) + room, "never longer than the slack allows"
    assert window <= max(one_step, usual) + room, "never longer than answers usually take"
    assert window >= min(gamma * slack, usual) - room, "and not shorter than both"
