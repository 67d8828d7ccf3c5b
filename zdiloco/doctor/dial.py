"""The near side: dials each road as a learner does, and measures what is between the two sides.

Rule: plain TCP, so that what the kernel does can be asked and chosen; nothing is judged here. Every wait has an end,
and every stream is bounded (`streams.py`). A living syncer or relay is only greeted, as ZeroMQ greets, and left.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

from zdiloco.doctor.clock import Skew, Wall, skew_of, wall
from zdiloco.doctor.devices import device_of, path_mtu
from zdiloco.doctor.kernel import Kernel, read_kernel
from zdiloco.doctor.lines import About, Ask, Clock, Took, line_of
from zdiloco.doctor.streams import Lines, drain, pour, ready
from zdiloco.errors import MalformedFrame
from zdiloco.node.clock import monotonic
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road

GREETING = b"\xff" + bytes(8) + b"\x7f\x03"
"""How ZMTP 3 begins; whoever speaks it answers with as much, and more."""
QUESTIONS = 7
BURST_BYTES = 2**15
SEGMENTS = (1360, 1220, 1000, 500)
"""Sizes of segments that are tried where full ones do not come through: with 40 bytes of headers, below usual MTUs."""


class Met(StrEnum):
    """What came of dialling a port."""

    DOCTOR = "a doctor"
    ZEROMQ = "a syncer or relay"
    REFUSED = "nobody listens"
    LOST = "no answer"
    UNREACHABLE = "no way there"
    MUTE = "a connection, on which nothing comes back"
    FOREIGN = "something that is not zdiloco"


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One road: who was met, what the system said, and the shortest of some round trips."""

    road: Road
    port: int
    met: Met
    said: str = ""
    rtt_s: float | None = None
    about: About | None = None
    skew: Skew | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What is between both sides. `passes`: bytes of the largest segment that came through where full ones did not;
    0: none did; None: full ones do. Rates are None where they could not be measured; `why`: nothing was sent at all."""

    up_bytes_s: float | None = None
    down_bytes_s: float | None = None
    mtu: int | None = None
    device: str = ""
    passes: int | None = None
    kernel: Kernel = field(default_factory=Kernel)
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialled:
    """Where to, how long an answer may take, and how much may be sent for a measurement, each way. `net`: its keys, if
    there are any, let us in."""

    host: str
    port: int
    timeout_s: float = 5.0
    most_bytes: int = 2**25
    most_s: float = 3.0
    net: NetParams = field(default_factory=NetParams)


@contextmanager
def connected(to: Dialled, port: int, segment: int = 0) -> Iterator[socket.socket]:
    """A connection; `segment`: with segments of at most so many bytes, both ways. Raises: OSError."""
    sock = _connect(to, port, segment)
    try:
        yield sock
    finally:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # what is not sent yet is not wanted
        sock.close()


def _connect(to: Dialled, port: int, segment: int) -> socket.socket:
    last: OSError = OSError("no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(to.host, port, 0, socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(to.timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if segment:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            last = error
    raise last


def dial_port(to: Dialled, road: Road, clock: Wall = wall) -> Port:
    """Dial one of the four ports, and exchange some words."""
    port = Port(road=road, port=to.port + list(Road).index(road), met=Met.LOST)
    try:
        with connected(to, port.port) as sock:
            return _met(replace(port, met=Met.MUTE), sock, to, clock)
    except ConnectionRefusedError as error:
        return replace(port, met=Met.REFUSED, said=error.strerror or "")
    except TimeoutError:
        return replace(port, said=f"within {to.timeout_s:g} s")
    except OSError as error:
        return replace(port, met=Met.UNREACHABLE, said=error.strerror or "")


def _met(port: Port, sock: socket.socket, to: Dialled, clock: Wall) -> Port:
    """Whoever is at the other end speaks first; both a doctor and ZeroMQ do."""
    until = monotonic() + to.timeout_s
    try:
        if not ready(sock, write=False, until=until)[0]:
            return port
        first = sock.recv(1, socket.MSG_PEEK)
        if first == b"{":
            return _doctor(port, Lines(sock), sock, until, clock)
        return _zeromq(port, sock, until) if first == b"\xff" else replace(port, met=Met.FOREIGN if first else Met.MUTE)
    except MalformedFrame as error:
        return replace(port, met=Met.FOREIGN, said=str(error))
    except (TimeoutError, ConnectionError):
        return port


def _doctor(port: Port, lines: Lines, sock: socket.socket, until: float, clock: Wall) -> Port:
    about = lines.read(About, until)
    if about is None:
        return port
    if about.road != port.road:
        return replace(port, met=Met.FOREIGN, said=f"a doctor serves the road {about.road} here: another net.port")
    port = replace(port, met=Met.DOCTOR, about=about)
    for _ in range(QUESTIONS):
        asked, began = clock(), monotonic()
        sock.sendall(line_of(Ask(ask="clock")))
        answer = lines.read(Clock, until)
        if answer is None:
            return replace(port, met=Met.MUTE)
        took_s = monotonic() - began
        if port.rtt_s is None or took_s < port.rtt_s:
            port = replace(port, rtt_s=took_s, skew=skew_of(asked, answer.wall, took_s))
    return port


def _zeromq(port: Port, sock: socket.socket, until: float) -> Port:
    had, began = _more(sock, 10, until), monotonic()
    sock.sendall(GREETING)
    if len(_more(sock, 1, until)) < 1 or had[9:10] != b"\x7f":
        return port
    return replace(port, met=Met.ZEROMQ, rtt_s=monotonic() - began)


def _more(sock: socket.socket, count: int, until: float) -> bytes:
    """So many bytes, or fewer where no more come."""
    data = b""
    while len(data) < count and ready(sock, write=False, until=until)[0]:
        piece = sock.recv(count - len(data))
        if not piece:
            break
        data += piece
    return data


# ---- the link, which only a doctor on the other side lets measure


def glance(to: Dialled, why: str) -> Link:
    """What the system says of a connection; `why` nothing is sent on it. Raises: OSError."""
    with connected(to, to.port + list(Road).index(Road.BULK)) as sock:
        return Link(mtu=path_mtu(sock), device=device_of(sock), kernel=read_kernel(sock), why=why)


def measure_link(to: Dialled, rtt_s: float) -> Link:
    """Rates both ways, and the largest packet, by the bulk road. Raises: OSError, MalformedFrame."""
    port, wait_s = to.port + list(Road).index(Road.BULK), min(to.timeout_s, 2.0 + 6 * rtt_s)
    link = glance(to, "")
    if not _passes(to, port, wait_s, 0):
        passes = next((each for each in SEGMENTS if _passes(to, port, wait_s, each)), 0)
        if not passes or not _passes(to, port, wait_s, 0):  # asked again: a side may just have been held up
            return replace(link, passes=passes)
    up = push(to, port, to.most_bytes, to.most_s)
    return replace(link, up_bytes_s=up, down_bytes_s=pull(to, port, to.most_bytes, to.most_s))


def _passes(to: Dialled, port: int, wait_s: float, segment: int) -> bool:
    """Whether anything of a burst arrives, both ways."""
    try:
        return min(push(to, port, BURST_BYTES, wait_s, segment), pull(to, port, BURST_BYTES, wait_s, segment)) > 0
    except OSError:  # not even the words that announce it
        return False


def push(to: Dialled, port: int, nbytes: int, seconds: float, segment: int = 0) -> float:
    """Bytes a second that arrive there. Raises: OSError, MalformedFrame."""
    with connected(to, port, segment) as sock:
        lines = _greeted(sock, to)
        sock.sendall(line_of(Ask(ask="take", nbytes=nbytes, seconds=seconds)))
        until = monotonic() + seconds
        pour(sock, nbytes, until)
        took = lines.read(Took, until + to.timeout_s)
        return took.bytes_s if took else 0.0


def pull(to: Dialled, port: int, nbytes: int, seconds: float, segment: int = 0) -> float:
    """Bytes a second that arrive here. Raises: OSError, MalformedFrame."""
    with connected(to, port, segment) as sock:
        _greeted(sock, to)
        sock.sendall(line_of(Ask(ask="give", nbytes=nbytes, seconds=seconds)))
        began = monotonic()
        return drain(sock, nbytes, began + seconds).bytes_s(began)


def _greeted(sock: socket.socket, to: Dialled) -> Lines:
    lines = Lines(sock)
    if lines.read(About, monotonic() + to.timeout_s) is None:
        raise TimeoutError
    return lines
