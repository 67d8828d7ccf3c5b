"""How large a contribution may be, and what becomes of one that is larger."""

import math
from collections.abc import Sequence, Set
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import contribution
from zdiloco.core.norms import ABSURD, MEMORY, WHOLE, Norms, Remark, absurd
from zdiloco.core.progress import Held
from zdiloco.units import ContributionId

FACTOR = 3.0


def sent(name: str, norm: float, steps: int = 16) -> Held:
    return Held(
        id=ContributionId(name, 1, 0, 1), message=contribution(steps=steps, cut_step=steps), arrived_at=0.0, norm=norm
    )


ALL = frozenset("abc012345")


def round_of(
    norms: Norms, *taken: Held, version: int = 1, factor: float = FACTOR, living: Set[str] = ALL
) -> list[float]:
    return [passed.clip for passed in norms.judge(taken, version, factor, living)]


def test_one_of_three_is_scaled_to_the_bound_that_the_others_set() -> None:
    [a, b, c] = Norms().judge([sent("a", 2.0), sent("b", 4.0), sent("c", 90.0)], 1, FACTOR, ALL)
    assert a == b == WHOLE
    assert c.clip == pytest.approx(FACTOR * 3.0 / 90.0)
    assert c.remark is Remark.CLIPPED
    assert c.why == "its norm is 90 after 16 steps, the bound 9 is 3 times what the others send: scaled by 0.1"


def test_norms_are_compared_per_root_of_the_steps() -> None:
    assert round_of(Norms(), sent("a", 1.0, 4), sent("b", 1.0, 4), sent("c", 30.0, 400)) == [1.0, 1.0, 1.0]
    assert round_of(Norms(), sent("a", 1.0, 4), sent("b", 1.0, 4), sent("c", 30.3, 400))[2] == pytest.approx(30 / 30.3)


def test_a_learner_that_is_always_too_large_never_sets_its_own_bound() -> None:
    norms = Norms()
    for version in range(1, 40):
        clips = round_of(norms, sent("a", 1.0), sent("b", 1.0), sent("c", 50.0), version=version)
        assert clips == [1.0, 1.0, pytest.approx(FACTOR / 50)]


def test_it_is_bounded_too_where_it_alone_is_in_the_round() -> None:
    norms = Norms()
    round_of(norms, sent("a", 1.0), sent("b", 1.0))
    for version in range(2, 6):
        assert round_of(norms, sent("c", 50.0), version=version) == [pytest.approx(FACTOR / 50)]


def test_what_was_long_ago_is_forgotten() -> None:
    for version, clip in ((MEMORY + 1, FACTOR / 50), (MEMORY + 2, 1.0)):
        norms = Norms()
        round_of(norms, sent("a", 1.0), sent("b", 1.0))
        round_of(norms, sent("d", 1.0), version=2)  # sweeps
        for between in range(3, version):
            round_of(norms, version=between)
        assert round_of(norms, sent("c", 50.0), version=version, living=frozenset("abc")) == [pytest.approx(clip)]


def test_who_has_gone_sets_no_bound() -> None:
    """C-39: whoever is left alone is as good as without us."""
    norms, norm = Norms(), 1.0
    round_of(norms, sent("a", 1.0), sent("b", 1.0))
    for version in range(2, 12):
        norm *= 2
        assert round_of(norms, sent("a", norm), version=version, living=frozenset("a")) == [1.0]


def test_of_two_that_come_together_a_broken_one_does_not_bind_the_other_for_ever() -> None:
    norms = Norms()
    for version in range(1, 9):
        assert round_of(norms, sent("a", 1.0), sent("b", 1e-4), version=version) == [1.0, 1.0]


def test_of_two_one_that_departs_from_its_own_past_is_scaled_down_and_may_grow_slowly() -> None:
    norms = Norms()
    round_of(norms, sent("a", 1.0), sent("b", 1.0))
    assert round_of(norms, sent("a", 1.0), sent("b", 30.0), version=2) == [1.0, pytest.approx(0.1)]
    assert round_of(norms, sent("a", 1.0), sent("b", 30.0), version=3) == [1.0, pytest.approx(0.2)]


def test_of_two_a_broken_one_that_hardly_moves_does_not_bind_the_other() -> None:
    norms = Norms()
    round_of(norms, sent("a", 1.0))
    for version in range(2, 9):
        assert round_of(norms, sent("a", 1.0), sent("b", 1e-6), version=version) == [1.0, 1.0]


def test_all_may_grow_together() -> None:
    norms, norm = Norms(), 1.0
    for version in range(1, 10):
        assert round_of(norms, sent("a", norm), sent("b", norm), version=version) == [1.0, 1.0]
        norm *= 5


def test_whoever_is_alone_is_never_scaled_down() -> None:
    """C-39: one learner is as good as without us."""
    norms = Norms()
    for version in range(1, 9):
        assert round_of(norms, sent("a", 10.0**version), version=version) == [1.0]


