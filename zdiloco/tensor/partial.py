"""Merges some contributions of a round before the others: what a relay sends of its region (docs/math.md, section 2.1).

Rule: a bundle holds exactly what `merge` needs of its members beside their weights: of each tensor the mean direction
and the mean norm (27), or the mean where that is what is merged. Everything is relative to the sum of the members'
weights, so weights and values of any scale fit fp32. Members are summed in the order in which they come.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from zdiloco.errors import MalformedFrame
from zdiloco.tensor.blocks import scratch_for, slices
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.layout import Fragment
from zdiloco.tensor.merge import Weighted, directions, open_all, radial_tensors, sum_of

CODECS = ("fp32", "bf16")
"""In what the values of a bundle may travel: rounding that nobody's residual takes back must be small."""
CANCELLED = 1e-3
"""Members whose mean direction on a tensor is shorter have cancelled each other: they are better merged one by one."""
TINY = 1e-30
"""A tensor with a smaller mean norm could not be divided by it in fp32."""
MOST_RADIUS = 1e18
"""No norm that is taken is larger (`core.norms`), and what values are multiplied by must fit fp32."""
RADIUS_BYTES = 8


def bundle_bytes(fragment: Fragment, codec: str) -> int:
    """How many bytes a bundle of this fragment has, whatever is in it."""
    return get_codec(codec).encoded_bytes(fragment.numel) + RADIUS_BYTES * len(fragment.tensors)


def bundle_of(fragment: Fragment, members: Sequence[Weighted], method: str, codec: str) -> bytes | None:
    """Return the bundle of these contributions: values (n_p,) in `codec`, then a radius per tensor, fp64 little-endian.

    None where they cancel each other on a tensor, or hardly moved it, so that only the members themselves say what
    their mean is. Raises: MachineError where the weights cannot be used; MalformedFrame for a wrong length.
    """
    radial = radial_tensors(fragment, method)
    opened = open_all(fragment, members, any(radial))
    values = torch.empty(fragment.numel, dtype=torch.float32)
    buffers = scratch_for(fragment.numel), scratch_for(fragment.numel, torch.float64)
    radii = []
    for index, (start, stop) in enumerate(slices(fragment.offsets, fragment.numel)):
        part, radius = values[start:stop], 0.0
        if radial[index]:
            length, radius = directions(part, start, index, opened, buffers)
            if radius > 0.0 and (radius < TINY or length < CANCELLED * radius):
                return None
            if radius > 0.0:
                part.mul_(1.0 / radius)
        if radius == 0.0:
            sum_of(part, start, opened, [each.share * each.clip for each in opened], buffers[0])
        radii.append(radius)
    return get_codec(codec).encode(values).numpy().tobytes() + np.array(radii, dtype="<f8").tobytes()


@dataclass(frozen=True, slots=True)
class Split:
    """A bundle that was looked at: its encoded values, its radii, and the norm of what it stands for."""

    values: memoryview
    radii: tuple[float, ...]
    norm: float


def split_bundle(fragment: Fragment, data: memoryview, method: str, codec: str) -> Split:
    """Take a bundle apart. `norm` is no larger than the largest of its members', but for rounding (28).

    Raises: MalformedFrame where its length is wrong, or a number in it is not finite or a radius cannot be one.
    """
    if data.nbytes != bundle_bytes(fragment, codec):
        raise MalformedFrame(f"a bundle of {data.nbytes} bytes, where {bundle_bytes(fragment, codec)} are right")
    at = get_codec(codec).encoded_bytes(fragment.numel)
    radii = tuple(float(radius) for radius in np.frombuffer(data[at:], dtype="<f8"))
    if not all(0.0 <= radius <= MOST_RADIUS for radius in radii):
        raise MalformedFrame(f"a radius of the bundle is not between 0 and {MOST_RADIUS:g}")
    squares = get_codec(codec).open(data[:at], fragment.numel).squares(fragment.offsets)
    scales = (radius if radial else 1.0 for radius, radial in zip(radii, radial_tensors(fragment, method), strict=True))
    norm = math.sqrt(sum(square * scale * scale for square, scale in zip(squares, scales, strict=True)))
    if not (math.isfinite(norm) and math.isfinite(sum(squares))):
        raise MalformedFrame("the bundle holds NaN or infinity")
    return Split(data[:at], radii, norm)
