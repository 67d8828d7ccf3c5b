"""What may enter a merge: the right length and finite values. It reports and never raises; the caller decides.

The norm is that of the decoded values, in float64, so that no finite contribution overflows it (docs/math.md, 17).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zdiloco.errors import MalformedFrame
from zdiloco.tensor.codecs import Codec, Encoded


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """What was found: `norm` is infinite unless `finite`; `reason` is None, 'length' or 'non_finite'.

    `squares` holds the sum of squares of each tensor when all is well; hand it to `merge.Weighted`, which then need not
    read the bytes a second time.
    """

    finite: bool
    norm: float
    reason: str | None
    squares: tuple[float, ...] = ()


def screen(data: Encoded, *, codec: Codec, numel: int, cuts: Sequence[int] = ()) -> Screened:
    """Screen one encoded fragment of `numel` values; `cuts` are the fragment's offsets, for `squares` per tensor."""
    try:
        squares = codec.open(data, numel).squares(cuts)
    except MalformedFrame:
        return Screened(finite=False, norm=math.inf, reason="length")
    norm = math.sqrt(sum(squares))
    if not math.isfinite(norm):
        return Screened(finite=False, norm=math.inf, reason="non_finite")
    return Screened(finite=True, norm=norm, reason=None, squares=squares)
