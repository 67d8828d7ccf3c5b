"""Failures and times to return: what is drawn is what the formula says, and the same for the same seed."""

import math
import statistics

import pytest

from zdiloco.errors import ConfigError
from zdiloco.sim.failures import Fortune, ReturnTimes

TIMES = ReturnTimes(median_s=600.0, shape=0.7, power=2.0)


def share_back(times: ReturnTimes, within_s: float) -> float:
    """The distribution function, written down as in the docstring."""
    return float((1 - math.exp(-((within_s / times.scale_s) ** times.shape))) ** times.power)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_the_quantile_is_the_inverse_of_the_distribution(share: float) -> None:
    assert share_back(TIMES, TIMES.quantile(share)) == pytest.approx(share)
    assert TIMES.quantile(0.5) == pytest.approx(600.0)


def test_with_both_powers_one_it_is_the_exponential_distribution() -> None:
    plain = ReturnTimes(median_s=100.0 * math.log(2), shape=1.0, power=1.0)
    assert plain.quantile(0.9) == pytest.approx(100.0 * math.log(10))


def test_failures_are_a_poisson_process_of_the_rate_asked_for() -> None:
    """Gaps: mean and standard deviation are both 1 / rate; half of the returns are within the median."""
    fortune = Fortune(3, 0, 0.01, TIMES)
    gaps = [fortune.until_failure() for _ in range(4000)]
    assert statistics.mean(gaps) == pytest.approx(100.0, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(100.0, rel=0.08)
    away = [fortune.away_s() for _ in range(4000)]
    assert sum(each <= 600.0 for each in away) / 4000 == pytest.approx(0.5, abs=0.03)
    assert min(away) > 0
    assert math.isfinite(max(away))


def test_the_same_seed_draws_the_same_and_learners_differ() -> None:
    def draws(seed: int, learner: int) -> list[float]:
        fortune = Fortune(seed, learner, 0.01, TIMES)
        return [fortune.until_failure(), fortune.where(), fortune.away_s()]

    assert draws(1, 0) == draws(1, 0)
    assert len({tuple(draws(seed, learner)) for seed in (1, 2) for learner in (0, 1)}) == 4
    assert Fortune(1, 0, 0.0, TIMES).until_failure() == math.inf


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["median_s", "shape", "power"])
def test_what_cannot_be_is_refused(name: str, bad: float) -> None:
    with pytest.raises(ConfigError, match=name):
        ReturnTimes(**{"median_s": 600.0, "shape": 1.0, "power": 1.0, name: bad})
