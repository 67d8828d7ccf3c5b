"""Merging a region first, and the rest afterwards, against merging all at once and a float64 reference."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tensor.test_merge import BUFFERS, MIXED, decoded, reference, vectors_of, weighted
from zdiloco.errors import MalformedFrame
from zdiloco.tensor.codecs import NAMES, get_codec
from zdiloco.tensor.layout import Fragment
from zdiloco.tensor.merge import Weighted, merge
from zdiloco.tensor.partial import bundle_bytes, bundle_of, split_bundle

METHODS = ["avg", "rda"]


def bundled(fragment: Fragment, members: list[Weighted], method: str, codec: str = "fp32") -> Weighted | None:
    """A region's contributions as one; None: they have cancelled each other."""
    data = bundle_of(fragment, members, method, codec)
    if data is None:
        return None
    found = split_bundle(fragment, memoryview(data), method, codec)
    weight = sum(one.weight for one in members)
    return Weighted(data=found.values, codec=get_codec(codec), weight=weight, radii=found.radii)


def by_regions(fragment, inputs, cuts, method, codec="fp32") -> list[Weighted]:
    """`inputs` cut into regions at `cuts`; what has cancelled itself goes on one by one, as a relay does it."""
    ends = [0, *sorted(set(cuts)), len(inputs)]
    parts = []
    for start, stop in itertools.pairwise(ends):
        region = inputs[start:stop]
        one = bundled(fragment, region, method, codec) if region else None
        parts += region if one is None else [one]
    return parts


def worst(found: torch.Tensor, exact: np.ndarray, fragment: Fragment) -> float:
    """The largest error, relative to the largest value of its tensor; scalars apart, whose sign near ties decides."""
    errors = [0.0]
    for tensor, start in zip(fragment.tensors, fragment.offsets, strict=True):
        part = slice(start, start + tensor.numel)
        if tensor.shape and tensor.numel:
            largest = np.abs(exact[part]).max()
            errors.append(float(np.abs(found.double().numpy()[part] - exact[part]).max() / max(largest, 1e-300)))
    return max(errors)


@settings(max_examples=25)
@given(
    st.integers(2, 16), st.integers(0, 2**31), st.sampled_from(NAMES), st.sampled_from(METHODS),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e30]), st.sampled_from([1e-6, 1.0, 1e6]),
)  # fmt: skip
def test_regions_first_is_all_at_once_to_a_hundred_thousandth(count, seed, name, method, heavy, scale):
    rng, codec = np.random.default_rng(seed), get_codec(name)
    weights = [float(w) * heavy for w in rng.uniform(1e-3, 1, count)]
    inputs = weighted(vectors_of(MIXED, count, seed, scale), weights, codec)
    cuts = [int(cut) for cut in rng.integers(0, count, rng.integers(0, 4))]
    found = merge(MIXED, by_regions(MIXED, inputs, cuts, method), method)
    own = [decoded(name, one.data.numpy().tobytes(), MIXED.numel) for one in inputs]
    assert worst(found, reference(MIXED, own, weights, method), MIXED) <= 1e-5
    assert worst(found, merge(MIXED, inputs, method).double().numpy(), MIXED) <= 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_one_alone_and_beside_others_is_the_same_as_without_a_bundle(method):
    inputs = weighted(vectors_of(MIXED, 4, 7), [1.0, 2.0, 3.0, 4.0], get_codec("int8"))
    for parts in ([inputs[0]], inputs):
        flat = merge(MIXED, parts, method).double().numpy()
        assert worst(merge(MIXED, by_regions(MIXED, parts, [1], method), method), flat, MIXED) <= 1e-5


def test_who_cancel_each_other_are_not_bundled_and_the_mean_takes_their_place():
    values = vectors_of(MIXED, 1, 3)[0]
    inputs = weighted([values, -2.0 * values, values], [1.0, 1.0, 1e-3], get_codec("fp32"))
    assert bundled(MIXED, inputs[:2], "rda") is None
    assert bundled(MIXED, inputs[:2], "avg") is not None
    flat = merge(MIXED, inputs, "rda").double().numpy()
    assert worst(merge(MIXED, by_regions(MIXED, inputs, [2], "rda"), "rda"), flat, MIXED) <= 1e-5


