"""int8: blocks of 256 values share one fp32 scale, the largest magnitude over 127; 1 + 1/64 bytes a value.

Bytes: all scales (fp32), then all levels (int8). The last block may be short. The error of a value is at most half its
block's scale. A block with a value that is not finite gets a scale that is not finite and levels 0, and decodes to NaN.
The encoder may round scales up to powers of two, which makes every level times its scale exact (`tensor/delta.py`).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from zdiloco.tensor.blocks import ROW, blocks, part_of, scratch_for, slices, sum64
from zdiloco.tensor.codecs.powers import round_up_
from zdiloco.tensor.codecs.protocol import Encoded, as_bytes, flat_values, output

LEVELS = 127
SCALE_MIN = 2.0**-126  # below the smallest normal number a scale would lose bits, and its reciprocal overflow
SAFE_SCALE = torch.finfo(torch.float32).max / 128  # times any level it is finite


def _split(data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
    """Return scales (ceil(n/256),) fp32 and levels (n,) int8 as views of the encoded bytes."""
    scale_bytes = 4 * (-(-numel // ROW))
    return data[:scale_bytes].view(torch.float32), data[scale_bytes:].view(torch.int8)


def _decode(scales: Tensor, levels: Tensor, out: Tensor) -> Tensor:
    """out (n,) fp32 <- level times scale."""
    whole = out.numel() // ROW * ROW
    for a, b in blocks(0, whole):
        part = out[a:b].copy_(levels[a:b]).view(-1, ROW)
        part.mul_(scales[a // ROW : b // ROW].view(-1, 1))
    if whole < out.numel():
        out[whole:].copy_(levels[whole:]).mul_(scales[-1])
    return out


class Int8Payload:
    """Scales and levels, opened in place."""

    def __init__(self, scales: Tensor, levels: Tensor) -> None:
        self._scales = scales  # (ceil(n/256),) fp32
        self._levels = levels  # (n,) int8

    def squares(self, cuts: Sequence[int]) -> tuple[float, ...]:
        """Return the sum of squares of each tensor: whole levels are summed exactly per row, then scaled in float64."""
        if not self._decodes_to_finite():
            return tuple(math.inf for _ in slices(cuts, self._levels.numel()))
        weights = self._scales.double().square_()  # (rows,) float64
        per_row = self._row_squares().mul_(weights)
        return tuple(self._slice_squares(start, stop, per_row) for start, stop in slices(cuts, self._levels.numel()))

    def add_to(self, acc: Tensor, start: int, factor: float, scratch: Tensor) -> None:
        """acc += (factor * scale) * level, in fp32; rows that a tensor boundary cuts are added piece by piece."""
        stop = start + acc.numel()
        first = min(-(-start // ROW) * ROW, stop)
        last = max(stop // ROW * ROW, first)
        if first < last:
            rows = (last - first) // ROW
            levels = scratch[: last - first].copy_(self._levels[first:last]).view(rows, ROW)
            scales = (self._scales[first // ROW : last // ROW] * factor).view(rows, 1)
            acc[first - start : last - start].view(rows, ROW).addcmul_(levels, scales)
        for a, b in ((start, first), (last, stop)):
            if a < b:
                scale = self._scales[a // ROW] * factor
                acc[a - start : b - start].addcmul_(scratch[: b - a].copy_(self._levels[a:b]), scale)

    def _decodes_to_finite(self) -> bool:
        """Whether level times scale fits fp32; only the bytes of a faulty peer need more than a look at the scales."""
        if not self._scales.numel() or bool(self._scales.abs().amax() <= SAFE_SCALE):
            return True
        values = _decode(self._scales, self._levels, torch.empty(self._levels.numel(), dtype=torch.float32))
        return bool(torch.isfinite(values).all())

    def _row_squares(self) -> Tensor:
        """Sum of squared levels of each row, (rows,) float64; exact, since 256 * 128^2 < 2^24."""
        numel = self._levels.numel()
        sums = torch.empty(self._scales.numel(), dtype=torch.float32)
        scratch = scratch_for(numel)
        whole = numel // ROW * ROW
        for a, b in blocks(0, whole):
            levels = scratch[: b - a].copy_(self._levels[a:b])
            torch.sum(levels.mul_(levels).view(-1, ROW), dim=1, out=sums[a // ROW : b // ROW])
        if whole < numel:
            levels = self._levels[whole:].float()
            sums[-1] = torch.sum(levels.mul_(levels))
        return sums.double()

    def _slice_squares(self, start: int, stop: int, per_row: Tensor) -> float:
        first = min(-(-start // ROW) * ROW, stop)
        last = max(stop // ROW * ROW, first)
        total = sum64(per_row[first // ROW : last // ROW])
        for a, b in ((start, first), (last, stop)):
            if a < b:
                levels = self._levels[a:b].double()
                total += float(torch.sum(levels.mul_(levels))) * float(self._scales[a // ROW]) ** 2
        return total


class Int8Codec:
    """Absolute-maximum quantisation per block of 256 values (docs/math.md, 14 to 16); `powers`: of two, as scales."""

    def __init__(self, *, powers: bool = False) -> None:
        self._powers = powers

    @property
    def name(self) -> str:
        """The name by which configuration and wire call it."""
        return "int8"

    def encoded_bytes(self, numel: int) -> int:
        """Return one byte a value and four bytes for each begun block of 256."""
        return numel + 4 * (-(-numel // ROW))

    def encode(self, values: Tensor, out: Tensor | None = None, less: Tensor | None = None) -> Tensor:
        """Encode (n,) fp32 into (encoded_bytes(n),) uint8; finite values stay finite, others stay visible.

        `less`: encode values - less, (n,) fp32 or bf16, which is never written down whole.
        """
        values = flat_values(values)
        numel = values.numel()
        out = output(out, self.encoded_bytes(numel), torch.uint8)
        scales, levels = _split(out, numel)
        scratch, room = scratch_for(numel), scratch_for(numel)
        whole = numel // ROW * ROW
        for a, b in blocks(0, whole):
            part = part_of(values, less, (a, b), room)
            self._encode_rows(part, scales[a // ROW : b // ROW], levels[a:b], scratch, ROW)
        if whole < numel:
            part = part_of(values, less, (whole, numel), room)
            self._encode_rows(part, scales[-1:], levels[whole:], scratch, numel - whole)
        if not bool(torch.isfinite(scales).all()):
            # A cast of NaN to a whole number is not defined; these blocks decode to NaN through their scale.
            for row in (~torch.isfinite(scales)).nonzero().flatten().tolist():
                levels[row * ROW : (row + 1) * ROW].zero_()
        return out

    def decode(self, data: Encoded, numel: int, out: Tensor | None = None) -> Tensor:
        """Decode to (numel,) fp32: level times scale. Raises: MalformedFrame for a wrong length."""
        scales, levels = _split(as_bytes(data, self.encoded_bytes(numel), self.name), numel)
        return _decode(scales, levels, output(out, numel, torch.float32))

    def open(self, data: Encoded, numel: int) -> Int8Payload:
        """Return `data` ready to be merged. Raises: MalformedFrame for a wrong length."""
        return Int8Payload(*_split(as_bytes(data, self.encoded_bytes(numel), self.name), numel))

    def _encode_rows(self, values: Tensor, scales: Tensor, levels: Tensor, scratch: Tensor, row: int) -> None:
        """Write scales (r,) and levels (r*row,) of values (r*row,); multiplied once, rounded to even, never divided."""
        work = scratch[: values.numel()]
        rows = work.view(-1, row)
        torch.abs(values, out=work)
        torch.amax(rows, dim=1, out=scales)
        scales.mul_(1.0 / LEVELS).clamp_(min=SCALE_MIN)
        if self._powers:
            round_up_(scales)
        torch.mul(values.view(-1, row), scales.reciprocal().view(-1, 1), out=rows)
        levels.copy_(work.round_())
