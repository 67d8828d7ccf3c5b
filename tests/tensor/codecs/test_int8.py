"""int8: the bytes as written down, worked out by hand, and the edges of fp32."""

import struct

import pytest
import torch

from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.screen import screen

INT8 = get_codec("int8")
FP32_MAX = torch.finfo(torch.float32).max


def test_golden_bytes():
    values = torch.zeros(258)
    values[:4] = torch.tensor([127.0, -127.0, 1.4, -0.6])
    values[256:] = torch.tensor([254.0, -1.0])
    data = INT8.encode(values).numpy().tobytes()
    scales = struct.unpack("<2f", data[:8])
    assert scales == (pytest.approx(1.0), pytest.approx(2.0))
    assert struct.unpack("4b", data[8:12]) == (127, -127, 1, -1)
    assert data[12:264] == bytes(252)
    assert struct.unpack("2b", data[264:]) == (127, 0)  # -0.5 rounds to even


@pytest.mark.parametrize("peak", [FP32_MAX, -FP32_MAX, 0.999999 * FP32_MAX])
def test_the_largest_values_stay_finite(peak):
    back = INT8.decode(INT8.encode(torch.tensor([peak, 0.0, 1.0])), 3)
    assert float(back[0]) == pytest.approx(peak, rel=1e-5)
    assert back[1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("peak", [1e-45, 1e-40, 1.2e-38])
def test_values_too_small_for_a_scale_become_zero_or_near(peak):
    back = INT8.decode(INT8.encode(torch.tensor([peak, -peak, 0.0])), 3)
    assert float((back - torch.tensor([peak, -peak, 0.0])).abs().max()) <= 2.0**-127


def test_blocks_do_not_share_a_scale():
    values = torch.cat((torch.full((256,), 1e-6), torch.full((256,), 1e6)))
    assert torch.allclose(INT8.decode(INT8.encode(values), 512), values, rtol=1e-6)


def test_bytes_of_a_block_that_is_not_finite_are_defined():
    values = torch.ones(300)
    values[3] = float("inf")
    data = INT8.encode(values)
    assert not data[8:264].any()
    assert bool(torch.isnan(INT8.decode(data, 300)[:256]).all())


@pytest.mark.parametrize(
    ("scale", "level", "finite"), [(FP32_MAX, 2, False), (FP32_MAX, 1, True), (-FP32_MAX, -2, False)]
)
def test_forged_bytes_that_overflow_only_when_decoded_are_screened(scale, level, finite):
    data = struct.pack("<f2b", scale, level, 0)
    assert screen(data, codec=INT8, numel=2).finite is finite
    assert bool(torch.isfinite(INT8.decode(data, 2)).all()) is finite
