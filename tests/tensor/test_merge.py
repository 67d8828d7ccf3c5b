"""Merging against independent float64 references: mixed shapes, 1 to 16 contributions, every codec, twenty rounds."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.errors import ConfigError, MachineError, MalformedFrame
from zdiloco.tensor.codecs import NAMES, get_codec
from zdiloco.tensor.layout import Fragment, TensorKind, TensorSpec
from zdiloco.tensor.merge import Weighted, merge
from zdiloco.tensor.outer import OuterParams, outer_step_
from zdiloco.tensor.screen import screen

SHAPES = (
    ("wte", (40, 13), TensorKind.EMBEDDING), ("a", (65, 7), TensorKind.MATRIX), ("b", (), TensorKind.VECTOR),
    ("c", (300,), TensorKind.VECTOR), ("d", (0, 3), TensorKind.MATRIX), ("e", (3, 11, 31), TensorKind.MATRIX),
)  # fmt: skip


def fragment_of(*shapes) -> Fragment:
    tensors = (TensorSpec(name=n, shape=shape, dtype="float32", kind=kind) for n, shape, kind in shapes)
    return Fragment(index=0, tensors=tuple(tensors))


MIXED = fragment_of(*SHAPES)
BUFFERS = fragment_of(("mean", (70,), TensorKind.BUFFER), ("var", (70,), TensorKind.BUFFER))


def decoded(name: str, data: bytes, numel: int) -> np.ndarray:
    """An own decoder in numpy, float64."""
    if name == "fp32":
        return np.frombuffer(data, "<f4").astype(np.float64)
    if name == "bf16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if name == "4bit":
        blocks = math.ceil(numel / 64)
        scales = (np.frombuffer(data[: 2 * blocks], "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        packed = np.frombuffer(data[2 * blocks :], np.uint8)
        codes = np.stack((packed & 15, packed >> 4), axis=1).ravel()[:numel]
        levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7] * np.where(codes & 8, -1, 1)
        return levels * np.repeat(scales, 64)[:numel]
    blocks = math.ceil(numel / 256)
    scales = np.frombuffer(data[: 4 * blocks], "<f4").astype(np.float64)
    return np.frombuffer(data[4 * blocks :], np.int8) * np.repeat(scales, 256)[:numel]


def reference(fragment: Fragment, vectors: list[np.ndarray], weights: list[float], method: str) -> np.ndarray:
    """The formulas as the paper has them, in float64, tensor by tensor."""
    merged, total = np.zeros(fragment.numel), sum(weights)
    for tensor, start in zip(fragment.tensors, fragment.offsets, strict=True):
        part = slice(start, start + tensor.numel)
        plain = sum(w * v[part] for w, v in zip(weights, vectors, strict=True)) / total
        merged[part] = plain
        if method == "avg" or tensor.kind in (TensorKind.EMBEDDING, TensorKind.BUFFER):
            continue
        norms = [np.linalg.norm(v[part]) for v in vectors]
        pairs = zip(weights, vectors, norms, strict=True)
        mean = sum((w * v[part] / n if n else 0 * v[part]) for w, v, n in pairs) / total
        length = np.linalg.norm(mean)
        if length >= 1e-12:
            merged[part] = sum(w * n for w, n in zip(weights, norms, strict=True)) / total * mean / length
    return merged


def weighted(vectors, weights, codec):
    return [Weighted(data=codec.encode(v), codec=codec, weight=w) for v, w in zip(vectors, weights, strict=True)]


def vectors_of(fragment: Fragment, count: int, seed: int, scale: float = 0.01) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(fragment.numel)
    drawn = (common * rng.uniform(0, 1) + rng.standard_normal(fragment.numel) for _ in range(count))
    return [torch.from_numpy((scale * rng.uniform(0.2, 3) * v).astype(np.float32)) for v in drawn]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["avg", "rda"])
@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_twenty_rounds_stay_within_a_millionth_of_the_largest_value_of_each_tensor(name, method, count):
    codec, fragment, params = get_codec(name), MIXED, OuterParams(lr=0.7, momentum=0.5)
    rng = np.random.default_rng(count)
    theta = torch.from_numpy(rng.standard_normal(fragment.numel).astype(np.float32))
    exact, memory, buf = theta.double().numpy().copy(), np.zeros(fragment.numel), None
    for number in range(20):
        weights = [float(w) for w in rng.uniform(1, 1e9, count)]
        inputs = weighted(vectors_of(fragment, count, 100 * count + number), weights, codec)
        gradient = merge(fragment, inputs, method)
        buf = outer_step_(theta, buf, gradient, params)
        own = [decoded(name, one.data.numpy().tobytes(), fragment.numel) for one in inputs]
        step = reference(fragment, own, weights, method)
        memory = params.momentum * memory + step
        exact -= params.lr * (step + params.momentum * memory)
    for tensor, start in zip(fragment.tensors, fragment.offsets, strict=True):
        part = slice(start, start + tensor.numel)
        error = np.abs(theta.numpy()[part] - exact[part]).max(initial=0.0)
        assert error <= 1e-6 * np.abs(exact[part]).max(initial=0.0), tensor.name


@given(
    st.integers(1, 16), st.integers(0, 2**31), st.sampled_from(NAMES), st.sampled_from(["avg", "rda"]),
    st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]),
)  # fmt: skip
def test_one_merge_is_near_the_reference_at_any_scale(count, seed, name, method, scale):
    codec = get_codec(name)
    weights = [float(w) for w in np.random.default_rng(seed).uniform(1e-3, 1, count)]
    inputs = weighted(vectors_of(MIXED, count, seed, scale), weights, codec)
    own = [decoded(name, one.data.numpy().tobytes(), MIXED.numel) for one in inputs]
    exact = reference(MIXED, own, weights, method)
    for tensor, start in zip(MIXED.tensors, MIXED.offsets, strict=True):
        part = slice(start, start + tensor.numel)
        largest = max(np.abs(v[part]).max(initial=0.0) for v in own)
        # Scalars may cancel almost: their sign decides, and only near ties do the two paths differ.
        if tensor.shape or method == "avg":
            found = merge(MIXED, inputs, method).double().numpy()[part]
            assert np.abs(found - exact[part]).max(initial=0.0) <= 2e-6 * largest


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["avg", "rda"])
def test_one_contribution_passes_bit_for_bit(name, method):
    """C-39: a learner alone takes the outer step on its own outer gradient."""
    codec = get_codec(name)
    data = codec.encode(vectors_of(MIXED, 1, 4)[0])
    nothing = Weighted(data=codec.encode(torch.ones(MIXED.numel)), codec=codec, weight=0.0)
    only = Weighted(data=data, codec=codec, weight=3e-5)
    for inputs in ([only], [only, nothing]):
        assert torch.equal(merge(MIXED, inputs, method), codec.decode(data, MIXED.numel))


def test_equal_contributions_merge_to_themselves():
    vector = vectors_of(MIXED, 1, 5)[0]
    merged = merge(MIXED, weighted([vector] * 4, [1.0, 2.0, 3.0, 4.0], get_codec("fp32")), "rda")
    assert torch.allclose(merged, vector, rtol=1e-6, atol=0)


def test_rda_keeps_the_norm_of_unlike_directions_where_the_mean_shrinks_it():
    fragment = fragment_of(("w", (4,), TensorKind.VECTOR))
    inputs = weighted(list(2.0 * torch.eye(4)), [1.0] * 4, get_codec("fp32"))
    assert torch.allclose(merge(fragment, inputs, "rda"), torch.ones(4))  # norm 2, as each of them
    assert torch.allclose(merge(fragment, inputs, "avg"), torch.full((4,), 0.5))  # norm 1


def test_embeddings_and_buffers_are_averaged_plainly():
    codec = get_codec("fp32")
    vectors, weights = vectors_of(MIXED, 3, 6), [1.0, 2.0, 5.0]
    rda, avg = (merge(MIXED, weighted(vectors, weights, codec), method) for method in ("rda", "avg"))
    embedding = MIXED.tensors[0].numel
    assert torch.equal(rda[:embedding], avg[:embedding])
    assert not torch.allclose(rda[embedding:], avg[embedding:], rtol=1e-2)
    vectors = vectors_of(BUFFERS, 3, 7)
    rda, avg = (merge(BUFFERS, weighted(vectors, weights, codec), method) for method in ("rda", "avg"))
    assert torch.equal(rda, avg)


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.0, 7.7])
def test_opposite_directions_fall_back_to_the_plain_mean(factor):
    fragment = fragment_of(("w", (500,), TensorKind.MATRIX))
    vector = vectors_of(fragment, 1, 8)[0]
    merged = merge(fragment, weighted([vector, -factor * vector], [1.0, 1.0], get_codec("fp32")), "rda")
    assert torch.allclose(merged, (1 - factor) / 2 * vector, rtol=1e-5, atol=1e-9)


def test_a_zero_tensor_has_no_direction_but_counts_in_the_mean_norm():
    fragment = fragment_of(("w", (3,), TensorKind.VECTOR))
    inputs = weighted([torch.tensor([0.0, 3.0, 4.0]), torch.zeros(3)], [1.0, 1.0], get_codec("fp32"))
    assert torch.allclose(merge(fragment, inputs, "rda"), torch.tensor([0.0, 1.5, 2.0]))
    nothing = weighted([torch.zeros(3)] * 2, [1.0, 1.0], get_codec("fp32"))
    assert merge(fragment, nothing, "rda").tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("method", ["avg", "rda"])
def test_wildly_unlike_scales_stay_finite(method):
    fragment = fragment_of(("w", (4,), TensorKind.VECTOR))
    vectors = [torch.full((4,), scale) for scale in (1e37, 1.0, 1e-40, 0.0)]
    merged = merge(fragment, weighted(vectors, [1e300, 1e300, 1e300, 1e300], get_codec("fp32")), method)
    assert bool(torch.isfinite(merged).all())
    assert merged[0] == pytest.approx(2.5e36, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_squares_from_screening_change_no_bit(name):
    codec, vectors = get_codec(name), vectors_of(MIXED, 4, 9)
    plain = weighted(vectors, [1.0, 2.0, 3.0, 4.0], codec)
    found = [screen(one.data, codec=codec, numel=MIXED.numel, cuts=MIXED.offsets).squares for one in plain]
    known = [
        Weighted(data=one.data, codec=codec, weight=one.weight, squares=squares)
        for one, squares in zip(plain, found, strict=True)
    ]
    assert torch.equal(merge(MIXED, plain, "rda"), merge(MIXED, known, "rda"))


def test_clipping_is_scaling_before_the_merge():
    codec, vectors, weights = get_codec("fp32"), vectors_of(MIXED, 3, 10), [1.0, 2.0, 3.0]
    clipped = [
        Weighted(data=codec.encode(v), codec=codec, weight=w, clip=clip)
        for v, w, clip in zip(vectors, weights, (1.0, 0.25, 0.0), strict=True)
    ]
    scaled = weighted([vectors[0], 0.25 * vectors[1], 0 * vectors[2]], weights, codec)
    for method in ("avg", "rda"):
        assert torch.allclose(merge(MIXED, clipped, method), merge(MIXED, scaled, method), rtol=1e-5, atol=1e-9)
        assert torch.equal(merge(MIXED, clipped[1:2], method), 0.25 * vectors[1])


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_do_not_depend_on_the_thread_count(name):
    fragment = fragment_of(
        ("a", (700, 1000), TensorKind.MATRIX), ("b", (7,), TensorKind.VECTOR), ("c", (601, 999), TensorKind.MATRIX)
    )
    inputs = weighted(vectors_of(fragment, 3, 11), [1.0, 2.5, 3.0], get_codec(name))
    found = {}
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            theta = torch.ones(fragment.numel)
            outer_step_(theta, None, merge(fragment, inputs, "rda"), OuterParams(lr=0.7, momentum=0.9))
            found[threads] = theta.numpy().tobytes()
    finally:
        torch.set_num_threads(1)
    assert found[1] == found[2] == found[3]


def test_out_is_filled_and_returned():
    inputs = weighted(vectors_of(MIXED, 2, 12), [1.0, 2.0], get_codec("bf16"))
    out = torch.full((MIXED.numel,), math.nan)
    assert merge(MIXED, inputs, "rda", out=out) is out
    assert torch.equal(out, merge(MIXED, inputs, "rda"))


def test_what_cannot_be_merged_is_refused():
    codec = get_codec("fp32")
    vector = torch.ones(MIXED.numel)
    with pytest.raises(ConfigError, match="choose one of avg, rda"):
        merge(MIXED, weighted([vector], [1.0], codec), "mean")
    for weights in ([], [0.0, 0.0]):
        with pytest.raises(MachineError, match="sum to 0"):
            merge(MIXED, weighted([vector] * len(weights), weights, codec), "avg")
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(MachineError, match="finite and not negative"):
            merge(MIXED, weighted([vector] * 2, [1.0, weight], codec), "avg")
    with pytest.raises(MalformedFrame):
        merge(MIXED, weighted([vector, vector[1:]], [1.0, 1.0], codec), "avg")
    short = Weighted(data=codec.encode(vector), codec=codec, weight=1.0, squares=(1.0,))
    with pytest.raises(MachineError, match="sums of squares"):
        merge(MIXED, [short, short], "rda")
