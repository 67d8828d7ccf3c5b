"""How the system does TCP here: read from /proc and from a socket, and judged by the road it is to serve.

Rule: judgements are functions of figures. On a short road nothing here matters, so nothing is said about it. What a
system does not tell (macOS) is not judged.
"""

import math
import socket
from dataclasses import dataclass
from pathlib import Path

from zdiloco.doctor.finding import Finding, Measured, Side, Verdict, found, unknown
from zdiloco.doctor.needs import Need
from zdiloco.plan.params import BY_RATE

LONG_S = 0.01
"""A round trip from which on TCP's habits are felt."""
FIRST_WINDOW = 10 * 1448
USABLE = 0.5
"""Part of a socket buffer that holds payload under way."""
PLENTY = 2.0
"""So many times of what is needed leaves room for others, and for the system's own accounts."""
PLACE = "/proc/sys/net/ipv4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """TCP on one side. Bytes: the largest that a buffer grows to by itself. None: not told."""

    congestion: str | None = None
    send_bytes: int | None = None
    receive_bytes: int | None = None
    slow_start_after_idle: bool | None = None


def read_kernel(sock: socket.socket | None = None, place: Path = Path(PLACE)) -> Kernel:
    """What holds in this network namespace; the congestion control is that of the connection, where there is one."""
    idle = _words(place / "tcp_slow_start_after_idle")
    return Kernel(
        congestion=_congestion(sock) or next(iter(_words(place / "tcp_congestion_control")), None),
        send_bytes=_largest(place / "tcp_wmem"),
        receive_bytes=_largest(place / "tcp_rmem"),
        slow_start_after_idle=None if not idle else idle[0] != "0",
    )


def _congestion(sock: socket.socket | None) -> str | None:
    option = getattr(socket, "TCP_CONGESTION", None)
    if sock is None or option is None:
        return None
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, option, 16).split(b"\0")[0].decode("ascii", "replace")
    except OSError:
        return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return []


def _largest(path: Path) -> int | None:
    words = _words(path)
    return int(words[2]) if len(words) == 3 and words[2].isdigit() else None


def judge_kernel(kernel: Kernel, side: Side, need: Need, rtt_s: float | None) -> list[Finding]:
    """TCP on one side of the road that is dialled: here sends up and receives down, there it is the other way round."""
    checks = ("congestion", "idle", "send buffer", "receive buffer")
    if rtt_s is None:
        return [unknown(check, side, "the round trip is not known: --rtt-ms says it") for check in checks]
    up, down = need.up_bytes_s / need.ups, need.down_bytes_s / need.downs
    sent, received = (up, down) if side is Side.HERE else (down, up)
    return [
        _congestion_of(kernel, side, rtt_s),
        _idle(kernel, side, need, rtt_s),
        _buffer("send buffer", side, kernel.send_bytes, sent, rtt_s),
        _buffer("receive buffer", side, kernel.receive_bytes, received, rtt_s),
    ]


def _congestion_of(kernel: Kernel, side: Side, rtt_s: float) -> Finding:
    if kernel.congestion is None:
        return unknown("congestion", side, "the system does not tell")
    long = rtt_s >= LONG_S and kernel.congestion not in BY_RATE
    measured = Measured(said=f"{kernel.congestion}, round trip {rtt_s * 1e3:.3g} ms")
    return found("congestion", side, Verdict.WARN if long else Verdict.OK, measured, name=kernel.congestion)


def _idle(kernel: Kernel, side: Side, need: Need, rtt_s: float) -> Finding:
    if kernel.slow_start_after_idle is None or kernel.congestion is None:
        return unknown("idle", side, "the system does not tell")
    if not kernel.slow_start_after_idle or kernel.congestion in BY_RATE:
        kept = f"with {kernel.congestion} it has no effect" if kernel.slow_start_after_idle else "off"
        return found("idle", side, Verdict.OK, Measured(said=kept))
    trips = max(0, math.ceil(math.log2(max(need.burst_bytes, 1) / FIRST_WINDOW)))
    bad = rtt_s >= LONG_S and trips > 0
    said = f"on: {trips} round trips, {trips * rtt_s:.2g} s, until {need.burst_bytes / 1e6:.3g} MB are at full rate"
    measured = Measured(said=said, value=trips * rtt_s, unit="s")
    return found("idle", side, Verdict.WARN if bad else Verdict.OK, measured)


def _buffer(check: str, side: Side, largest: int | None, bytes_s: float, rtt_s: float) -> Finding:
    """`bytes_s`: what each connection has to carry in the mean."""
    if largest is None:
        return unknown(check, side, "the system does not tell")
    carries = largest * USABLE / max(rtt_s, 1e-6)
    verdict = Verdict.OK
    if carries < PLENTY * bytes_s:
        verdict = Verdict.FAIL if carries < bytes_s else Verdict.WARN
    said = f"{largest / 1e6:.3g} MB: {mbit(carries)} at a round trip of {rtt_s * 1e3:.3g} ms; {mbit(bytes_s)} needed"
    wanted = max(2 * largest, 2 * PLENTY * bytes_s * rtt_s)
    measured = Measured(said=said, value=float(largest), unit="bytes")
    return found(check, side, verdict, measured, bytes=2 ** math.ceil(math.log2(wanted)))


def mbit(bytes_s: float) -> str:
    """A rate as people say it."""
    return f"{bytes_s * 8e-6:.3g} Mbit/s" if bytes_s < 1e8 else f"{bytes_s * 8e-9:.3g} Gbit/s"
