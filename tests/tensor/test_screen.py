"""Screening sees a wrong length, whatever is not finite, and the true norm of what is."""

import math

import pytest
import torch

from zdiloco.tensor.codecs import NAMES, Codec, get_codec
from zdiloco.tensor.screen import screen

CODECS = [get_codec(name) for name in NAMES]


def exact(codec: Codec, data: torch.Tensor, numel: int) -> torch.Tensor:
    """What the bytes mean, in float64; int8 levels times scales without the last rounding to fp32."""
    if codec.name != "int8":
        return codec.decode(data, numel).double()
    rows = -(-numel // 256)
    scales = data[: 4 * rows].clone().view(torch.float32).double().repeat_interleave(256)[:numel]
    return data[4 * rows :].view(torch.int8).double() * scales


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@pytest.mark.parametrize("numel", [1, 255, 256, 1000, 700_001])
def test_the_norm_is_that_of_the_decoded_values_in_float64(codec, numel):
    data = codec.encode(torch.randn(numel, generator=torch.Generator().manual_seed(numel)))
    wanted = float(exact(codec, data, numel).square().sum().sqrt())
    found = screen(data, codec=codec, numel=numel)
    assert (found.finite, found.reason) == (True, None)
    assert found.norm == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_squares_are_per_tensor(codec):
    cuts, numel = (0, 3, 3, 300, 1024, 1025), 1500
    data = codec.encode(torch.randn(numel, generator=torch.Generator().manual_seed(1)))
    wanted = exact(codec, data, numel).square()
    found = screen(data, codec=codec, numel=numel, cuts=cuts)
    for start, stop, square in zip(cuts, (*cuts[1:], numel), found.squares, strict=True):
        assert square == pytest.approx(float(wanted[start:stop].sum()), rel=1e-12)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 255, 256, 511, 599])
def test_one_value_that_is_not_finite_is_seen(codec, bad, at):
    values = torch.randn(600, generator=torch.Generator().manual_seed(2))
    values[at] = bad
    found = screen(codec.encode(values), codec=codec, numel=600)
    assert (found.finite, found.norm, found.reason) == (False, math.inf, "non_finite")


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_huge_finite_values_have_a_finite_norm(codec):
    found = screen(codec.encode(torch.full((600,), 1e30)), codec=codec, numel=600)
    assert found.norm == pytest.approx(1e30 * math.sqrt(600), rel=5e-3)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_wrong_length_is_seen_before_anything_is_read(codec):
    data = bytes(codec.encode(torch.zeros(600)).numpy())
    for wrong in (data[:-1], data + b"\0", b""):
        assert screen(wrong, codec=codec, numel=600).reason == "length"
    assert screen(memoryview(data), codec=codec, numel=600).norm == 0.0
