"""Codecs that store each value on its own, in some floating-point type: everything but the type is the same."""

from collections.abc import Sequence

import torch
from torch import Tensor

from zdiloco.tensor.blocks import blocks, scratch_for, slices, square_sum
from zdiloco.tensor.codecs.protocol import Encoded, as_bytes, flat_values, output


class PlainPayload:
    """Values of one floating-point type, opened in place."""

    def __init__(self, values: Tensor) -> None:
        self._values = values  # (n,) fp32 or bf16

    def squares(self, cuts: Sequence[int]) -> tuple[float, ...]:
        """Return the sum of squares of each tensor, in float64 over fixed blocks."""
        scratch = scratch_for(self._values.numel(), torch.float64)
        return tuple(
            sum(square_sum(self._values[a:b], scratch) for a, b in blocks(start, stop))
            for start, stop in slices(cuts, self._values.numel())
        )

    def add_to(self, acc: Tensor, start: int, factor: float, scratch: Tensor) -> None:
        """acc += factor * values[start : start + len(acc)], in fp32."""
        part = self._values[start : start + acc.numel()]
        if part.dtype is not torch.float32:
            part = scratch[: acc.numel()].copy_(part)
        acc.add_(part, alpha=factor)


class PlainCodec:
    """Rounds each value to `dtype`, to nearest even; NaN and infinities are kept."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self._name = name
        self._dtype = dtype

    @property
    def name(self) -> str:
        """The name by which configuration and wire call it."""
        return self._name

    def encoded_bytes(self, numel: int) -> int:
        """Return the size of the type times the number of values."""
        return numel * self._dtype.itemsize

    def encode(self, values: Tensor, out: Tensor | None = None) -> Tensor:
        """Encode (n,) fp32 into (encoded_bytes(n),) uint8."""
        values = flat_values(values)
        out = output(out, self.encoded_bytes(values.numel()), torch.uint8)
        out.view(self._dtype).copy_(values)
        return out

    def decode(self, data: Encoded, numel: int, out: Tensor | None = None) -> Tensor:
        """Decode to (numel,) fp32, exactly. Raises: MalformedFrame for a wrong length."""
        values = as_bytes(data, self.encoded_bytes(numel), self._name).view(self._dtype)
        return output(out, numel, torch.float32).copy_(values)

    def open(self, data: Encoded, numel: int) -> PlainPayload:
        """Return `data` ready to be merged. Raises: MalformedFrame for a wrong length."""
        return PlainPayload(as_bytes(data, self.encoded_bytes(numel), self._name).view(self._dtype))
