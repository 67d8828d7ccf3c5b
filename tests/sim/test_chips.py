"""The chips model: histories reckoned by hand, limits that are known in closed form, and what cannot be."""

import itertools
import math
from typing import Any

import pytest

from zdiloco.errors import ConfigError
from zdiloco.sim.chips import Constants, LearnerChips, Scenario, longest_grace_s, simulate

PLAIN = Constants(reconfigure_s=20.0, grow_wait_s=100.0, restart_s=60.0, return_median_s=600.0)


class Told:
    """Chance that a test decides: gaps between failures, which slice each hits (0: in use), how long it is away."""

    def __init__(self, gaps: list[float], hits: list[float], away: list[float]) -> None:
        self.gaps, self.hits, self.away = iter(gaps), iter(hits), iter(away)

    def until_failure(self) -> float:
        return next(self.gaps, math.inf)

    def where(self) -> float:
        return next(self.hits)

    def away_s(self) -> float:
        return next(self.away)


def told(gaps: list[float], hits: list[float], away: list[float], **scenario: Any) -> list[tuple[float, float, float]]:
    """The spans (start, end, chips) of one learner of 10 slices of 10 chips in 1,000 seconds under this history."""
    fields: dict[str, Any] = {"chips": 100, "learners": 1, "slice_chips": 10, "hours": 1000 / 3600, "constants": PLAIN}
    learner = LearnerChips(Scenario(**{**fields, **scenario}), 0, 1)
    learner.fortune = Told(gaps, hits, away)
    learner.fails_at = learner.fortune.until_failure()
    return [(round(s.start_s, 6), round(s.end_s, 6), s.chips) for s in learner.run()]


def test_a_failure_takes_a_slice_out_and_it_is_taken_in_again() -> None:
    """It fails at 100 and is back at 150; it waits for others until 250, at the end of a step that began at 120."""
    assert told([100], [0.0], [50]) == [(0, 100, 100), (120, 250, 90), (270, 1000, 100)]
    assert told([100.5], [0.0], [50], step_s=7.0) == [(0, 100.5, 100), (120.5, 253.5, 90), (273.5, 1000, 100)]


def test_a_failure_takes_what_waits_along() -> None:
    """Back at 150 and waiting, when the next one fails at 200: one downtime for both."""
    assert told([100, 100], [0.0, 0.0], [50, 900]) == [(0, 100, 100), (120, 200, 90), (220, 1000, 90)]


def test_what_fails_in_a_downtime_is_settled_at_its_end() -> None:
    """Failures at 100 and 110, one downtime; what fails later while it is away changes nothing."""
    spans = told([100, 10, 200], [0.0, 0.0, 0.95], [900, 900])
    assert spans == [(0, 100, 100), (120, 1000, 80)]


def test_the_first_slice_that_is_back_sets_when_all_are_taken_in() -> None:
    """Back at 150 and at 200: both are taken in at 250."""
    assert told([100, 10], [0.0, 0.0], [50, 90]) == [(0, 100, 100), (120, 250, 80), (270, 1000, 100)]


def test_what_comes_back_in_a_downtime_is_settled_at_its_end() -> None:
    assert told([100], [0.0], [15]) == [(0, 100, 100), (120, 1000, 100)]


def test_a_waiting_slice_may_fail_again_without_a_downtime() -> None:
    """Nine in use, the tenth waits: a failure at place 0.92 hits it; it is back again at 700, and taken in at 800."""
    spans = told([100, 80], [0.0, 0.92], [50, 520])
    assert spans == [(0, 100, 100), (120, 800, 90), (820, 1000, 100)]


def test_a_learner_without_a_slice_waits_for_one() -> None:
    spans = told([100], [0.0], [300], chips=10)
    assert spans == [(0, 100, 10), (420, 1000, 10)]


def test_without_elasticity_everything_starts_again_on_spares() -> None:
    spans = told([100, 30, 200], [0.0, 0.0, 0.0], [300, 300, 300], elastic=False)
    assert spans == [(0, 100, 100), (160, 330, 100), (390, 1000, 100)]


def test_the_step_that_a_failure_breaks_off_is_lost() -> None:
    learner = LearnerChips(Scenario(chips=100, learners=1, slice_chips=10, hours=0.25, constants=PLAIN), 0, 1)
    learner.fortune = Told([], [0.0], [10_000])
    learner.fails_at = 100.75
    first, second = learner.run()
    assert (first.end_s, first.useful_s) == (100.75, 100.0)
    assert second.useful_s == pytest.approx(900 - 120.75)


