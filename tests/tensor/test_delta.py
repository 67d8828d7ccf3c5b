"""Published deltas: the same bits of R' in whatever order and with whatever rounding unit they are worked out."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zdiloco.errors import MalformedFrame
from zdiloco.tensor.blocks import BLOCK
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.delta import CODECS, GRIDS, add_delta, encode_delta, on_grid

ROWS = {"int8": 256, "4bit": 64}
EACH = pytest.mark.parametrize("codec", CODECS)
ON = pytest.mark.parametrize("grid", GRIDS)
LENGTHS = (0, 1, 65, 256, 1217)
SIZES = ((0.0, 0.0), (1.0, 0.0), (0.0, 1e-45), (3e-42, 3e-42), (1e-39, 1e-37), (2.0**-126, 1e-30), (1.0, 1e-45),
         (1.0, 1e-9), (1.0, 1e-3), (1.0, 1.0), (1e-30, 1.0), (1e20, 1e16), (1e37, 1e37), (0.0, 1e37))  # fmt: skip
"""Of R, and of what has changed: subnormal, ordinary and huge ones, and zeros."""


def normal(numel: int, seed: int, size: float = 1.0) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(numel)
    return torch.from_numpy((values * size).astype(np.float32))


def rounded(values: Tensor, grid: str) -> Tensor:
    """Values (n,) fp32 on the grid, as published first."""
    return get_codec(grid).decode(get_codec(grid).encode(values), values.numel())


def levels_and_scales(delta: Tensor, codec: str, numel: int) -> tuple[Tensor, Tensor]:
    """Both (n,) float64, read from the bytes with nothing of the codec's own code."""
    row, nbytes = ROWS[codec], {"int8": 4, "4bit": 2}[codec]
    rows = math.ceil(numel / row)
    scales, rest = delta[: nbytes * rows], delta[nbytes * rows :]
    wide = scales.view(torch.float32 if codec == "int8" else torch.bfloat16).double().repeat_interleave(row)[:numel]
    if codec == "int8":
        return rest.view(torch.int8).double(), wide
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
    codes = torch.stack((rest & 15, rest >> 4), dim=1).flatten()[:numel].long()
    return torch.where(codes >= 8, -1.0, 1.0).double() * table[codes % 8], wide


def by_float64(r: Tensor, levels: Tensor, scales: Tensor) -> Tensor:
    """One rounding at the very end, as a fused multiply-add has it: float64 holds level times scale, and their sum
    with R is rounded to odd where float64 does not hold it, so that it is rounded to fp32 once."""
    exact = levels * scales
    total = r.double() + exact
    lost = (exact - (total - r.double())) + (r.double() - (total - (total - r.double())))
    bits = total.view(torch.int64)
    even = (bits & 1) == 0
    away = torch.where((lost > 0) == (total >= 0), bits + 1, bits - 1)
    odd = torch.where((lost != 0) & even, away, bits)
    return odd.view(torch.float64).float()


def by_product_first(r: Tensor, levels: Tensor, scales: Tensor) -> Tensor:
    return r + levels.float() * scales.float()


def by_addcmul(r: Tensor, levels: Tensor, scales: Tensor) -> Tensor:
    return torch.addcmul(r, levels.float(), scales.float())


def by_halves(r: Tensor, levels: Tensor, scales: Tensor) -> Tensor:
    """The scale split over both factors, as a kernel that works with exponents may do it."""
    half = scales.float() * 2.0**-8
    return torch.addcmul(r, levels.float() * 2.0**8, half)


WAYS: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
    by_float64, by_product_first, by_addcmul, by_halves,
)  # fmt: skip


@EACH
@ON
@pytest.mark.parametrize("numel", LENGTHS)
def test_every_way_of_adding_gives_the_same_bits(codec: str, grid: str, numel: int) -> None:
    for seed, (size, moved) in enumerate(SIZES):
        reference = rounded(normal(numel, seed, size), grid)
        theta = reference + normal(numel, seed + 1000, moved)
        delta = encode_delta(theta, reference, codec)
        levels, scales = levels_and_scales(delta, codec, numel)
        mantissas = torch.frexp(scales).mantissa
        assert bool((mantissas == 0.5).all()), "scales are powers of two"
        assert bool(((levels * scales).float().double() == levels * scales).all()), "a level times its scale is exact"
        value = add_delta(reference, delta, codec, grid)
        for way in WAYS:
            made = get_codec(grid).encode(way(reference, levels, scales))
            assert torch.equal(made, value), (way.__name__, size, moved)
        narrow = add_delta(on_grid(get_codec(grid).encode(reference), grid), delta, codec, grid)
        assert torch.equal(narrow, value), "the syncer reads R on its grid, a learner has it in fp32"