def test_zeros_take_no_part_unless_all_are_zero() -> None:
    norms = Norms()
    [a, b] = norms.judge([sent("a", 0.0), sent("b", 1.0)], 1, FACTOR, ALL)
    assert (a.clip, a.remark, b) == (0.0, Remark.ZERO, WHOLE)
    assert norms.judge([sent("a", 0.0), sent("b", 0.0)], 2, FACTOR, ALL) == [WHOLE, WHOLE]
    assert round_of(norms, sent("c", 2.9), version=3) == [1.0]  # b's 1.0 is what is usual, not a's 0


def test_a_factor_of_zero_lets_everything_pass_but_zeros() -> None:
    norms = Norms()
    assert round_of(norms, sent("a", 1e6), factor=0.0) == [1.0]
    assert round_of(norms, sent("a", 1.0), sent("b", 1e6), sent("c", 0.0), factor=0.0, version=2) == [1.0, 1.0, 0.0]


def test_what_is_absurd_beside_the_values_is_refused_with_the_figures() -> None:
    assert absurd(10 * ABSURD, 10.0, 16) == ""
    assert absurd(4 * ABSURD, 1e-6, 16) == "", "values near zero are no measure"
    assert absurd(1e30, 10.0, 16) == "its norm is 1e+30; that of the values is 10, and above 1e+04 no work is believed"


@given(st.integers(1, 10**6))
def test_a_long_absence_is_scaled_down(steps: int) -> None:
    """Even where every step of it went the same way, each as far as a usual step."""
    drift = sent("a", float(steps), steps)
    [clip, *rest] = round_of(Norms(), drift, sent("b", 4.0), sent("c", 4.0))
    assert clip == pytest.approx(min(1.0, FACTOR / math.sqrt(steps)))
    assert rest == [1.0, 1.0]


@given(st.lists(st.floats(0, 1e30), min_size=1, max_size=6), st.permutations(range(6)))
def test_the_order_of_a_round_does_not_matter(sizes: Sequence[float], order: Sequence[int]) -> None:
    taken = [sent(str(index), size) for index, size in enumerate(sizes)]
    shuffled = [taken[index] for index in order if index < len(taken)]
    straight = dict(zip((h.id.name for h in taken), Norms().judge(taken, 1, FACTOR, ALL), strict=True))
    crooked = dict(zip((h.id.name for h in shuffled), Norms().judge(shuffled, 1, FACTOR, ALL), strict=True))
    assert straight == crooked
    assert all(0 <= passed.clip <= 1 for passed in straight.values())


class Dumb(Norms):
    """Says what is usual the dumb way: for each of them a median over all the others."""

    def usual(self, held: Held, taken: Sequence[Held]) -> float | None:
        own = self._seen.get(held.id.name)
        rates = {name: seen.rate for name, seen in self._seen.items()}
        rates.update({other.id.name: other.norm / math.sqrt(other.message.steps) for other in taken if other.norm > 0})
        rates.pop(held.id.name, None)
        if not rates:
            return None
        if len(rates) == 1:
            return None if own is None else max(own.trusted, *rates.values())
        return median(rates.values())


sends = st.lists(st.tuples(st.sampled_from("abc01234"), st.sampled_from([0.0, 1.0, 1.0, 2.5, 7.0, 900.0])), max_size=9)


@given(st.lists(sends, max_size=6))
def test_usual_is_the_median_of_all_others_however_it_is_found(rounds: list[list[tuple[str, float]]]) -> None:
    norms = Dumb()
    for version, senders in enumerate(rounds, 1):
        taken = [sent(name, norm) for name, norm in senders]
        known = dict(norms._seen)
        expected = [norms.usual(held, taken) for held in taken]
        rates = {name: seen.rate for name, seen in known.items()}
        rates.update({held.id.name: held.norm / 4 for held in taken if held.norm > 0})
        assert [norms._usual(held.id.name, rates, sorted(rates.values())) for held in taken] == expected
        bounds = [math.inf if usual is None else FACTOR * usual * 4 for usual in expected]
        moved = any(held.norm > 0 for held in taken)
        for clip, held, bound in zip(round_of(norms, *taken, version=version), taken, bounds, strict=True):
            assert clip == (0.0 if moved else 1.0) if held.norm == 0 else clip == min(1.0, bound / held.norm)


def test_that_values_were_left_out_is_worse_than_anything_else_found() -> None:
    assert WHOLE.without(0.0) is WHOLE
    clipped = Norms().judge([sent("a", 2.0), sent("b", 4.0), sent("c", 90.0)], 1, FACTOR, ALL)[2]
    both = clipped.without(0.5)
    assert (both.remark, both.clip) == (Remark.TRIMMED, clipped.clip)
    assert both.why == f"{clipped.why}; its direction is not that of the others on 50% of its values: they are left out"