def test_without_failures_nothing_is_lost() -> None:
    outcome, trace = simulate(Scenario(chips=1000, learners=3, mtbi_hours=1e12), 1)
    assert (outcome.goodput, outcome.uptime, outcome.participants, outcome.downtimes) == (1.0, 1.0, 3.0, 0)
    assert [sum(span.chips for span in spans) for spans in trace] == [334, 333, 333]


@pytest.mark.parametrize("elastic", [True, False])
def test_it_approaches_the_closed_form(elastic: bool) -> None:
    """Slices come back at once and are taken in for nothing: goodput = MTBF / (MTBF + downtime), however often."""
    constants = Constants(reconfigure_s=40.0, restart_s=40.0, grow_wait_s=1e9, return_median_s=1e-3)
    for mtbf_s in (20.0, 400.0):
        scenario = Scenario(
            chips=10_000, learners=1, mtbi_hours=10_000 * mtbf_s / 3600, step_s=0.001, elastic=elastic,
            slice_chips=1, constants=constants, hours=4 * mtbf_s,
        )  # fmt: skip
        outcome, _ = simulate(scenario, 1)
        assert outcome.goodput == pytest.approx(mtbf_s / (mtbf_s + 40.0), rel=0.03)


def test_m_learners_are_like_one_of_a_share_of_the_chips() -> None:
    """The published rule, which the model has by its nature."""
    one, many = Scenario(chips=150_000, learners=1), Scenario(chips=1_200_000, learners=8)
    first = sum(simulate(one, seed)[0].goodput for seed in range(8)) / 8
    assert simulate(many, 1)[0].goodput == pytest.approx(first, abs=0.01)


def test_the_same_seed_gives_the_same_trace_and_another_one_does_not() -> None:
    scenario = Scenario(chips=100_000, learners=2)
    assert simulate(scenario, 5) == simulate(scenario, 5)
    assert simulate(scenario, 5)[1] != simulate(scenario, 6)[1]


def test_spans_of_a_learner_follow_each_other_within_the_run() -> None:
    for seed in range(20):
        scenario = Scenario(chips=5000, learners=2, mtbi_hours=50, slice_chips=500, hours=5, step_s=3.0)
        for spans in simulate(scenario, seed)[1]:
            assert all(0 <= s.useful_s <= s.end_s - s.start_s + 1e-9 and 0 < s.chips <= 2500 for s in spans)
            assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(spans))
            assert spans[-1].end_s <= scenario.seconds


def test_a_quorum_of_all_is_up_less_often() -> None:
    few, all_ = (Scenario(chips=1_200_000, learners=4, hours=6, min_quorum=quorum) for quorum in (1, 4))
    assert simulate(all_, 1)[0].uptime < 0.6 < 0.99 < simulate(few, 1)[0].uptime
    assert longest_grace_s(1.0) == 12.0


BAD = [
    ({"chips": 0}, "--chips is 0; allowed is 1 to"),
    ({"chips": -5}, "--chips is -5"),
    ({"learners": 0}, "--learners is 0"),
    ({"learners": 101}, "--learners is 101, but there are only 100 chips"),
    ({"learners": 4, "min_quorum": 5}, "--min-quorum is 5; allowed is 1 to 4"),
    ({"min_quorum": 0}, "--min-quorum is 0"),
    ({"mtbi_hours": -1.0}, "--mtbi-hours is -1.0"),
    ({"mtbi_hours": math.nan}, "--mtbi-hours is nan"),
    ({"hours": 0.0}, "--hours is 0.0"),
    ({"hours": math.inf}, "--hours is inf"),
    ({"step_s": math.nan}, "--step-time is nan"),
    ({"step_s": 5000.0, "hours": 1.0}, "longer than the 1 hours"),
    ({"slice_chips": 0}, "--slice-chips is 0"),
    ({"chips": 10**9, "hours": 1e6}, "failures; allowed are 5,000,000"),
]


@pytest.mark.parametrize(("fields", "text"), BAD)
def test_what_cannot_be_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Scenario(**{"chips": 100, **fields})
    assert text in str(caught.value)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_constants_that_cannot_be_are_named(bad: float) -> None:
    with pytest.raises(ConfigError, match="reconfigure_s is"):
        Constants(reconfigure_s=bad)
