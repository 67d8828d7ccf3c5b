"""Published deltas (docs/math.md, 7b): D = Q(Theta' - R), and R' = R + D, rounded to the grid on which references live.

Rule: R' has the same bits wherever it is worked out. Scales are powers of two, so a level times its scale is exact,
and R + D is rounded once to fp32, by a fused multiply-add or not, and then once to the grid. Sums here are value by
value: neither threads nor the order of blocks can change a bit.
"""

import torch
from torch import Tensor

from zdiloco.tensor.blocks import blocks, scratch_for
from zdiloco.tensor.codecs import Encoded, get_codec
from zdiloco.tensor.codecs.four_bit import FourBitCodec
from zdiloco.tensor.codecs.int8 import Int8Codec
from zdiloco.tensor.codecs.protocol import as_bytes

GRIDS = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""Codec of a whole published value -> its type: what decodes from it encodes to the same bytes."""

_ENCODERS = {codec.name: codec for codec in (Int8Codec(powers=True), FourBitCodec(powers=True))}
CODECS = tuple(_ENCODERS)
"""The codecs of a delta. Their bytes are read like those of any other; only the encoder is another one."""


def on_grid(value: Tensor, grid: str) -> Tensor:
    """The values (n,) in the type of the grid that the bytes `value`, u8, hold; a view where memory allows it."""
    return as_bytes(value, value.numel(), grid).view(GRIDS[grid])


def encode_delta(theta: Tensor, reference: Tensor, codec: str) -> Tensor:
    """D as (encoded_bytes(n),) u8, of theta (n,) fp32 and R (n,) fp32 or bf16."""
    return _ENCODERS[codec].encode(theta, less=reference)


def add_delta(reference: Tensor, delta: Encoded, codec: str, grid: str) -> Tensor:
    """R' as bytes on `grid`, u8, of R (n,) fp32 or bf16 and D. Raises MalformedFrame for a wrong length."""
    numel, dtype = reference.numel(), GRIDS[grid]
    payload = get_codec(codec).open(delta, numel)
    value = torch.empty(numel * dtype.itemsize, dtype=torch.uint8)
    moved = value.view(dtype)
    total, scratch = scratch_for(numel), scratch_for(numel)
    for a, b in blocks(0, numel):
        part = total[: b - a].copy_(reference[a:b])
        payload.add_to(part, a, 1.0, scratch)
        moved[a:b].copy_(part)
    return value