def test_regions_that_cancel_each_other_take_the_mean_of_what_they_stand_for():
    """Exact where the norms within a region agree; else each member counts with the mean norm of its region."""
    values = vectors_of(MIXED, 1, 4)[0]
    inputs = weighted([values, values, -values, -values], [1.0, 3.0, 2.0, 2.0], get_codec("fp32"))
    found = merge(MIXED, by_regions(MIXED, inputs, [2], "rda"), "rda")
    flat = merge(MIXED, inputs, "rda")
    assert float((found - flat).abs().max()) <= 1e-6 * float(values.abs().max())


def test_clipping_a_bundle_is_clipping_each_in_it():
    inputs = weighted(vectors_of(MIXED, 3, 5), [1.0, 2.0, 3.0], get_codec("fp32"))
    whole = bundled(MIXED, inputs[:2], "rda")
    assert whole is not None

    def clipped(one: Weighted) -> Weighted:
        return Weighted(data=one.data, codec=one.codec, weight=one.weight * 0.5, clip=0.5, radii=one.radii)

    flat = merge(MIXED, [*map(clipped, inputs[:2]), inputs[2]], "rda").double().numpy()
    assert worst(merge(MIXED, [clipped(whole), inputs[2]], "rda"), flat, MIXED) <= 1e-5


def test_buffers_are_a_plain_mean():
    inputs = weighted(vectors_of(BUFFERS, 3, 6), [1.0, 2.0, 3.0], get_codec("fp32"))
    flat = merge(BUFFERS, inputs, "avg").double().numpy()
    assert worst(merge(BUFFERS, by_regions(BUFFERS, inputs, [2], "avg"), "avg"), flat, BUFFERS) <= 1e-5


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_what_bf16_costs_is_bounded_by_its_last_bit(count, say):
    """Each direction is rounded by at most 2^-9 of itself, and nothing takes that back."""
    inputs = weighted(vectors_of(MIXED, count, count), [1.0] * count, get_codec("bf16"))
    flat = merge(MIXED, inputs, "rda").double().numpy()
    found = merge(MIXED, by_regions(MIXED, inputs, [count // 2], "rda", "bf16"), "rda").double().numpy()
    errors = []
    for tensor, start in zip(MIXED.tensors, MIXED.offsets, strict=True):
        part = slice(start, start + tensor.numel)
        if tensor.numel > 1:
            errors.append(np.linalg.norm(found[part] - flat[part]) / np.linalg.norm(flat[part]))
    say(f"bf16 bundles of {count} contributions in two regions: error {max(errors):.2g} of a tensor's norm")
    assert max(errors) <= 2.0**-8


def test_nothing_that_makes_no_sense_is_taken_apart():
    inputs = weighted(vectors_of(MIXED, 2, 8), [1.0, 2.0], get_codec("fp32"))
    data = bundle_of(MIXED, inputs, "rda", "fp32")
    assert data is not None
    assert len(data) == bundle_bytes(MIXED, "fp32")
    norm = split_bundle(MIXED, memoryview(data), "rda", "fp32").norm
    assert 0 < norm <= max(float(torch.linalg.norm(v)) for v in vectors_of(MIXED, 2, 8)) * (1 + 1e-6)
    nan, minus = np.float32("nan").tobytes(), np.float64(-1).tobytes()
    for wrong, why in (
        (data[:-1], "bytes, where"), (data + b"-", "bytes, where"), (nan + data[4:], "NaN"),
        (data[:-8] + minus, "between"), (data[:-8] + np.float64("inf").tobytes(), "between"),
        (bytes(len(data) - 8) + np.float64(1e300).tobytes(), "between 0 and 1e.18"),  # times 0 it is no norm at all
    ):  # fmt: skip
        with pytest.raises(MalformedFrame, match=why):
            split_bundle(MIXED, memoryview(wrong), "rda", "fp32")
