"""What a syncer publishes of new values: what the reference becomes, and what of it is broadcast.

Rule: the reference of a fragment is always at hand whole, on its grid, for who joins, for checkpoints and for who has
missed something. A delta exists only as the body of one broadcast; what it rounds off stays in Theta - R.
"""

from dataclasses import dataclass
from typing import cast

import xxhash
from torch import Tensor

from zdiloco.tensor.blocks import is_finite
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.delta import add_delta, encode_delta, on_grid
from zdiloco.units import FragmentId, Merged, Stamp
from zdiloco.wire.frames import Buffer

NO_DELTA = "none"
"""The name of `merge.delta_codec` with which everything is published whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One published state of a fragment: `value` in `codec`, as (n,) u8; `record` is of this version or in sums.

    `digest`: of the whole value on its grid, also where `value` is a delta to the state of stamp `base`. `proof`: of
    that value and the whole map; empty where there are no keys. `trimmed`: of each part of its merge the share of
    values that were left out; `plain`: why that merge was not robust; empty: it was as it was to be.
    """

    fragment: FragmentId
    stamp: Stamp
    codec: str
    value: Tensor
    record: tuple[Merged, ...]
    full: bool
    digest: int
    base: Stamp | None = None
    proof: str = ""
    trimmed: tuple[float, ...] = ()
    plain: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Issue:
    """A new reference: `value` in the codec `grid`, (n,) u8; `delta`: what leads there, in its codec; None: nothing."""

    value: Tensor
    grid: str
    delta: Tensor | None = None


def whole(theta: Tensor, grid: str) -> Issue:
    """theta (n,) fp32 rounded to the grid, and nothing that leads there."""
    return Issue(value=get_codec(grid).encode(theta), grid=grid)


def issue(theta: Tensor, before: Issue, grid: str, delta_codec: str) -> Issue:
    """What becomes of the reference `before` when theta (n,) fp32 is published, by a delta where one can lead there.

    None can from a reference on another grid, nor where what comes of it is not finite (differences beyond fp32).
    """
    if delta_codec == NO_DELTA or before.grid != grid:
        return whole(theta, grid)
    reference = on_grid(before.value, grid)
    delta = encode_delta(theta, reference, delta_codec)
    value = add_delta(reference, delta, delta_codec, grid)
    if not is_finite(on_grid(value, grid)):
        return whole(theta, grid)
    return Issue(value=value, grid=grid, delta=delta)


def digest_of(value: Tensor | memoryview) -> int:
    """The digest of encoded values, u8: xxh3_64."""
    data = cast(Buffer, value.numpy()) if isinstance(value, Tensor) else value
    return xxhash.xxh3_64_intdigest(data)
