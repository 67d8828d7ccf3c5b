"""Merges the contributions of a round so that a few of them cannot lead it astray (docs/math.md, section 2, 29 to 33).

Rule: of each tensor no contribution counts for more than the middle one of the round, neither in weight nor in norm;
'trim' also leaves out whose direction the others do not share. Medians are plain, since weights follow from counters
that each member claims for itself. Bits, order and sums are those of `merge.py`. Payloads are read twice; beside what
`merge` needs there are a few vectors of SPAN values for each contribution, and never a second whole one.

To look for who stands apart by pairwise cosines, and then to clip to the median norm, is the way of FLAME (Nguyen et
al., USENIX Security 2022, arXiv 2101.02281); that most of the others must be near is Krum's (Blanchard et al., NeurIPS
2017). Statistics take the coordinate-wise median (Yin et al., ICML 2018, arXiv 1803.01498).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from zdiloco.errors import ConfigError, MachineError
from zdiloco.tensor.blocks import ROW, scratch_for, slices
from zdiloco.tensor.codecs.protocol import output
from zdiloco.tensor.layout import Fragment, TensorKind
from zdiloco.tensor.merge import (
    NEGLIGIBLE,
    VANISHING,
    Opened,
    Weighted,
    merge,
    open_all,
    radial_tensors,
    sum_of,
    weighing,
)

ROBUST = ("none", "clip", "trim")
LEAST = 3
"""Of fewer contributions no median says who is right: they are merged plainly."""
AGREES = 0.5
"""Whose agreement with the others is below so much of the usual one is left out."""
CHANCE = 2.0
"""Cosines of n values that have nothing to do with each other spread by 1/sqrt(n); so many times that tells nothing."""
SPAN = 65_536
"""Values of each contribution that are looked at together: their products stay in cache."""


@dataclass(frozen=True, slots=True)
class Robust:
    """What came of a merge: the outer gradient, (n_p,) fp32, and of each contribution the share of its values that were
    left out; `plain`: why it was merged as if nobody were hostile; empty: it was not."""

    gradient: Tensor
    trimmed: tuple[float, ...]
    plain: str = ""


def merge_robust(
    fragment: Fragment, contributions: Sequence[Weighted], method: str, robust: str, *, out: Tensor | None = None
) -> Robust:
    """Return the merged outer gradient of a fragment, and what of whom is not in it.

    'none', and fewer than three contributions with weight, is `merge`. Raises: as `merge` does, ConfigError for an
    unknown word, MachineError for a bundle, into which nobody can look.
    """
    if robust not in ROBUST:
        raise ConfigError(f"robust merge {robust!r} is unknown; choose one of {', '.join(ROBUST)}")
    some = weighing(contributions)
    if robust == "none" or len(some) < LEAST:
        plain = "" if robust == "none" else f"{len(some)} contributions, a robust merge takes {LEAST}"
        return Robust(merge(fragment, contributions, method, out=out), (0.0,) * len(contributions), plain)
    if any(one.radii for one in some):
        raise MachineError("a bundle cannot be merged robustly: what its members sent is not in it")
    most = median(one.weight for one in some)
    opened = open_all(fragment, [replace(one, weight=min(one.weight, most)) for one in some], True)
    out, without = output(out, fragment.numel, torch.float32), [0] * len(opened)
    radial = radial_tensors(fragment, method)
    buffers = scratch_for(fragment.numel), scratch_for(fragment.numel, torch.float64)
    for index, (start, stop) in enumerate(slices(fragment.offsets, fragment.numel)):
        part = out[start:stop]
        if fragment.tensors[index].kind is TensorKind.BUFFER:
            middle_of(part, start, opened)
            continue
        apart = set(standing_apart(start, stop, index, opened)) if robust == "trim" else set()
        for place in apart:
            without[place] += stop - start
        kept = [each for place, each in enumerate(opened) if place not in apart]
        _merge_tensor(part, start, index, kept, radial[index], buffers)
    return Robust(out, _shares(contributions, without, fragment.numel))


def _shares(contributions: Sequence[Weighted], without: Sequence[int], numel: int) -> tuple[float, ...]:
    """Per contribution, those without weight included, the share of its values that were left out."""
    left = iter(without)
    return tuple(next(left) / max(numel, 1) if one.weight > 0 else 0.0 for one in contributions)


def _merge_tensor(
    part: Tensor, start: int, index: int, kept: Sequence[Opened], radial: bool, buffers: tuple[Tensor, Tensor]
) -> None:
    """part <- the mean of one tensor, no norm in it above the median (32): radial-directional (4), or plain (2)."""
    scratch, wide = buffers
    total, norms = sum(each.share for each in kept), [each.norms[index] for each in kept]
    bound = median(norms)
    shares = [each.share / total for each in kept]
    if radial:
        radius = sum(share * min(norm, bound) for share, norm in zip(shares, norms, strict=True))
        factors = [
            share * each.clip * (radius / norm) if norm > NEGLIGIBLE * radius else 0.0
            for share, each, norm in zip(shares, kept, norms, strict=True)
        ]
        length = math.sqrt(sum_of(part, start, kept, factors, scratch, wide)) if any(factors) else 0.0
        if length > VANISHING * radius:
            part.mul_(radius / length)
            return
    factors = [
        share * each.clip * (bound / norm if norm > bound else 1.0)
        for share, each, norm in zip(shares, kept, norms, strict=True)
    ]
    sum_of(part, start, kept, factors, scratch)


# ---- who stands apart


def standing_apart(start: int, stop: int, index: int, opened: Sequence[Opened]) -> list[int]:
    """Places of those whose direction on this tensor is left out (30, 31): the least agreeing, fewer than half."""
    if stop == start:
        return []
    found = agreements(cosines(start, stop, opened, [each.norms[index] for each in opened]))
    usual = median(found)
    bound = min(AGREES * max(usual, 0.0), usual - CHANCE / math.sqrt(stop - start))
    apart = sorted((agreement, place) for place, agreement in enumerate(found) if agreement < bound)
    return [place for _, place in apart[: (len(opened) - 1) // 2]]


def agreements(table: Sequence[Sequence[float]]) -> list[float]:
    """How much each agrees with the others: the median of its cosines with them (30)."""
    return [median(value for other, value in enumerate(row) if other != place) for place, row in enumerate(table)]


def cosines(start: int, stop: int, opened: Sequence[Opened], norms: Sequence[float]) -> list[list[float]]:
    """The cosine of each with each other on values start to stop; 0 where one of the two is zero.

    In float64 and in rows, as `sum64` sums, so that no thread count changes a bit.
    """
    count, most = len(opened), -(-min(SPAN, stop - start) // ROW) * ROW
    narrow, scratch = torch.empty(most), torch.empty(most)
    wide = torch.zeros(count, most, dtype=torch.float64)
    dots = torch.zeros(count, count, dtype=torch.float64)
    for a, b in _spans(start, stop):
        rows = wide[:, : -(-(b - a) // ROW) * ROW]
        for row, each in zip(rows, opened, strict=True):
            each.payload.add_to(narrow[: b - a].zero_(), a, each.clip, scratch)
            row[: b - a].copy_(narrow[: b - a])
            row[b - a :].zero_()
        for place in range(count - 1):
            products = (rows[place + 1 :] * rows[place]).reshape(-1, ROW)
            sums = torch.sum(products, dim=1).view(count - 1 - place, -1)
            dots[place, place + 1 :] += torch.sum(sums, dim=1)
    found = (dots + dots.T).tolist()
    return [
        [dot / (norm * other) if norm and other else 0.0 for dot, other in zip(row, norms, strict=True)]
        for row, norm in zip(found, norms, strict=True)
    ]


def middle_of(part: Tensor, start: int, opened: Sequence[Opened]) -> None:
    """part <- of each value the median of all contributions (33); of an even number, the mean of the middle two."""
    count, most = len(opened), min(SPAN, part.numel())
    scratch, rows = torch.empty(most), torch.empty(count, most)
    for a, b in _spans(start, start + part.numel()):
        for row, each in zip(rows, opened, strict=True):
            each.payload.add_to(row[: b - a].zero_(), a, each.clip, scratch)
        ordered = torch.sort(rows[:, : b - a], dim=0).values
        low, high = ordered[(count - 1) // 2], ordered[count // 2]
        part[a - start : b - start].copy_(low.mul_(0.5).add_(high.mul(0.5)) if count % 2 == 0 else low)


def _spans(start: int, stop: int) -> list[tuple[int, int]]:
    """Cut [start, stop) at the multiples of SPAN."""
    cuts = [start, *range((start // SPAN + 1) * SPAN, stop, SPAN), stop]
    return [(a, b) for a, b in pairwise(cuts) if a < b]
