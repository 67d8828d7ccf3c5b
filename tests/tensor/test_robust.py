"""Robust merging: against an independent float64 reference, against what a hostile member may try, and to the bit."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.tensor.test_merge import BUFFERS, MIXED, decoded, fragment_of, vectors_of, weighted
from zdiloco.errors import ConfigError, MachineError
from zdiloco.tensor.codecs import NAMES, get_codec
from zdiloco.tensor.layout import Fragment, TensorKind
from zdiloco.tensor.merge import Weighted, merge, open_all
from zdiloco.tensor.robust import SPAN, cosines, merge_robust

FP32 = get_codec("fp32")
WIDE = fragment_of(("wte", (40, 13), TensorKind.EMBEDDING), ("a", (90, 70), TensorKind.MATRIX),
                   ("b", (900,), TensorKind.VECTOR))  # fmt: skip


def kept_of(parts: list[np.ndarray]) -> list[int]:
    """Who stays, by the words of docs/math.md (30, 31)."""
    norms, count = [np.linalg.norm(part) for part in parts], len(parts)
    cosine = [[a @ b / (m * n) if m * n else 0.0 for b, n in zip(parts, norms, strict=True)]
              for a, m in zip(parts, norms, strict=True)]  # fmt: skip
    agrees = [np.median([cosine[i][j] for j in range(count) if j != i]) for i in range(count)]
    usual = np.median(agrees)
    bound = min(0.5 * max(usual, 0), usual - 2 / math.sqrt(max(parts[0].size, 1)))
    worst = [i for i in np.argsort(agrees, kind="stable") if agrees[i] < bound][: (count - 1) // 2]
    return [i for i in range(count) if i not in worst]


def reference(fragment: Fragment, vectors: list[np.ndarray], weights: list[float], method: str, robust: str):
    """The formulas in float64, tensor by tensor."""
    merged, capped = np.zeros(fragment.numel), np.minimum(weights, np.median(weights))
    for tensor, start in zip(fragment.tensors, fragment.offsets, strict=True):
        at = slice(start, start + tensor.numel)
        parts = [v[at] for v in vectors]
        kept = kept_of(parts) if robust == "trim" and tensor.numel else range(len(parts))
        own, w = [parts[i] for i in kept], capped[list(kept)] / capped[list(kept)].sum()
        norms = np.array([np.linalg.norm(part) for part in own])
        bound = np.median(norms)
        short = [part * min(1, bound / norm) if norm else part for part, norm in zip(own, norms, strict=True)]
        merged[at] = sum(share * part for share, part in zip(w, short, strict=True))
        if method == "rda" and tensor.kind is not TensorKind.EMBEDDING:
            mean = sum(share * part / norm if norm else 0 for share, part, norm in zip(w, own, norms, strict=True))
            length = np.linalg.norm(mean)
            if length > 1e-6:
                merged[at] = w @ np.minimum(norms, bound) * mean / length
    return merged


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("robust", ["clip", "trim"])
@pytest.mark.parametrize("method", ["avg", "rda"])
@pytest.mark.parametrize("count", [3, 4, 5, 9])
def test_it_is_what_the_formulas_say(name: str, robust: str, method: str, count: int) -> None:
    codec, trimmed = get_codec(name), 0.0
    for seed in range(6):
        vectors = vectors_of(MIXED, count, 100 * count + seed)
        vectors[1] = (-10.0, 0.0, 1.0)[seed % 3] * vectors[1]
        weights = [float(w) for w in np.random.default_rng(seed).uniform(1, 1e6, count)]
        inputs = weighted(vectors, weights, codec)
        own = [decoded(name, one.data.numpy().tobytes(), MIXED.numel) for one in inputs]
        found = merge_robust(MIXED, inputs, method, robust)
        exact = reference(MIXED, own, weights, method, robust)
        for tensor, start in zip(MIXED.tensors, MIXED.offsets, strict=True):
            if tensor.shape:  # a lone value may cancel almost: then its sign decides
                at = slice(start, start + tensor.numel)
                error = np.abs(found.gradient.double().numpy()[at] - exact[at]).max(initial=0.0)
                assert error <= 2e-6 * np.abs(exact[at]).max(initial=1e-3), (tensor.name, seed)
        trimmed += found.trimmed[1]
    assert (trimmed > 0) == (robust == "trim")


def alike(count: int, seed: int = 0, fragment: Fragment = WIDE) -> list[torch.Tensor]:
    """Vectors of one length whose cosines are near a half, as those of learners are."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(fragment.numel)
    return [torch.from_numpy((common + rng.standard_normal(fragment.numel)).astype(np.float32)) for _ in range(count)]