@EACH
@ON
def test_the_bits_do_not_depend_on_threads_or_blocks(codec: str, grid: str) -> None:
    numel = 2 * BLOCK + 77
    reference = rounded(normal(numel, 1), grid)
    theta = reference + normal(numel, 2, 1e-2)
    found = set()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            delta = encode_delta(theta, reference, codec)
            found.add((delta.numpy().tobytes(), add_delta(reference, delta, codec, grid).numpy().tobytes()))
    finally:
        torch.set_num_threads(1)
    assert len(found) == 1
    ((data, value),) = found
    cut = 3 * 256 * 7
    levels, scales = levels_and_scales(torch.frombuffer(bytearray(data), dtype=torch.uint8), codec, numel)
    pieces = [by_addcmul(reference[a:b], levels[a:b], scales[a:b]) for a, b in ((0, cut), (cut, numel))]
    assert get_codec(grid).encode(torch.cat(pieces)).numpy().tobytes() == value


@EACH
@settings(max_examples=25)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=300), st.data())
def test_what_is_lost_is_at_most_half_a_scale_or_a_level(codec: str, numbers: list[float], data: st.DataObject) -> None:
    theta = torch.tensor(numbers, dtype=torch.float32)
    reference = rounded(theta * data.draw(st.sampled_from([0.0, 0.5, 0.999])), "bf16")
    difference = theta - reference
    if not bool(torch.isfinite(difference).all()) or float(difference.abs().max()) > 1e38:
        return
    delta = encode_delta(theta, reference, codec)
    levels, scales = levels_and_scales(delta, codec, len(numbers))
    error = (levels * scales - difference.double()).abs()
    allowed = scales * (0.5 if codec == "int8" else 1.0) * (1 + 1e-6)
    small = difference.double().abs() <= 2 * scales
    assert bool((error <= allowed).all())
    assert codec == "int8" or bool((error[small] <= scales[small] / 4 * (1 + 1e-6)).all())


@EACH
@ON
def test_where_nothing_has_changed_nothing_does(codec: str, grid: str) -> None:
    reference = rounded(torch.cat((normal(300, 3), torch.zeros(200), normal(100, 4, 1e-40))), grid)
    delta = encode_delta(reference, reference, codec)
    assert float(get_codec(codec).decode(delta, 600).abs().max()) == 0.0
    moved = on_grid(add_delta(reference, delta, codec, grid), grid)
    assert torch.equal(moved.float(), reference), "but for the sign of a zero"


@EACH
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_visible_and_in_its_block(codec: str, bad: float) -> None:
    reference = torch.zeros(1000)
    theta = normal(1000, 5)
    theta[700] = bad
    value = on_grid(add_delta(reference, encode_delta(theta, reference, codec), codec, "bf16"), "bf16")
    first = 700 // ROWS[codec] * ROWS[codec]
    assert not bool(torch.isfinite(value[700]))
    assert bool(torch.isfinite(value[:first]).all())
    assert bool(torch.isfinite(value[first + ROWS[codec] :]).all())


@EACH
def test_a_delta_of_a_wrong_length_is_the_peers_fault(codec: str) -> None:
    reference = torch.zeros(300)
    delta = encode_delta(reference, reference, codec)
    with pytest.raises(MalformedFrame, match="are right"):
        add_delta(reference, delta[:-1], codec, "bf16")


@EACH
@ON
def test_what_is_rounded_off_reaches_everybody_later(codec: str, grid: str) -> None:
    """Theta moves steadily; R follows it, and the distance does not grow with the number of rounds."""
    numel, size = 2000, torch.exp(2 * normal(2000, 6))
    theta = normal(numel, 7)
    value, distances = get_codec(grid).encode(theta), []
    for seed in range(60):
        theta = theta + 1e-3 * size * (1 + normal(numel, seed))
        reference = on_grid(value, grid)
        value = add_delta(reference, encode_delta(theta, reference, codec), codec, grid)
        distances.append(float((theta - on_grid(value, grid).float()).norm() / theta.norm()))
    assert max(distances[20:]) < 1.2 * max(distances[:20])
    least = {"bf16": 2.0**-9, "fp32": 0.0}[grid]
    assert distances[-1] < least + {"int8": 1e-3, "4bit": 1e-2}[codec]


@EACH
@pytest.mark.gpu
def test_a_cuda_device_gives_the_same_bits(codec: str) -> None:
    numel = 100_003
    reference = rounded(normal(numel, 8), "bf16")
    delta = encode_delta(reference + normal(numel, 9, 1e-2), reference, codec)
    levels, scales = (each.float().cuda() for each in levels_and_scales(delta, codec, numel))
    near = reference.cuda()
    value = on_grid(add_delta(reference, delta, codec, "bf16"), "bf16")
    for made in (near + levels * scales, torch.addcmul(near, levels, scales)):
        assert torch.equal(made.bfloat16().cpu(), value)
