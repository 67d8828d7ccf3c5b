"""Judges the road to the far side: its ports, its round trip, what it carries, and the packets that it takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zdiloco.doctor.dial import Link, Met, Port
from zdiloco.doctor.finding import Finding, Measured, Side, Verdict, found, graded, unknown
from zdiloco.doctor.kernel import PLENTY, mbit
from zdiloco.doctor.needs import Need

ROOMY = 1.5
"""So many times of what is needed leaves room for joins, repairs and whoever else uses the link."""
SMALL_MTU, USUAL_MTU = 1280, 1500
ANSWERS = (Met.DOCTOR, Met.ZEROMQ)
ALONE = "no doctor listens there: it cannot be measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Who is dialled, and by which file, as a user would type it."""

    host: str
    first: int
    file: str


def judge_ports(ports: Sequence[Port], place: Place) -> list[Finding]:
    """Each road for itself; where simply nobody listens, that once. Four ports that nobody answers are all blocked."""
    if all(port.met is Met.REFUSED for port in ports):
        said = Measured(said=f"nobody listens at {place.host}:{place.first} to {place.first + 3}")
        return [found("partner", Side.THERE, Verdict.WARN, said, file=place.file, host=place.host)]
    return [_port(port, place) for port in ports]


def _port(port: Port, place: Place) -> Finding:
    where = f"{port.road} {place.host}:{port.port}"
    if port.met in ANSWERS:
        rtt_ms = (port.rtt_s or 0.0) * 1e3
        good = Measured(said=f"{where}: {port.met}, {rtt_ms:.3g} ms there and back", value=rtt_ms, unit="ms")
        return found("port", Side.THERE, Verdict.OK, good)
    bad = Measured(said=f"{where}: {port.met}{f' ({port.said})' if port.said else ''}")
    names = {"first": place.first, "last": place.first + 3, "host": place.host}
    return found("port", Side.THERE, Verdict.FAIL, bad, **names)


def rtt_of(ports: Sequence[Port]) -> float | None:
    """The shortest round trip, in seconds."""
    return min((port.rtt_s for port in ports if port.rtt_s is not None), default=None)


def judge_round_trip(rtt_s: float | None, need: Need) -> Finding:
    """Whether a window in each round trip is enough."""
    if rtt_s is None:
        return unknown("round trip", Side.THERE, "nobody answers")
    bytes_s = need.up_bytes_s / need.lanes  # what is published needs no credit
    carries = need.window_bytes / max(rtt_s, 1e-6)
    said = f"{rtt_s * 1e3:.3g} ms: a window carries {mbit(carries)}, {mbit(bytes_s)} needed"
    window = 2 ** math.ceil(math.log2(max(need.window_bytes, PLENTY * bytes_s * rtt_s)))
    verdict = graded(carries, PLENTY * bytes_s, bytes_s)
    return found("round trip", Side.THERE, verdict, Measured(said=said, value=rtt_s, unit="s"), bytes=window)


def judge_link(link: Link | None, need: Need, why: str = ALONE) -> list[Finding]:
    """What comes through, each way, and in packets of which size. `why`: there is none to judge."""
    checks = ("uplink", "downlink", "mtu", "black hole")
    if link is None:
        return [unknown(check, Side.THERE, why) for check in checks]
    return [
        _rate("uplink", link, link.up_bytes_s, need.up_bytes_s, need),
        _rate("downlink", link, link.down_bytes_s, need.down_bytes_s, need),
        _mtu(link),
        _black_hole(link),
    ]


def _rate(check: str, link: Link, bytes_s: float | None, needed: float, need: Need) -> Finding:
    bytes_s = 0.0 if link.passes == 0 else bytes_s
    if bytes_s is None:
        return unknown(check, Side.THERE, link.why or "packets of full size do not come through")
    steps = math.ceil(need.period * ROOMY * needed / max(bytes_s, 1.0))
    measured = Measured(said=f"{mbit(bytes_s)}, {mbit(needed)} needed", value=bytes_s, unit="bytes/s")
    return found(check, Side.THERE, graded(bytes_s, ROOMY * needed, needed), measured, steps=steps)


def _mtu(link: Link) -> Finding:
    if link.mtu is None:
        return unknown("mtu", Side.THERE, "the system does not tell")
    measured = Measured(said=f"{link.mtu} bytes", value=float(link.mtu), unit="bytes")
    verdict = Verdict.WARN if link.mtu < SMALL_MTU else Verdict.OK
    return found("mtu", Side.THERE, verdict, measured, device=link.device or "DEVICE", bytes=USUAL_MTU)


def _black_hole(link: Link) -> Finding:
    if link.why:
        return unknown("black hole", Side.THERE, link.why)
    if link.passes is None:
        return found("black hole", Side.THERE, Verdict.OK, Measured(said="packets of full size come through"))
    if not link.passes:
        return unknown("black hole", Side.THERE, "nothing longer than a few words comes through, of any size")
    said = f"segments of {link.passes} bytes come through, full ones do not"
    return found("black hole", Side.THERE, Verdict.FAIL, Measured(said=said, value=link.passes, unit="bytes"))
