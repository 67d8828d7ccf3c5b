"""Every name is dealt out once, the same way in any order, and no fragment is much heavier than it must be."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.errors import ConfigError
from zdiloco.tensor.partition import STRATEGIES, partition

SIZES = st.dictionaries(
    st.from_regex(r"(h\.[0-9]{1,2}\.)?[a-d](\.w|\.b)?", fullmatch=True), st.integers(0, 50), min_size=1, max_size=9
)


def optimum(sizes: list[int], num_fragments: int) -> int:
    """The least possible peak, found by trying everything: a deliberately dumb oracle."""
    best = sum(sizes)
    for choice in itertools.product(range(num_fragments), repeat=len(sizes)):
        loads = [0] * num_fragments
        for size, index in zip(sizes, choice, strict=True):
            loads[index] += size
        best = min(best, max(loads))
    return best


@given(SIZES, st.integers(1, 9), st.sampled_from(STRATEGIES), st.randoms(use_true_random=False))
def test_each_name_is_dealt_once_in_any_order(sizes, num_fragments, strategy, random):
    shuffled = list(sizes.items())
    random.shuffle(shuffled)
    layers = {re.match(r"h\.\d+|.*(?=\.)|", name)[0] for name in sizes}
    if num_fragments > (len(sizes) if strategy == "balanced" else len(layers)):
        with pytest.raises(ConfigError, match="num_fragments"):
            partition(sizes, num_fragments, strategy)
        return
    dealt = partition(sizes, num_fragments, strategy)
    assert len(dealt) == num_fragments
    assert all(dealt)
    assert sorted(itertools.chain(*dealt)) == sorted(sizes)
    assert partition(dict(shuffled), num_fragments, strategy) == dealt


@given(st.lists(st.integers(1, 40), min_size=3, max_size=8), st.integers(2, 3))
def test_the_peak_is_within_the_bound_of_the_optimum(numbers, num_fragments):
    sizes = {f"t{index}": size for index, size in enumerate(numbers)}
    peak = max(sum(sizes[name] for name in names) for names in partition(sizes, num_fragments, "balanced"))
    bound = 4 / 3 - 1 / (3 * num_fragments)
    assert peak <= bound * optimum(numbers, num_fragments) + 1e-9


def test_balanced_breaks_ties_by_name():
    sizes = {"b": 4, "a": 4, "c": 2, "d": 2}
    assert partition(sizes, 2, "balanced") == [["a", "c"], ["b", "d"]]


def test_strided_interleaves_layers_in_natural_order():
    sizes = {f"h.{layer}.{part}": 1 for layer in range(11) for part in ("w", "b")}
    dealt = partition(sizes, 3, "strided")
    assert {name.split(".")[1] for name in dealt[0]} == {"0", "3", "6", "9"}
    assert {name.split(".")[1] for name in dealt[1]} == {"1", "4", "7", "10"}


def test_layer_keeps_neighbours_together_and_even():
    sizes = {f"h.{layer}.w": 10 for layer in range(12)}
    dealt = partition(sizes, 4, "layer")
    assert [sorted(int(name.split(".")[1]) for name in names) for names in dealt] == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]
    ]  # fmt: skip


def test_layers_stay_whole():
    sizes = {f"h.{layer}.{part}": 3 for layer in range(6) for part in ("w", "b")}
    for strategy in ("strided", "layer"):
        for names in partition(sizes, 4, strategy):
            assert all(f"h.{name.split('.')[1]}.{part}" in names for name in names for part in ("w", "b"))


@pytest.mark.parametrize(
    ("num_fragments", "strategy", "word"),
    [(0, "balanced", "at least 1"), (3, "balanced", "only 2 trainable tensors"), (2, "layer", "keeps layers whole"),
     (1, "random", "choose one of")],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_the_figure(num_fragments, strategy, word):
    with pytest.raises(ConfigError, match=word):
        partition({"h.0.w": 5, "h.0.b": 1}, num_fragments, strategy)
