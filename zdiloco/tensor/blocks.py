"""Fixed blocks in index order, and float64 sums over them.

Every sum whose bits matter goes through `sum64`: rows of 256 first, then the rows. A row is summed by one thread
whatever the thread count, so the result depends on the values alone. Blocks keep temporaries in cache.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ROW = 256  # elements of one row, and of one int8 block
BLOCK = 524_288  # elements of one block, 2 MiB of fp32: the least time in calls and cache together, as measured


def sum64(values: Tensor) -> float:
    """Sum a flat float64 tensor of any length in an order that does not depend on the thread count.

    Rows of 256 are summed first, then the sums in rows of 256, until one row is left; the last row may be short.
    """
    while values.numel() > ROW:
        whole = values.numel() // ROW * ROW
        rows = torch.sum(values[:whole].view(-1, ROW), dim=1)
        values = torch.cat((rows, torch.sum(values[whole:], dim=0, keepdim=True))) if whole < values.numel() else rows
    return float(torch.sum(values))


def square_sum(values: Tensor, scratch: Tensor) -> float:
    """Return the sum of squares of flat fp32, bf16 or fp64 `values`, in float64; `scratch`: (>= n,) float64."""
    wide = scratch[: values.numel()]
    wide.copy_(values)
    return sum64(wide.mul_(wide))


def slices(cuts: Sequence[int], numel: int) -> list[tuple[int, int]]:
    """Return the (start, stop) pairs of the tensors that start at `cuts` in a vector of `numel`; no cuts: all of it."""
    starts = list(cuts) or [0]
    return list(zip(starts, [*starts[1:], numel], strict=True))


def blocks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut [start, stop) at the multiples of BLOCK, so that rows of one block never straddle two."""
    while start < stop:
        end = min(stop, (start // BLOCK + 1) * BLOCK)
        yield start, end
        start = end


def part_of(values: Tensor, less: Tensor | None, span: tuple[int, int], scratch: Tensor) -> Tensor:
    """Return values[a:b], or values[a:b] - less[a:b] in `scratch`, in which the smaller type is widened first."""
    a, b = span
    if less is None:
        return values[a:b]
    part = scratch[: b - a].copy_(less[a:b])
    return torch.sub(values[a:b], part, out=part)


def is_finite(values: Tensor) -> bool:
    """Whether all values of a flat tensor, of any floating-point type, are finite."""
    scratch = scratch_for(values.numel(), values.dtype)
    parts = ((values[a:b], scratch[: b - a]) for a, b in blocks(0, values.numel()))
    # The largest of any with NaN is NaN.
    return all(bool(torch.isfinite(torch.abs(part, out=room).amax())) for part, room in parts)


def scratch_for(numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return an uninitialised flat tensor that holds the largest block of a vector of `numel`."""
    return torch.empty(min(BLOCK, numel), dtype=dtype)
