"""Two clocks, by one question: what is sure, and what is not."""

import pytest

from zdiloco.doctor.clock import Skew, judge_clock, skew_of
from zdiloco.doctor.finding import Verdict


def test_the_other_clock_is_known_to_half_a_round_trip() -> None:
    assert skew_of(100.0, 105.1, 0.2) == Skew(ahead_s=pytest.approx(5.0), unsure_s=0.1)


@pytest.mark.parametrize(
    ("ahead_s", "unsure_s", "verdict"),
    [
        (0.9, 0.0, Verdict.OK),
        (1.1, 0.0, Verdict.WARN),
        (-1.1, 0.0, Verdict.WARN),
        (1.1, 0.2, Verdict.OK),
        (-30.0, 5.0, Verdict.WARN),
    ],
)
def test_more_than_a_second_for_sure_is_told(ahead_s: float, unsure_s: float, verdict: Verdict) -> None:
    finding = judge_clock(Skew(ahead_s=ahead_s, unsure_s=unsure_s))
    assert finding.verdict is verdict
    assert ("ahead" if ahead_s > 0 else "behind") in finding.measured


def test_nobody_tells() -> None:
    assert judge_clock(None).verdict is Verdict.UNKNOWN