HOSTILE = {
    "flipped": lambda own: -own,
    "flipped ten times": lambda own: -10 * own,
    "noise": lambda own: own.norm() * torch.nn.functional.normalize(torch.randn(own.shape), dim=0),
    "noise ten times": lambda own: 10 * own.norm() * torch.nn.functional.normalize(torch.randn(own.shape), dim=0),
    "a constant push": lambda own: torch.full_like(own, 1.0),
    "an endless one": lambda own: torch.full_like(own, -1e30),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("count", [3, 4, 7])
@pytest.mark.parametrize("place", [0, 2])
def test_trimming_leaves_one_hostile_out_as_if_it_had_not_come(what: str, count: int, place: int) -> None:
    torch.manual_seed(1)
    vectors = alike(count)
    vectors[place] = HOSTILE[what](vectors[place])
    found = merge_robust(WIDE, weighted(vectors, [1.0] * count, FP32), "rda", "trim")
    assert found.trimmed == tuple(1.0 if one == place else 0.0 for one in range(count))
    others = vectors[:place] + vectors[place + 1 :]
    if count > 3:
        without = merge_robust(WIDE, weighted(others, [1.0] * (count - 1), FP32), "rda", "trim").gradient
        assert torch.allclose(found.gradient, without, rtol=1e-5, atol=1e-6)


def test_of_those_who_are_alike_nobody_is_left_out() -> None:
    for seed in range(20):
        for count in (3, 4, 8):
            inputs = weighted(alike(count, seed), [1.0] * count, FP32)
            assert merge_robust(WIDE, inputs, "rda", "trim").trimmed == (0.0,) * count


def test_chance_in_a_small_tensor_leaves_nobody_out() -> None:
    small = fragment_of(("b", (9,), TensorKind.VECTOR))
    found = [merge_robust(small, weighted(alike(4, seed, small), [1.0] * 4, FP32), "rda", "trim") for seed in range(50)]
    assert sum(sum(each.trimmed) for each in found) <= 4
    against = alike(4, 3, WIDE)
    assert max(merge_robust(WIDE, weighted([*against[:3], -against[3]], [1.0] * 4, FP32), "rda", "trim").trimmed) == 1


def test_two_of_five_that_say_the_same_are_left_out_though_they_agree_with_each_other_most() -> None:
    rng = np.random.default_rng(2)
    common = 0.4 * rng.standard_normal(WIDE.numel)  # the honest ones have cosines near 0.14
    vectors = [torch.from_numpy((common + rng.standard_normal(WIDE.numel)).astype(np.float32)) for _ in range(3)]
    push = torch.from_numpy(rng.standard_normal(WIDE.numel).astype(np.float32))
    found = merge_robust(WIDE, weighted([push, *vectors, push], [1.0] * 5, FP32), "rda", "trim")
    assert found.trimmed[1:4] == (0.0, 0.0, 0.0)
    assert min(found.trimmed[0], found.trimmed[4]) > 0.8


@pytest.mark.parametrize("robust", ["clip", "trim"])
@pytest.mark.parametrize("method", ["avg", "rda"])
def test_nobody_counts_for_more_than_the_middle_one_whatever_it_claims(robust: str, method: str) -> None:
    vectors = alike(4, 5)
    found = [
        merge_robust(WIDE, weighted(vectors, [1.0, 2.0, 2.0, claimed], FP32), method, robust).gradient
        for claimed in (2.0, 1e300)
    ]
    assert torch.equal(*found)
    longer = [*vectors[:3], 100 * vectors[3]]
    found = [merge_robust(WIDE, weighted(each, [1.0] * 4, FP32), method, robust).gradient for each in (vectors, longer)]
    assert found[1].norm() <= 1.02 * found[0].norm()


def test_less_than_three_with_weight_are_merged_plainly_and_it_says_so() -> None:
    vectors = vectors_of(MIXED, 3, 6)
    for weights in ([1.0], [1.0, 3.0], [1.0, 0.0, 3.0]):
        inputs = weighted(vectors[: len(weights)], weights, FP32)
        found = merge_robust(MIXED, inputs, "rda", "trim")
        assert torch.equal(found.gradient, merge(MIXED, inputs, "rda"))
        assert found.trimmed == (0.0,) * len(weights)
        assert "a robust merge takes 3" in found.plain
    inputs = weighted(vectors, [1.0, 2.0, 3.0], FP32)
    found = merge_robust(MIXED, inputs, "rda", "none")
    assert torch.equal(found.gradient, merge(MIXED, inputs, "rda"))
    assert not found.plain
    assert not merge_robust(MIXED, inputs, "rda", "clip").plain


def test_who_has_no_weight_keeps_its_place() -> None:
    vectors = alike(5, 8)
    found = merge_robust(WIDE, weighted([*vectors[:4], -vectors[4]], [1.0, 0.0, 1.0, 1.0, 1.0], FP32), "rda", "trim")
    assert found.trimmed == (0.0, 0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("robust", ["clip", "trim"])
@pytest.mark.parametrize("count", [3, 4])
def test_statistics_take_the_median_of_each_value(robust: str, count: int) -> None:
    vectors = [torch.rand(BUFFERS.numel) for _ in range(count)]
    vectors[1] = torch.full((BUFFERS.numel,), 1e20)
    found = merge_robust(BUFFERS, weighted(vectors, [1.0, 1e9, 1.0, 1.0][:count], FP32), "avg", robust).gradient
    exact = np.median(torch.stack(vectors).double().numpy(), axis=0)
    assert np.abs(found.double().numpy() - exact).max() <= 1e-7
    equal = merge_robust(BUFFERS, weighted([vectors[0]] * count, [1.0] * count, FP32), "avg", robust).gradient
    assert torch.equal(equal, vectors[0])


def test_most_that_have_not_moved_a_tensor_keep_it_where_it_is() -> None:
    vectors = [torch.zeros(WIDE.numel)] * 3 + alike(1)
    for robust in ("clip", "trim"):
        assert not merge_robust(WIDE, weighted(vectors, [1.0] * 4, FP32), "rda", robust).gradient.any()


@pytest.mark.parametrize("method", ["avg", "rda"])
@pytest.mark.parametrize("robust", ["clip", "trim"])
def test_wildly_unlike_scales_stay_finite(method: str, robust: str) -> None:
    fragment = fragment_of(("w", (400,), TensorKind.VECTOR))
    scales = (1e37, 1.0, 1e-40, 0.0, -1e30)
    vectors = [torch.full((400,), scale) for scale in scales]
    merged = merge_robust(fragment, weighted(vectors, [1e300] * 5, FP32), method, robust).gradient
    assert bool(torch.isfinite(merged).all())
    assert float(merged.abs().max()) <= 1.0


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_do_not_depend_on_the_thread_count(name: str) -> None:
    fragment = fragment_of(
        ("a", (700, 1000), TensorKind.MATRIX), ("b", (7,), TensorKind.VECTOR), ("c", (601, 999), TensorKind.MATRIX)
    )
    assert fragment.numel > 10 * SPAN
    vectors = vectors_of(fragment, 4, 11)
    inputs = weighted([*vectors[:3], -vectors[3]], [1.0, 2.5, 3.0, 1.0], get_codec(name))
    found = {}
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            merged = merge_robust(fragment, inputs, "rda", "trim")
            near = cosines(0, 700_000, open_all(fragment, inputs, True), [1.0] * 4)
            found[threads] = (merged.gradient.numpy().tobytes(), merged.trimmed, near)
    finally:
        torch.set_num_threads(1)
    assert found[1] == found[2] == found[3]


@pytest.mark.parametrize("name", NAMES)
def test_cosines_are_those_of_the_values_wherever_they_lie(name: str) -> None:
    """Also where a tensor begins anywhere and ends in the middle of a row; clipping turns nobody."""
    codec, start, stop = get_codec(name), 301, 301 + 2 * SPAN + 77
    fragment = fragment_of(
        ("a", (start,), TensorKind.VECTOR), ("b", (stop - start,), TensorKind.MATRIX), ("c", (40,), TensorKind.VECTOR)
    )
    plain = weighted(vectors_of(fragment, 3, 21), [1.0] * 3, codec)
    inputs = [replace(plain[0], clip=0.25), *plain[1:]]
    values = [decoded(name, one.data.numpy().tobytes(), fragment.numel)[start:stop] for one in inputs]
    lengths = [float(np.linalg.norm(value)) for value in values]
    opened = open_all(fragment, inputs, True)
    found = cosines(start, stop, opened, [each.norms[1] for each in opened])
    for place in range(3):
        for other in set(range(3)) - {place}:
            exact = values[place] @ values[other] / (lengths[place] * lengths[other])
            assert found[place][other] == pytest.approx(exact, abs=1e-6)


def test_never_half_of_a_round_is_left_out() -> None:
    """Four in a fan of 180 degrees: the two at its ends both stand apart."""
    x, y = torch.eye(2).repeat(1, 400)
    fan = [math.cos(angle) * x + math.sin(angle) * y for angle in (0.0, math.pi / 3, 2 * math.pi / 3, math.pi)]
    one = fragment_of(("w", (800,), TensorKind.VECTOR))
    trimmed = merge_robust(one, weighted(fan, [1.0] * 4, FP32), "rda", "trim").trimmed
    assert sorted(trimmed) == [0.0, 0.0, 0.0, 1.0]
    assert trimmed[1] == trimmed[2] == 0.0


def test_out_is_filled_and_what_cannot_be_merged_is_refused() -> None:
    inputs = weighted(alike(3), [1.0] * 3, FP32)
    out = torch.full((WIDE.numel,), math.nan)
    assert merge_robust(WIDE, inputs, "rda", "trim", out=out).gradient is out
    assert torch.isfinite(out).all()
    with pytest.raises(ConfigError, match="choose one of none, clip, trim"):
        merge_robust(WIDE, inputs, "rda", "median")
    bundle = Weighted(data=inputs[0].data, codec=FP32, weight=1.0, radii=(1.0,) * len(WIDE.tensors))
    with pytest.raises(MachineError, match="a bundle cannot be merged robustly"):
        merge_robust(WIDE, [*inputs, bundle], "rda", "clip")
