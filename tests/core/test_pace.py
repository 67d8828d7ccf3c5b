"""When a fragment is due: H steps of K learners since their cuts and since its last call, staggered at first."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import ANN, BOB, EVE, FAST, member
from zdiloco.core.membership import Member
from zdiloco.core.pace import MIN_CHECK_S, Due, NotDue, Standing, crossing, judge_due, max_open_rounds, needed_steps
from zdiloco.core.params import SyncParams
from zdiloco.units import MemberKey

H = FAST.sync_period


def judge(members: list[Member], now: float = 10.0, quorum: int = 1, needed: int = H) -> Due | NotDue:
    return judge_due(0, needed, members, quorum, now, FAST)


def test_the_first_turn_is_staggered_and_later_ones_take_the_whole_period() -> None:
    params = SyncParams(sync_period=24)
    assert [needed_steps(p, 6, True, params) for p in range(6)] == [4, 8, 12, 16, 20, 24]
    assert [needed_steps(p, 6, False, params) for p in range(6)] == [24] * 6


def test_a_staggered_fragment_needs_at_least_one_step_and_rounds_up() -> None:
    params = SyncParams(sync_period=3)
    assert [needed_steps(p, 9, True, params) for p in range(9)] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_due_at_the_step_that_makes_the_period_full() -> None:
    assert isinstance(judge([member(step=H - 1, at=9.0)]), NotDue)
    found = judge([member(step=H, at=9.0)])
    assert found == Due(since=9.0, why="1 learners have made 8 steps on it")


def test_steps_count_from_the_last_cut() -> None:
    assert isinstance(judge([member(step=H + 4, at=9.0, marks={0: 5})]), NotDue)
    assert isinstance(judge([member(step=H + 5, at=9.0, marks={0: 5})]), Due)


def test_a_cut_of_another_fragment_does_not_count() -> None:
    assert isinstance(judge([member(step=H, at=9.0, marks={1: 5})]), Due)


def test_a_joiner_counts_from_its_first_step() -> None:
    joiner = member(step=100 + H - 1, at=9.0)
    joiner.first_step = 100
    assert isinstance(judge([joiner]), NotDue)
    joiner.step += 1
    assert isinstance(judge([joiner]), Due)


def test_the_k_th_fastest_decides_and_the_slower_ones_do_not() -> None:
    fleet = [member(ANN, step=H, at=3.0), member(BOB, step=H, at=5.0), member(EVE, step=1, at=9.0)]
    found = judge(fleet, quorum=2)
    assert isinstance(found, Due)
    assert found.since == 5.0, "due since the second one made it"
    assert isinstance(judge(fleet, quorum=3), NotDue)


def test_fewer_live_learners_than_the_quorum_are_never_due() -> None:
    found = judge([member(step=1000)], quorum=2)
    assert found == NotDue(check_at=math.inf, why="1 of 2 learners live")


def test_a_slow_pusher_does_not_make_a_round_every_step() -> None:
    """Its last cut is long ago, but the fragment was called a moment ago: wait H steps from the call."""
    slow = member(step=100, at=9.0, called={0: 99.0})
    assert isinstance(judge([slow]), NotDue)
    slow.step = 99 + H
    assert isinstance(judge([slow]), Due)


def test_since_a_call_whoever_came_after_it_counts_from_its_first_step() -> None:
    """Who was there at the last call has died but one, which has still to make its steps where K needs it."""
    fleet = [member(ANN, step=H, at=9.0, called={0: 7.0}), member(BOB, step=H, at=9.0)]
    assert isinstance(judge(fleet, quorum=1), Due)
    assert isinstance(judge(fleet, quorum=2), NotDue)
    assert isinstance(judge([*fleet, member(EVE, step=H, at=9.0)], quorum=2), Due), "K of the newcomers are enough"


def test_a_cut_from_before_the_first_step_here_starts_no_period() -> None:
    """An offer that was late, or repeated to a new syncer, tells of a cut long ago."""
    back = member(step=500 + H - 1, at=9.0, marks={0: 20})
    back.first_step = 500
    assert isinstance(judge([back]), NotDue)
    back.step += 1
    assert isinstance(judge([back]), Due)


def test_overdue_counts_from_the_later_of_cut_and_call() -> None:
    steps = member(step=H, at=10.0, pace=0.25)
    steps.step, steps.step_at = H - 2, 9.0
    found = judge([steps])
    assert isinstance(found, Due)
    assert found.since == 9.5, "two steps of a quarter second after the report"


def test_steps_are_extrapolated_for_two_report_intervals_and_no_longer() -> None:
    at_edge = member(step=H - 4, at=9.0, pace=0.25)
    assert isinstance(judge([at_edge], now=9.75), NotDue)
    assert isinstance(judge([at_edge], now=10.0), Due)
    beyond = member(step=H - 5, at=9.0, pace=0.25)
    assert isinstance(judge([beyond], now=50.0), NotDue), "silent for so long, it may have stopped"


def test_it_is_judged_again_when_the_steps_will_have_been_made() -> None:
    near = judge([member(step=H - 3, at=9.0, pace=0.25)], now=9.25)
    assert isinstance(near, NotDue)
    assert near.check_at == 9.75
    far = judge([member(step=0, at=9.0, pace=1.0)], now=9.0)
    assert isinstance(far, NotDue)
    assert far.check_at == 13.0, "half-way: somebody may have become faster"


def test_without_a_pace_it_is_judged_again_at_the_next_report() -> None:
    found = judge([member(step=1, at=9.0)], now=9.0)
    assert isinstance(found, NotDue)
    assert found.check_at == 9.5


def test_it_is_never_judged_again_at_once() -> None:
    late = judge([member(step=0, at=0.0, pace=1.0)], now=500.0)
    assert isinstance(late, NotDue)
    assert late.check_at == 500.0 + MIN_CHECK_S


@pytest.mark.parametrize(
    ("round_s", "step_s", "expected"),
    [(None, 1.0, 6), (1.0, None, 6), (0.1, 1.0, 1), (4.0, 1.0, 3), (4.1, 1.0, 4), (8.0, 1.0, 6), (80.0, 1.0, 6)],
)
def test_open_rounds_by_littles_law(round_s: float | None, step_s: float | None, expected: int) -> None:
    """P = 6, H = 8: P * round / (H * step), rounded up, from 1 to P; all of them before the first averages."""
    assert max_open_rounds(6, round_s, step_s, FAST) == expected


quarters = st.integers(0, 40).map(lambda n: n / 4)
members = st.builds(
    dict,
    step=st.integers(0, 30),
    at=quarters,
    pace=st.sampled_from([None, 0.25, 0.5, 1.0]),
    marks=st.one_of(st.builds(dict), st.integers(0, 20).map(lambda mark: {0: mark})),
    called=st.one_of(st.builds(dict), st.integers(0, 20).map(lambda mark: {0: float(mark)})),
)


def reached(one: Member, mark: float, needed: int, now: float) -> bool:
    """The dumb oracle: its steps so far, extrapolated for one second at most."""
    ahead = min(now - one.step_at, 1.0) / one.pace.value if one.pace.value else 0.0
    return one.step + ahead >= mark + needed


@given(st.lists(members, max_size=4), st.integers(1, 3), quarters, st.integers(1, 12))
def test_due_exactly_when_k_learners_have_their_steps(fleet: list[Any], quorum: int, later: float, needed: int) -> None:
    made = [member(MemberKey(f"m{i}", 1), **fields) for i, fields in enumerate(fleet)]
    now = 10.0 + later
    cuts = sum(reached(one, one.marks.get(0, 0), needed, now) for one in made)
    calls = sum(reached(one, one.called.get(0, 0.0), needed, now) for one in made)
    expected = cuts >= quorum and calls >= quorum
    found = judge(made, now, quorum, needed)
    assert isinstance(found, Due) == expected
    if isinstance(found, Due):
        assert found.since <= now
    else:
        assert found.check_at > now


@given(members, quarters, st.integers(1, 12))
def test_a_crossing_in_the_past_is_sure_and_a_guess_lies_ahead(fields: Any, later: float, needed: int) -> None:
    now = 10.0 + later
    at, sure = crossing(member(**fields), 0.0, needed, now, FAST)
    assert sure or at > now


# ---- followed report by report


changes = st.tuples(
    st.integers(0, 4),
    st.sampled_from(["steps", "steps", "steps", "cut", "comes", "goes"]),
    st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0]),
)


@given(st.lists(changes, max_size=60), st.integers(1, 3), st.integers(1, 6), st.lists(members, min_size=5, max_size=5))
def test_a_standing_knows_at_every_moment_what_asking_everybody_says(
    moves: list[Any], quorum: int, needed: int, fleet: list[Any]
) -> None:
    made = [member(MemberKey(f"m{i}", 1), **fields) for i, fields in enumerate(fleet)]
    there, now = made[:3], 20.0
    standing = Standing(0, needed, there, FAST)
    for number, what, after_s in moves:
        one, now = made[number], now + after_s
        if what == "steps":
            one.report(one.step + 1, now)
        elif what == "cut":
            one.marks[0] = max(one.marks.get(0, 0), one.step)
        elif what == "comes" and one not in there:
            there.append(one)
        elif what == "goes" and one in there:
            there.remove(one)
        standing.follow(one, one in there)
        at = standing.due_at(quorum)
        assert isinstance(judge_due(0, needed, there, quorum, now, FAST), Due) == (at <= now)
        if now < at < math.inf:
            assert isinstance(judge_due(0, needed, there, quorum, at, FAST), Due), "without another word"
            assert isinstance(judge_due(0, needed, there, quorum, at - 1e-6, FAST), NotDue), "and not before"
