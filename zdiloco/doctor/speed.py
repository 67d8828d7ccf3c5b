"""How fast this machine encodes and decodes, against what its role has to in each period."""

from collections.abc import Callable
from dataclasses import dataclass

from zdiloco.doctor.finding import Finding, Measured, Side, found, graded, unknown
from zdiloco.doctor.needs import Need, Role
from zdiloco.node.clock import monotonic

VALUES = 2**20
TRY_S, MOST_TRIES = 0.25, 20
ROOMY = 2.0
"""The worker has more to do than its codec."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Values a second, in the codecs of the role; and the threads that torch has in a process like this one."""

    encode_values_s: float
    decode_values_s: float
    threads: int


def read_speed(need: Need) -> Speed | None:
    """Try both codecs for half a second; None: this role has none. Loads torch."""
    if not need.codec.encoded:
        return None
    import torch

    from zdiloco.tensor.codecs import get_codec

    values = torch.randn(VALUES, generator=torch.Generator().manual_seed(0))
    encode, decode = get_codec(need.codec.encoded), get_codec(need.codec.decoded)
    data, out, back = decode.encode(values), encode.encode(values), torch.empty(VALUES)
    return Speed(
        encode_values_s=_best(lambda: encode.encode(values, out)),
        decode_values_s=_best(lambda: decode.decode(data, VALUES, back)),
        threads=torch.get_num_threads(),
    )


def _best(work: Callable[[], object]) -> float:
    """Values a second of the best of some tries: others use the machine, too."""
    least, began = float("inf"), monotonic()
    for _ in range(MOST_TRIES):
        at = monotonic()
        work()
        least = min(least, monotonic() - at)
        if monotonic() - began > TRY_S:
            break
    return VALUES / max(least, 1e-9)


def judge_speed(speed: Speed | None, need: Need) -> Finding:
    """Whether codecs leave the worker time."""
    if speed is None:
        return unknown("codec", Side.HERE, "this role encodes nothing")
    share = need.codec.encode_values_s / speed.encode_values_s + need.codec.decode_values_s / speed.decode_values_s
    said = (
        f"encodes {need.codec.encoded} at {speed.encode_values_s / 1e9:.3g} and decodes {need.codec.decoded} at "
        f"{speed.decode_values_s / 1e9:.3g} 10^9 values/s: {share:.2%} of a period"
    )
    names: dict[str, object] = {"key": "learner.codec", "value": "bf16"}
    if need.codec.encoded == "bf16" or need.role is Role.SYNC:
        names = {"key": "sync.sync_period", "value": max(need.period + 1, round(ROOMY * share * need.period))}
    verdict = graded(1 / max(share, 1e-12), ROOMY, 1.0)
    return found("codec", Side.HERE, verdict, Measured(said=said, value=share, unit="of a period"), **names)
