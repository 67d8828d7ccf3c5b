"""4bit: the bytes as written down, each value at its nearest level, and whatever a peer might send instead."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.screen import screen

FOUR = get_codec("4bit")
FP32_MAX = torch.finfo(torch.float32).max
LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ODD_SCALES = st.sampled_from([0x7FC0, 0xFFC1, 0x7F80, 0xFF80, 0x7F7F, 0xFF7F, 0x0001, 0x8001, 0x0000, 0x8000, 0xBF80])
"""bf16: NaN, -NaN, inf, -inf, the largest, its negative, the smallest, its negative, 0, -0, -1."""


def scales_of(data: torch.Tensor, numel: int) -> np.ndarray:
    """Scale of each value, float64."""
    count = math.ceil(numel / 64)
    upper = np.frombuffer(data[: 2 * count].numpy().tobytes(), "<u2").astype(np.uint32) << 16
    return np.repeat(upper.view(np.float32).astype(np.float64), 64)[:numel]


def relative_error(values: torch.Tensor) -> float:
    back = FOUR.decode(FOUR.encode(values), values.numel())
    return float((back - values).norm() / values.norm())


def test_golden_bytes():
    values = torch.zeros(67)
    values[:9] = torch.tensor([6.0, -6.0, 0.25, -0.25, 1.0, 2.5, -3.4, 0.24, -0.24])
    values[64:] = torch.tensor([-12.0, 3.0, 1.0])
    data = FOUR.encode(values).numpy().tobytes()
    assert data[:4] == struct.pack("<2H", 0x3F80, 0x4000)  # 1.0 and 2.0
    # 7 and -7; ties go away from zero: 1 and -1; 2 and 5; -5 and 0; never a negative zero
    assert data[4:9] == bytes([0xF7, 0x91, 0x52, 0x0D, 0x00])
    assert data[9:36] == bytes(27)
    assert data[36:] == bytes([0x3F, 0x01])  # -7 and 3; 1, and nothing


@given(st.lists(FINITE | st.floats(-8, 8, width=32), min_size=1, max_size=200))
def test_every_value_becomes_the_nearest_level(numbers):
    values = torch.tensor(numbers, dtype=torch.float32)
    data = FOUR.encode(values)
    back, scales = FOUR.decode(data, len(numbers)).double().numpy(), scales_of(data, len(numbers))
    exact = values.double().numpy()
    nearest = np.abs(np.abs(exact)[:, None] - scales[:, None] * LEVELS).min(axis=1)
    assert np.all(np.abs(back - exact) <= nearest + 1e-6 * scales)
    assert not np.any(back * exact < 0)


def test_a_scale_is_a_sixth_of_the_peak_cut_off_to_bf16():
    values = torch.randn(64 * 500, generator=torch.Generator().manual_seed(1))
    peaks = values.abs().view(-1, 64).amax(dim=1).double().numpy()
    ratio = 6 * scales_of(FOUR.encode(values), values.numel())[::64] / peaks
    assert 1 - 2**-7 < ratio.min() < ratio.max() <= 1 + 1e-6


def test_from_1217_values_on_fp32_is_at_least_seven_and_a_half_times_as_long():
    sizes = np.arange(1, 300_000)
    encoded = -(-sizes // 2) + 2 * -(-sizes // 64)
    assert [FOUR.encoded_bytes(int(size)) for size in sizes[:3000]] == encoded[:3000].tolist()
    enough = 7.5 * encoded <= 4 * sizes
    assert enough[1217 - 1 :].all()
    assert not enough[1216 - 1 - 63]  # 1153 = 18 * 64 + 1
    assert (encoded - 4 * sizes / 7.5).max() <= 2.5  # bytes too many, for whatever is smaller
    assert 4 * 2**24 / FOUR.encoded_bytes(2**24) > 7.52


@pytest.mark.parametrize("peak", [FP32_MAX, -FP32_MAX, 0.999 * FP32_MAX, 3.3961775e38])
def test_the_largest_values_stay_finite(peak):
    back = FOUR.decode(FOUR.encode(torch.tensor([peak, 0.0, 1.0])), 3)
    assert float(back[0]) == pytest.approx(peak, rel=2**-7)
    assert back[1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("peak", [1e-45, 1e-40, 1.2e-38, 6 * 2.0**-126])
def test_values_too_small_for_a_scale_become_zero_or_near(peak):
    values = torch.tensor([peak, -peak, 0.0])
    assert float((FOUR.decode(FOUR.encode(values), 3) - values).abs().max()) <= 2.0**-127


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 63, 128, 129])
def test_bytes_of_a_block_that_is_not_finite_are_defined(bad, at):
    values = torch.ones(130)
    values[at] = bad
    data, row = FOUR.encode(values), at // 64
    assert struct.unpack("<3H", data[:6].numpy().tobytes())[row] == 0x7FC0
    assert not data[6 + 32 * row : 6 + 32 * (row + 1)].any()
    shown = torch.isnan(FOUR.decode(data, 130))
    assert shown[64 * row : 64 * (row + 1)].all()
    assert int(shown.sum()) == (64 if row < 2 else 2)


@given(st.integers(1, 400), st.data())
def test_whatever_bytes_a_peer_sends_are_decoded_and_judged_alike(numel, data):
    rows = math.ceil(numel / 64)
    scales = data.draw(st.lists(ODD_SCALES | st.integers(0, 2**16 - 1), min_size=rows, max_size=rows))
    packed = data.draw(st.binary(min_size=math.ceil(numel / 2), max_size=math.ceil(numel / 2)))
    raw = struct.pack(f"<{rows}H", *scales) + packed
    back = FOUR.decode(raw, numel)
    found = screen(raw, codec=FOUR, numel=numel)
    assert found.finite is bool(torch.isfinite(back).all())
    if found.finite:
        assert found.norm == pytest.approx(float(back.double().norm()), rel=1e-12)
        acc = torch.zeros(numel)
        FOUR.open(raw, numel).add_to(acc, 0, 1.0, torch.empty(numel))
        assert torch.equal(acc, back)


def test_the_unused_half_of_the_last_byte_says_nothing():
    raw = struct.pack("<H", 0x3F80) + bytes([0xF7])
    assert FOUR.decode(raw, 1).tolist() == [6.0]
    assert screen(raw, codec=FOUR, numel=1).norm == 6.0


@pytest.mark.parametrize(("scale", "code", "finite"), [(0x7F7F, 1, True), (0x7F7F, 7, False), (0xFF7F, 15, False)])
def test_forged_scales_that_overflow_only_when_decoded_are_screened(scale, code, finite):
    raw = struct.pack("<HB", scale, code)
    assert screen(raw, codec=FOUR, numel=1).finite is finite
    assert bool(torch.isfinite(FOUR.decode(raw, 1)).all()) is finite


@pytest.mark.parametrize("numel", [1, 63, 64, 130])
def test_out_may_begin_at_any_address(numel):
    data = FOUR.encode(torch.randn(numel, generator=torch.Generator().manual_seed(2)))
    out = torch.zeros(numel + 1)[1:]
    assert torch.equal(FOUR.decode(data, numel, out), FOUR.decode(data, numel))


def test_its_error_hardly_depends_on_how_heavy_the_tails_are():
    rng = np.random.default_rng(3)
    for values, most in ((rng.standard_normal(2**18), 0.108), (rng.standard_t(3, 2**18), 0.130)):
        assert 0.09 < relative_error(torch.from_numpy(values.astype(np.float32))) < most


def test_error_feedback_brings_the_sum_of_twenty_rounds_within_two_hundredths():
    """What one round loses, the next one sends: signal and twice as much noise, fresh in each round."""
    rng = np.random.default_rng(4)
    signal = rng.standard_normal(2**16)
    carried, forgetful, work, sent = np.zeros((4, 2**16))
    for _ in range(20):
        done = signal + 2 * rng.standard_normal(2**16)
        work += done
        carried += done
        decoded = FOUR.decode(FOUR.encode(torch.from_numpy(carried.astype(np.float32))), 2**16).double().numpy()
        sent += decoded
        carried -= decoded
        forgetful += FOUR.decode(FOUR.encode(torch.from_numpy(done.astype(np.float32))), 2**16).double().numpy()
    error, without = (float(np.linalg.norm(each - work) / np.linalg.norm(work)) for each in (sent, forgetful))
    assert error < 0.02
    assert without > 2 * error
