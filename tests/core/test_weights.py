"""How much a contribution counts, against a reference in exact fractions and one in float64."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import contribution
from zdiloco.core.bounds import MAX_COUNT
from zdiloco.core.params import SyncParams
from zdiloco.core.weights import implausible, weight_of

SQUARED, TOKENS, UNIFORM = (SyncParams(weight=w) for w in ("tokens2_per_step", "tokens", "uniform"))


def weigh(tokens: int, steps: int, params: SyncParams = SQUARED) -> float:
    return weight_of(contribution(tokens=tokens, steps=steps), params)


def test_the_default_is_tokens_squared_per_step() -> None:
    assert weigh(300, 10, SyncParams()) == 9000.0


def test_of_the_same_tokens_fewer_and_larger_steps_weigh_more() -> None:
    assert weigh(300, 5) == 2 * weigh(300, 10)


def test_the_other_rules() -> None:
    assert weigh(300, 10, TOKENS) == 300.0
    assert weigh(300, 10, UNIFORM) == weigh(1, 1, UNIFORM) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_a_round_agree_with_references(seed: int) -> None:
    rng = random.Random(seed)
    parts = [(rng.randint(1, 10**7), rng.randint(1, 500)) for _ in range(rng.randint(1, 16))]
    ours = [weigh(tokens, steps) for tokens, steps in parts]
    exact = [Fraction(tokens) ** 2 / steps for tokens, steps in parts]
    plain = [float(tokens) ** 2 / float(steps) for tokens, steps in parts]
    for mine, true, double in zip(ours, exact, plain, strict=True):
        assert mine / sum(ours) == pytest.approx(float(true / sum(exact)), rel=1e-14)
        assert mine / sum(ours) == pytest.approx(double / sum(plain), rel=1e-14)


counts = st.integers(1, MAX_COUNT)


@given(counts, counts, counts)
def test_more_tokens_never_weigh_less_and_more_steps_never_more(few: int, many: int, steps: int) -> None:
    few, many = sorted((few, many))
    assert 0 < weigh(few, steps) <= weigh(many, steps) < float("inf")
    assert weigh(steps, many) <= weigh(steps, few)
    assert weigh(few, steps, TOKENS) <= weigh(many, steps, TOKENS)


def test_plausible_counters_are_taken() -> None:
    edge = SyncParams(max_step_tokens=10)
    assert implausible(contribution(steps=10, tokens=100, cut_step=10), edge) is None
    assert implausible(contribution(steps=1, tokens=1, cut_step=1), edge) is None


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"steps": 0}, "0 steps and 100 tokens: nothing was trained"),
        ({"tokens": 0}, "10 steps and 0 tokens: nothing was trained"),
        ({"tokens": 101}, "101 tokens in 10 steps: sync.max_step_tokens is 10"),
        ({"cut_step": 9}, "10 steps at inner step 9: more than were made"),
    ],
)
def test_impossible_counters_are_named(fields: dict[str, int], fault: str) -> None:
    """C-46: no steps or no tokens among them; nothing is divided by zero."""
    assert implausible(contribution(**fields), SyncParams(max_step_tokens=10)) == fault
