"""Figures of a trace, on traces that can be reckoned by hand."""

import pytest

from zdiloco.sim.spans import Span, goodput, participants, uptime


def span(start: float, end: float, chips: float = 10.0, lost: float = 0.0) -> Span:
    return Span(start_s=start, end_s=end, useful_s=end - start - lost, chips=chips)


TRACE = [[span(0, 40), span(50, 100, chips=5.0)], [span(0, 30, lost=10.0), span(80, 100)]]
"""Two learners of 10 chips, 100 seconds. Both: 0 to 20 and 80 to 100; one: 20 to 40 and 50 to 80; none: 40 to 50."""


def test_goodput_counts_chips_in_use_and_not_what_was_lost() -> None:
    assert goodput(TRACE, 20, 100.0) == pytest.approx((400 + 250 + 200 + 200) / 2000)


def test_uptime_is_the_time_in_which_enough_learners_train() -> None:
    assert uptime(TRACE, 100.0) == pytest.approx(0.9)
    assert uptime(TRACE, 100.0, quorum=2) == pytest.approx(0.4)
    assert uptime([[], []], 100.0) == 0.0


def test_participants_are_counted_while_any_trains() -> None:
    assert participants(TRACE) == pytest.approx((2 * 40 + 1 * 50) / 90)
    assert participants([[], []]) == 0.0


def test_with_grace_those_that_go_on_soon_are_among_them() -> None:
    """Spans begin 10 s earlier, but not before the one before them has ended: 0-20, 40-50 and 70-100."""
    assert participants(TRACE, 10.0) == pytest.approx((2 * 20 + 1 * 50 + 2 * 30) / 100)
    assert participants(TRACE, 1000.0) == pytest.approx(2.0)


def test_spans_that_follow_each_other_at_once_are_one_stretch() -> None:
    assert uptime([[span(0, 50), span(50, 100)]], 100.0) == pytest.approx(1.0)
