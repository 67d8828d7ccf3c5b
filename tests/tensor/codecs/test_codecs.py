"""What holds for every codec: exact sizes, round trips, bits that never change, and non-finite values that show."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.errors import ConfigError, MachineError, MalformedFrame
from zdiloco.tensor.codecs import NAMES, get_codec

CODECS = [get_codec(name) for name in NAMES]
BYTES = {
    "fp32": lambda n: 4 * n,
    "bf16": lambda n: 2 * n,
    "int8": lambda n: n + 4 * math.ceil(n / 256),
    "4bit": lambda n: math.ceil(n / 2) + 2 * math.ceil(n / 64),
}
FORTY_ROUNDS = {"fp32": 1e-6, "bf16": 1e-3, "int8": 1e-3, "4bit": 1e-2}
"""Largest relative error of the sum of forty rounds, with the residual carried."""
EACH = pytest.mark.parametrize("codec", CODECS, ids=NAMES)
LENGTHS = st.integers(0, 1100) | st.sampled_from([131_072, 524_288, 524_289, 600_001])
SCALES = st.sampled_from([0.0, 1e-45, 1e-40, 1e-38, 1e-20, 1.0, 1e20, 3e37])


def normal(numel: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    values = np.random.default_rng(seed).standard_normal(numel)
    return torch.from_numpy((values * scale).astype(np.float32))


def bound(name: str, values: torch.Tensor) -> np.ndarray:
    """Largest allowed error of each value: the codec's definition, for blocks three fp32 roundings near the peak."""
    exact = np.abs(values.double().numpy())
    if name == "fp32":
        return np.zeros_like(exact)
    if name == "bf16":
        return np.maximum(exact * 2.0**-8, 2.0**-134)
    row, half_step, least = {"int8": (256, 1 / 254, 2.0**-127), "4bit": (64, 1 / 6, 2.0**-127)}[name]
    padded = np.zeros(math.ceil(exact.size / row) * row)
    padded[: exact.size] = exact
    peaks = padded.reshape(-1, row).max(axis=1, initial=0)
    return np.repeat(np.maximum(peaks * half_step * (1 + 1e-4), least), row)[: exact.size]


@EACH
@given(numel=LENGTHS, seed=st.integers(0, 2**31), scale=SCALES)
def test_round_trip_stays_within_the_bound_and_the_size_is_exact(codec, numel, seed, scale):
    values = normal(numel, seed, scale)
    data = codec.encode(values)
    assert data.dtype is torch.uint8
    assert data.numel() == codec.encoded_bytes(numel) == BYTES[codec.name](numel)
    back = codec.decode(data, numel)
    assert back.dtype is torch.float32
    assert np.all(np.abs(back.double().numpy() - values.double().numpy()) <= bound(codec.name, values))


@EACH
def test_zeros_come_back_as_zeros(codec):
    assert torch.equal(codec.decode(codec.encode(torch.zeros(700)), 700), torch.zeros(700))


@EACH
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=600))
def test_finite_in_finite_out_but_for_bf16_near_the_end_of_fp32(codec, numbers):
    values = torch.tensor(numbers, dtype=torch.float32)
    back = codec.decode(codec.encode(values), len(numbers))
    beyond_bf16 = bool((values.abs() > torch.finfo(torch.bfloat16).max).any())
    assert bool(torch.isfinite(back).all()) or (codec.name == "bf16" and beyond_bf16)


