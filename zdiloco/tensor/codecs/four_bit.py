"""4bit: e2m1 (a sign, two exponent bits, one of mantissa) in blocks of 64 that share one bf16 scale.

Bytes: all scales (bf16), then all codes, two a byte, the earlier value in the low half; of an odd number the last high
half is 0. The last block may be short. 17/32 of a byte a value: fp32 is 7.53 times as long. A level times a scale is
exact in fp32. A block with a value that is not finite gets the scale NaN and codes 0, and decodes to NaN. The encoder
may round scales up to powers of two (`tensor/delta.py`); then values of up to 7 times the scale get level 6.

Each way is one look-up of two values at a time, in tables that stay in cache: a byte becomes two levels, and a pair of
quarters, cut off to whole numbers, a byte. All borders between levels are whole quarters, so no rounding is lost by it.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from zdiloco.tensor.blocks import blocks, part_of, scratch_for, slices, sum64
from zdiloco.tensor.codecs.powers import round_up_
from zdiloco.tensor.codecs.protocol import Encoded, as_bytes, flat_values, output

ROW = 64  # values that share a scale
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1: codes 0 to 7; 8 to 15 are their negatives
PEAK = MAGNITUDES[-1]
BEYOND_PEAK = 7.0  # as far above the last level as the middle between the last two is below: no error is larger
QUARTERS = 4  # of a level's unit
SCALE_MIN = 2.0**-125  # its reciprocal times 4 is finite, and half of it is a normal number still
SAFE_SCALE = torch.finfo(torch.float32).max / 8  # times any level it is finite

Table: TypeAlias = npt.NDArray[Any]


def _unpacking() -> tuple[Table, Table]:
    """Of each byte: its two levels (256,), a pair of fp32 in one complex64, and their sum of squares (256,) fp32."""
    levels = np.array([*MAGNITUDES, *(-level for level in MAGNITUDES)], np.float32)
    byte = np.arange(256)
    pairs = np.stack((levels[byte & 15], levels[byte >> 4]), axis=1)  # (256, 2)
    return pairs.view(np.complex64).ravel(), np.square(pairs).sum(axis=1)


def _packing() -> Table:
    """The byte (65536,) uint8 of each pair of quarters, two int8 read as one uint16; ties go away from zero."""
    quarters = np.arange(256).astype(np.uint8).view(np.int8).astype(np.int64)
    borders = [QUARTERS * (low + high) / 2 for low, high in itertools.pairwise(MAGNITUDES)]
    magnitude = np.searchsorted(borders, np.abs(quarters), side="right")
    code = np.where(quarters < 0, magnitude + 8, magnitude)
    pair = np.arange(65536)
    packed: Table = (code[pair & 255] | code[pair >> 8] << 4).astype(np.uint8)
    return packed


_LEVELS, _SQUARES = _unpacking()
_BYTES = _packing()


def _split(data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
    """Return scales (ceil(n/64),) bf16 and packed codes (ceil(n/2),) uint8 as views of the encoded bytes."""
    scale_bytes = 2 * (-(-numel // ROW))
    return data[:scale_bytes].view(torch.bfloat16), data[scale_bytes:]


def _look_up(packed: Tensor, out: Tensor) -> Tensor:
    """out (2k,) fp32 <- the levels of `packed` (k,)."""
    # "wrap" never wraps here, since the table has an entry for every byte: it spares numpy a copy of `out`.
    np.take(_LEVELS, packed.numpy(), out=out.numpy().view(np.complex64), mode="wrap")
    return out


def _short_levels(packed: Tensor, start: int, stop: int) -> Tensor:
    """Levels of values start..stop of `packed`, (stop - start,) fp32, in fresh memory: for less than a row."""
    first = start // 2 * 2
    last = -(-stop // 2)
    return _look_up(packed[first // 2 : last], torch.empty(2 * last - first))[start - first : stop - first]


def _decode(scales: Tensor, packed: Tensor, out: Tensor) -> Tensor:
    """out (n,) fp32 <- level times scale (ceil(n/64),) fp32."""
    whole = out.numel() // ROW * ROW
    for a, b in blocks(0, whole):
        part = _look_up(packed[a // 2 : b // 2], out[a:b]).view(-1, ROW)
        part.mul_(scales[a // ROW : b // ROW].view(-1, 1))
    if whole < out.numel():
        torch.mul(_short_levels(packed, whole, out.numel()), scales[-1], out=out[whole:])
    return out


def _whole_rows(start: int, stop: int) -> tuple[int, int]:
    """The (first, last) of start..stop that whole rows fill; first = last where there are none."""
    first = min(-(-start // ROW) * ROW, stop)
    return first, max(stop // ROW * ROW, first)


class FourBitPayload:
    """Scales and packed codes, the codes opened in place."""

    def __init__(self, scales: Tensor, packed: Tensor, numel: int) -> None:
        self._scales = scales.float()  # (ceil(n/64),) fp32
        self._packed = packed  # (ceil(n/2),) uint8
        self._numel = numel

    def squares(self, cuts: Sequence[int]) -> tuple[float, ...]:
        """Return the sum of squares of each tensor: whole levels are summed exactly per row, then scaled in float64."""
        parts = slices(cuts, self._numel)
        if not self._decodes_to_finite():
            return tuple(math.inf for _ in parts)
        per_row = self._row_squares().mul_(self._scales[: self._numel // ROW].double().square_())
        return tuple(self._slice_squares(start, stop, per_row) for start, stop in parts)

    def add_to(self, acc: Tensor, start: int, factor: float, scratch: Tensor) -> None:
        """acc += (factor * scale) * level, in fp32; rows that a tensor boundary cuts are added piece by piece."""
        stop = start + acc.numel()
        first, last = _whole_rows(start, stop)
        if first < last:
            levels = _look_up(self._packed[first // 2 : last // 2], scratch[: last - first]).view(-1, ROW)
            scales = (self._scales[first // ROW : last // ROW] * factor).view(-1, 1)
            acc[first - start : last - start].view(-1, ROW).addcmul_(levels, scales)
        for a, b in self._pieces(start, first, last, stop):
            acc[a - start : b - start].addcmul_(_short_levels(self._packed, a, b), self._scales[a // ROW] * factor)

    def _pieces(self, start: int, first: int, last: int, stop: int) -> Iterator[tuple[int, int]]:
        """What whole rows leave of start..stop: at most two pieces, each inside one row."""
        yield from ((a, b) for a, b in ((start, first), (last, stop)) if a < b)

    def _decodes_to_finite(self) -> bool:
        """Whether level times scale fits fp32; only the bytes of a faulty peer need more than a look at the scales."""
        if not self._scales.numel() or bool(self._scales.abs().amax() <= SAFE_SCALE):
            return True
        values = _decode(self._scales, self._packed, torch.empty(self._numel))
        return bool(torch.isfinite(values).all())

    def _row_squares(self) -> Tensor:
        """Sum of squared levels of each whole row, (n // 64,) float64; exact, as quarters up to 64 * 36 are in fp32."""
        whole = self._numel // ROW * ROW
        sums = torch.empty(whole // ROW)
        scratch = scratch_for(whole // 2)
        for a, b in blocks(0, whole):
            part = scratch[: (b - a) // 2]
            np.take(_SQUARES, self._packed[a // 2 : b // 2].numpy(), out=part.numpy(), mode="wrap")
            torch.sum(part.view(-1, ROW // 2), dim=1, out=sums[a // ROW : b // ROW])
        return sums.double()

    def _slice_squares(self, start: int, stop: int, per_row: Tensor) -> float:
        first, last = _whole_rows(start, stop)
        total = sum64(per_row[first // ROW : last // ROW])
        for a, b in self._pieces(start, first, last, stop):
            levels = _short_levels(self._packed, a, b).double()
            total += float(torch.sum(levels.mul_(levels))) * float(self._scales[a // ROW]) ** 2
        return total


class FourBitCodec:
    """Block floating point in 4 bits a value (docs/math.md, section 5); `powers`: of two, as scales."""

    def __init__(self, *, powers: bool = False) -> None:
        self._powers = powers

    @property
    def name(self) -> str:
        """The name by which configuration and wire call it."""
        return "4bit"

    def encoded_bytes(self, numel: int) -> int:
        """Return half a byte a value, rounded up, and two bytes for each begun block of 64."""
        return -(-numel // 2) + 2 * (-(-numel // ROW))

    def encode(self, values: Tensor, out: Tensor | None = None, less: Tensor | None = None) -> Tensor:
        """Encode (n,) fp32 into (encoded_bytes(n),) uint8; finite values stay finite, others stay visible.

        `less`: encode values - less, (n,) fp32 or bf16, which is never written down whole.
        """
        values = flat_values(values)
        numel = values.numel()
        out = output(out, self.encoded_bytes(numel), torch.uint8)
        scales, packed = _split(out, numel)
        work, quarters, room = scratch_for(numel), scratch_for(numel, torch.int8), scratch_for(numel)
        whole = numel // ROW * ROW
        for a, b in blocks(0, whole):
            part = part_of(values, less, (a, b), room)
            self._encode_rows(part, scales[a // ROW : b // ROW], packed[a // 2 : b // 2], (work, quarters))
        if whole < numel:
            short = torch.zeros(ROW)
            short[: numel - whole] = part_of(values, less, (whole, numel), room)
            half = torch.empty(ROW // 2, dtype=torch.uint8)
            self._encode_rows(short, scales[-1:], half, (torch.empty(ROW), torch.empty(ROW, dtype=torch.int8)))
            packed[whole // 2 :] = half[: packed.numel() - whole // 2]
        _mark_non_finite(scales, packed)
        return out

    def decode(self, data: Encoded, numel: int, out: Tensor | None = None) -> Tensor:
        """Decode to (numel,) fp32: level times scale. Raises: MalformedFrame for a wrong length."""
        scales, packed = _split(as_bytes(data, self.encoded_bytes(numel), self.name), numel)
        return _decode(scales.float(), packed, output(out, numel, torch.float32))

    def open(self, data: Encoded, numel: int) -> FourBitPayload:
        """Return `data` ready to be merged. Raises: MalformedFrame for a wrong length."""
        return FourBitPayload(*_split(as_bytes(data, self.encoded_bytes(numel), self.name), numel), numel)

    def _encode_rows(self, values: Tensor, scales: Tensor, packed: Tensor, scratch: tuple[Tensor, Tensor]) -> None:
        """Write scales (r,) bf16 and packed (32r,) of values (64r,); `scratch`: fp32 and int8 of as many values."""
        work, quarters = (each[: values.numel()] for each in scratch)
        rows = work.view(-1, ROW)
        peak = BEYOND_PEAK if self._powers else PEAK
        wide = torch.amax(torch.abs(values, out=work).view(-1, ROW), dim=1).mul_(1.0 / peak).clamp_(min=SCALE_MIN)
        if self._powers:
            round_up_(wide)
        # Cut off, not rounded, to its upper half: PEAK times a scale rounded up could be beyond fp32.
        scales.copy_(wide.view(torch.bfloat16)[1::2])
        factors = wide.copy_(scales).reciprocal_().mul_(QUARTERS)
        torch.mul(values.view(-1, ROW), factors.view(-1, 1), out=rows)
        quarters.copy_(work)  # cuts off: 2.999 quarters are 2
        np.take(_BYTES, quarters.numpy().view(np.uint16), out=packed.numpy(), mode="wrap")


def _mark_non_finite(scales: Tensor, packed: Tensor) -> None:
    """Give every block that is not finite the same bytes: a cast of NaN to a whole number is not defined."""
    finite = torch.isfinite(scales)
    if bool(finite.all()):
        return
    for row in (~finite).nonzero().flatten().tolist():
        scales[row] = math.nan
        packed[row * ROW // 2 : (row + 1) * ROW // 2].zero_()
