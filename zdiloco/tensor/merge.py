"""Merges the encoded contributions of one round of one fragment into one outer gradient (docs/math.md, section 2).

Contributions come in (learner, incarnation) order and are summed in that order, in fp32, block by block, so that one
block of the sum stays in cache while all contributions are added. Norms are float64. Needs one fp32 vector (n_p,) and
two blocks, however many contributions there are. What a relay has merged before (`partial.py`) takes the place of its
members: its values are mean directions, and its `radii` say how long what they stand for is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zdiloco.errors import ConfigError, MachineError
from zdiloco.tensor.blocks import blocks, scratch_for, slices, square_sum
from zdiloco.tensor.codecs import Codec, Encoded, Payload
from zdiloco.tensor.codecs.protocol import output
from zdiloco.tensor.layout import Fragment, TensorKind

METHODS = ("avg", "rda")
# (5) A mean direction shorter than this is rounding noise of the fp32 sums: real ones are near 1/sqrt(M).
VANISHING = 1e-6
# (5) Beside a mean radius so much larger, a tensor's direction could not be scaled up in fp32: phi of it is 0.
NEGLIGIBLE = 1e-30
# (5) The same where rounded directions are in the mean: theirs is the noise of bf16, half a unit in the last of 8 bits.
VANISHING_ROUNDED = 2.0**-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighted:
    """One screened contribution: encoded outer gradient, its codec, its weight w (1), and what clipping leaves of it.

    `clip` multiplies the values, 1.0 leaves them; `squares` as found by `screen` with the fragment's offsets, or None.
    `radii`: of a bundle, per tensor, the mean norm of its members (27); empty: this is a contribution.
    """

    data: Encoded
    codec: Codec
    weight: float
    clip: float = 1.0
    squares: tuple[float, ...] | None = None
    radii: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """One of those to be merged, ready to be read."""

    payload: Payload
    share: float  # w / sum of all w
    clip: float
    norms: tuple[float, ...]  # per tensor, after clipping; empty where no tensor needs them
    radii: tuple[float, ...] = ()  # of a bundle, before clipping: its values times these are what it stands for

    def scale(self, index: int, radial: bool) -> float:
        """What the values of a tensor are multiplied with to be the mean of what they stand for, after clipping."""
        return self.clip * self.radii[index] if self.radii and radial else self.clip


def merge(fragment: Fragment, contributions: Sequence[Weighted], method: str, *, out: Tensor | None = None) -> Tensor:
    """Return the merged outer gradient of a fragment, (n_p,) fp32.

    'avg' is the weighted mean (2). 'rda' is radial-directional averaging per tensor (4; paper, appendix D.2), with
    the plain mean for embeddings and buffers, and where the mean direction vanishes. One contribution passes unchanged.
    Raises: ConfigError for an unknown method; MachineError where the weights cannot be used; MalformedFrame for a
    payload of a wrong length (screening comes first).
    """
    if method not in METHODS:
        raise ConfigError(f"merge method {method!r} is unknown; choose one of {', '.join(METHODS)}")
    some = weighing(contributions)
    out = output(out, fragment.numel, torch.float32)
    if len(some) == 1 and not some[0].radii:
        only = some[0]
        only.codec.decode(only.data, fragment.numel, out)
        return out if only.clip == 1.0 else out.mul_(only.clip)
    radial = radial_tensors(fragment, method)
    opened = open_all(fragment, some, any(radial))
    rounded = any(one.radii and one.codec.name != "fp32" for one in some)
    vanishing = VANISHING_ROUNDED if rounded else VANISHING
    scratch = scratch_for(fragment.numel)
    wide = scratch_for(fragment.numel, torch.float64)
    for index, (start, stop) in enumerate(slices(fragment.offsets, fragment.numel)):
        part = out[start:stop]
        if radial[index]:
            length, radius = directions(part, start, index, opened, (scratch, wide))
            if length > vanishing * radius:
                part.mul_(radius / length)
                continue
        sum_of(part, start, opened, [each.share * each.scale(index, radial[index]) for each in opened], scratch)
    return out


def radial_tensors(fragment: Fragment, method: str) -> list[bool]:
    """Whether each tensor is merged by direction and norm apart; the others take the mean."""
    return [method == "rda" and t.kind not in (TensorKind.EMBEDDING, TensorKind.BUFFER) for t in fragment.tensors]


def weighing(contributions: Sequence[Weighted]) -> list[Weighted]:
    """Those with weight, in order. Raises: MachineError for weights that cannot be used."""
    for one in contributions:
        if not (math.isfinite(one.weight) and one.weight >= 0 and math.isfinite(one.clip) and one.clip >= 0):
            raise MachineError(f"weight {one.weight} and clip {one.clip} must be finite and not negative")
    some = [one for one in contributions if one.weight > 0]
    if not some:
        raise MachineError(f"the weights of {len(contributions)} contributions sum to 0: nothing can be merged")
    return some


def open_all(fragment: Fragment, contributions: Sequence[Weighted], with_norms: bool) -> list[Opened]:
    """Open what is to be merged, and find what share each has; `with_norms`: and the norms per tensor.

    Raises: MachineError where the weights sum to 0 or squares are missing; MalformedFrame for a wrong length.
    """
    # Scaled by the largest first: the sum of finite weights need not be finite.
    largest = max(one.weight for one in contributions)
    total = sum(one.weight / largest for one in contributions)
    opened = []
    for one in contributions:
        payload = one.codec.open(one.data, fragment.numel)
        norms: tuple[float, ...] = ()
        if one.radii:
            norms = tuple(radius * one.clip for radius in one.radii)
        elif with_norms:
            squares = payload.squares(fragment.offsets) if one.squares is None else one.squares
            if len(squares) != len(fragment.tensors):
                raise MachineError(f"{len(squares)} sums of squares for {len(fragment.tensors)} tensors")
            norms = tuple(math.sqrt(square) * one.clip for square in squares)
        opened.append(Opened(payload, one.weight / largest / total, one.clip, norms, one.radii))
    return opened


def directions(
    part: Tensor, start: int, index: int, opened: Sequence[Opened], buffers: tuple[Tensor, Tensor]
) -> tuple[float, float]:
    """part <- mean direction of one tensor (4) times the mean norm; returns its length, and the mean norm. A length of
    0, and junk in `part`, where nothing has a direction."""
    scratch, wide = buffers
    radius = sum(each.share * each.norms[index] for each in opened)
    # Factors are relative to the mean radius: near 1 for like contributions, whatever the scale of the tensor.
    floor = NEGLIGIBLE * radius
    factors = [
        each.share * each.scale(index, True) * (radius / each.norms[index]) if each.norms[index] > floor else 0.0
        for each in opened
    ]
    if not any(factors):
        return 0.0, radius
    return math.sqrt(sum_of(part, start, opened, factors, scratch, wide)), radius  # ||radius * mean direction||


def sum_of(
    part: Tensor,
    start: int,
    opened: Sequence[Opened],
    factors: Sequence[float],
    scratch: Tensor,
    wide: Tensor | None = None,
) -> float:
    """part <- sum of factor * values, block by block; returns its sum of squares where `wide` is given, else 0."""
    total = 0.0
    for a, b in blocks(start, start + part.numel()):
        acc = part[a - start : b - start].zero_()
        for each, factor in zip(opened, factors, strict=True):
            each.payload.add_to(acc, a, factor, scratch)
        if wide is not None:
            total += square_sum(acc, wide)
    return total