@EACH
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("numel", [1, 300, 512, 530_000])
def test_what_is_not_finite_shows_after_decoding_and_spoils_no_other_block(codec, bad, numel):
    values = normal(numel, 5)
    values[-1] = bad
    back = codec.decode(codec.encode(values), numel)
    assert not bool(torch.isfinite(back).all())
    assert bool(torch.isfinite(back[: (numel - 1) // 256 * 256]).all())


@EACH
def test_out_is_filled_and_returned(codec):
    values = normal(777, 6)
    data, back = torch.zeros(codec.encoded_bytes(777), dtype=torch.uint8), torch.zeros(777)
    assert codec.encode(values, data) is data
    assert codec.decode(data, 777, back) is back
    assert torch.equal(data, codec.encode(values))
    assert torch.equal(back, codec.decode(data, 777))


@EACH
def test_bytes_views_and_odd_addresses_decode_alike_without_a_warning(codec):
    values = normal(777, 7)
    data = codec.encode(values)
    wanted = codec.decode(data, 777)
    raw = data.numpy().tobytes()
    shifted = torch.cat((torch.zeros(1, dtype=torch.uint8), data))[1:]
    for form in (raw, bytearray(raw), memoryview(raw), memoryview(b"x" + raw)[1:], shifted):
        assert torch.equal(codec.decode(form, 777), wanted)


@EACH
def test_decoding_never_hands_out_a_view_of_the_bytes(codec):
    data = codec.encode(normal(10, 8))
    back = codec.decode(data, 10)
    kept = back.clone()
    data.zero_()
    assert torch.equal(back, kept)


@EACH
def test_a_wrong_length_is_the_peers_fault_with_both_figures(codec):
    wanted = codec.encoded_bytes(300)
    for have in (0, wanted - 1, wanted + 1):
        for use in (codec.decode, codec.open):
            with pytest.raises(MalformedFrame, match=f"{have} bytes where {wanted}"):
                use(bytes(have), 300)


@EACH
def test_values_or_buffers_of_another_form_are_our_mistake(codec):
    for bad in (torch.zeros(3, 3), torch.zeros(3, dtype=torch.float64)):
        with pytest.raises(MachineError, match="flat float32"):
            codec.encode(bad)
    with pytest.raises(MachineError, match="out must be"):
        codec.encode(torch.zeros(3), torch.zeros(1, dtype=torch.uint8))
    with pytest.raises(MachineError, match="out must be"):
        codec.decode(codec.encode(torch.zeros(3)), 3, torch.zeros(4))
    with pytest.raises(MachineError, match="flat uint8"):
        codec.decode(torch.zeros(codec.encoded_bytes(8)), 8)


@EACH
def test_the_bits_do_not_depend_on_the_thread_count(codec):
    values = normal(1_300_001, 9)
    found = {}
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            data = codec.encode(values)
            payload = codec.open(data, values.numel())
            acc = torch.ones(500_001)
            payload.add_to(acc, 77, 0.3, torch.empty(500_001))
            parts = (data.numpy().tobytes(), codec.decode(data, values.numel()).numpy().tobytes())
            found[threads] = (*parts, payload.squares((0, 77, 600_000)), acc.numpy().tobytes())
    finally:
        torch.set_num_threads(1)
    assert found[1] == found[2] == found[3]


@EACH
@given(st.integers(1, 1100), st.integers(0, 2**31), st.data())
def test_adding_a_range_is_adding_what_it_decodes_to(codec, numel, seed, data):
    values = normal(numel, seed)
    encoded = codec.encode(values)
    start = data.draw(st.integers(0, numel - 1))
    stop = data.draw(st.integers(start + 1, numel))
    acc = torch.ones(stop - start)
    codec.open(encoded, numel).add_to(acc, start, -0.7, torch.empty(stop - start))
    exact = 1.0 - 0.7 * codec.decode(encoded, numel)[start:stop].double()
    assert float((acc.double() - exact).abs().max()) <= 2e-6


@EACH
def test_with_the_residual_carried_the_sum_of_what_was_sent_tends_to_the_true_sum(codec):
    work, sent, forgetful = torch.zeros(3, 2000, dtype=torch.float64)
    carried = torch.zeros(2000)
    errors = []
    for round_number in range(40):
        done = normal(2000, round_number) + 0.3
        work += done
        carried += done  # u, before the cut
        decoded = codec.decode(codec.encode(carried), 2000)
        sent += decoded
        carried -= decoded  # what the codec rounded off stays in u
        forgetful += codec.decode(codec.encode(done), 2000)
        errors.append(float((sent - work).norm() / work.norm()))
    assert errors[-1] < FORTY_ROUNDS[codec.name]
    assert errors[-1] <= errors[0] / 3 or errors[0] < 1e-6
    assert codec.name == "fp32" or float((sent - work).norm()) < 0.5 * float((forgetful - work).norm())


def test_the_names_are_those_of_the_codecs():
    assert NAMES == ("fp32", "bf16", "int8", "4bit")
    assert [get_codec(name).name for name in NAMES] == list(NAMES)


def test_an_unknown_codec_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'int8'"):
        get_codec("int-8")
