"""The rate is continuous, never 0 unasked, highest after the warm-up, and gentle after a join."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.errors import ConfigError
from zdiloco.train.schedule import InnerSchedule

LATE = 10_000  # local steps after which no join is felt
fractions = st.floats(0, 0.9)


def schedule(**changes: float) -> InnerSchedule:
    keys = {"lr": 1.0, "warmup_fraction": 0.1, "final_fraction": 0.2, "rejoin_warmup_steps": 4} | changes
    return InnerSchedule(**keys)


@given(warmup=fractions, final=st.floats(0.01, 1), progress=st.floats(-1, 2), steps=st.integers(0, 100))
def test_never_zero_unasked_and_never_above_lr(warmup: float, final: float, progress: float, steps: int) -> None:
    """C-49: the rate follows the run's progress and is zero nowhere."""
    rate = schedule(warmup_fraction=warmup, final_fraction=final).rate(progress, steps)
    assert 0 < rate <= 1.0 + 1e-12


def test_corner_values() -> None:
    s = schedule()
    assert s.rate(0.0, LATE) == pytest.approx(0.1)
    assert s.rate(0.1, LATE) == pytest.approx(1.0)
    assert s.rate(0.55, LATE) == pytest.approx(0.6)
    assert s.rate(1.0, LATE) == pytest.approx(0.2)
    assert s.rate(7.0, LATE) == s.rate(1.0, LATE)
    assert schedule(final_fraction=0).rate(1.0, LATE) == 0  # asked for
    assert schedule(warmup_fraction=0).rate(0.0, LATE) == 1.0


def test_rises_then_falls_without_jumps() -> None:
    rates = [schedule().rate(i / 1000, LATE) for i in range(1001)]
    assert max(abs(a - b) for a, b in pairwise(rates)) < 0.01
    peak = rates.index(max(rates))
    assert peak == 100
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_a_join_in_the_middle_warms_up_and_then_follows_the_road() -> None:
    """C-49: adoptions rebuild nothing; only a join warms up, once and shortly."""
    s = schedule()
    assert [s.rate(0.1, n) for n in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert schedule(rejoin_warmup_steps=0).rate(0.1, 0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "wrong",
    [{"lr": 0.0}, {"lr": float("inf")}, {"lr": float("nan")}, {"warmup_fraction": 1.0}, {"warmup_fraction": -0.1},
     {"final_fraction": 1.1}, {"final_fraction": float("nan")}, {"rejoin_warmup_steps": -1}],
)  # fmt: skip
def test_values_that_cannot_work_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is"):
        schedule(**wrong)
