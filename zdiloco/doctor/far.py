"""The far side of a doctor: binds the four ports of a run before there is one, answers, takes and gives bytes.

Rule: whoever connects is told who is here, and may then ask a few things, for a bounded time, of bounded size; what
does not parse is hung up on. So many at once, one thread each; nothing is kept of anybody.
"""

import logging
import select
import socket
import threading
from contextlib import suppress

from zdiloco.doctor.clock import Wall, wall
from zdiloco.doctor.kernel import read_kernel
from zdiloco.doctor.lines import FORMAT, About, Ask, Clock, Took, line_of
from zdiloco.doctor.streams import Lines, drain, pour, ready
from zdiloco.doctor.versions import Versions, own_versions
from zdiloco.errors import ConfigError, MalformedFrame
from zdiloco.node.clock import monotonic
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16
MOST_ASKS = 64
IDLE_S = 10.0
"""A connection on which nothing is asked for so long is closed."""
LEAVES_S = 2.0
"""How long bytes are still read after they were counted, so that the count arrives before the connection ends."""
TURN_S = 0.1


class FarSide:
    """Listens at net.listen and net.port. `serve` returns after `stop`, or when its time is over."""

    def __init__(self, net: NetParams, *, clock: Wall = wall, versions: Versions | None = None) -> None:
        """Raises ConfigError where a port is taken, or the address is not ours."""
        self._wall, self._versions = clock, versions or own_versions()
        self._stopped = threading.Event()
        self._room = threading.Semaphore(MOST_AT_ONCE)
        self._threads: list[threading.Thread] = []
        self._roads: dict[int, Road] = {}
        self._bound: list[socket.socket] = []
        self.visitors: list[str] = []
        try:
            for number, road in enumerate(Road):
                self._bound.append(bound(net.listen, net.port + number))
                self._roads[self._bound[-1].fileno()] = road
        except BaseException:
            self.close()
            raise

    def serve(self, seconds: float) -> None:
        """Answer whoever connects, for so long at most."""
        until = monotonic() + seconds
        try:
            while not self._stopped.is_set() and monotonic() < until:
                self._accept(min(until, monotonic() + TURN_S))
        finally:
            self.close()

    def stop(self) -> None:
        """Have `serve` return within a second; may be called from a signal handler."""
        self._stopped.set()

    def close(self) -> None:
        """Hang up on everybody; the ports are free afterwards."""
        self._stopped.set()
        for sock in self._bound:
            sock.close()
        until = monotonic() + LEAVES_S  # a stream may be under way, for MOST_SECONDS at most
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        self._threads.clear()

    def _accept(self, until: float) -> None:
        poll, by_number = select.poll(), {sock.fileno(): sock for sock in self._bound}
        for number in by_number:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(max(0.0, until - monotonic()) * 1e3):
            with suppress(OSError):  # it has gone already
                self._welcome(*by_number[number].accept(), self._roads[number])
        self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _welcome(self, sock: socket.socket, address: tuple[object, ...], road: Road) -> None:
        if not self._room.acquire(blocking=False):
            sock.close()
            return
        host = str(address[0])
        if host not in self.visitors and len(self.visitors) < MOST_ASKS:
            self.visitors.append(host)
            log.info("is asked host=%s", host)
        thread = threading.Thread(target=self._talk, args=(sock, road), name=f"doctor-{road}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _talk(self, sock: socket.socket, road: Road) -> None:
        try:
            with sock, suppress(OSError, MalformedFrame):  # TimeoutError, too: a visitor that says nothing more
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(line_of(self._about(sock, road)))
                self._answer(sock)
        finally:
            self._room.release()

    def _about(self, sock: socket.socket, road: Road) -> About:
        kernel, mine = read_kernel(sock), self._versions
        return About(
            doctor=FORMAT, road=road, version=mine.version, protocol=mine.protocol, libzmq=mine.libzmq,
            wall=self._wall(), congestion=kernel.congestion, send_bytes=kernel.send_bytes,
            receive_bytes=kernel.receive_bytes, slow_start_after_idle=kernel.slow_start_after_idle,
        )  # fmt: skip

    def _answer(self, sock: socket.socket) -> None:
        lines = Lines(sock)
        for _ in range(MOST_ASKS):
            ask = self._next(lines, sock)
            if ask is None:
                return
            if ask.ask == "clock":
                sock.sendall(line_of(Clock(wall=self._wall())))
            elif ask.ask == "take":
                return self._take(sock, ask)
            else:
                pour(sock, ask.nbytes, monotonic() + ask.seconds)
                return sock.shutdown(socket.SHUT_WR)

    def _next(self, lines: Lines, sock: socket.socket) -> Ask | None:
        until = monotonic() + IDLE_S
        while not ready(sock, write=False, until=min(until, monotonic() + TURN_S))[0]:
            if self._stopped.is_set() or monotonic() >= until:
                return None
        return lines.read(Ask, until)

    def _take(self, sock: socket.socket, ask: Ask) -> None:
        began = monotonic()
        meter = drain(sock, ask.nbytes, began + ask.seconds)
        sock.settimeout(LEAVES_S)
        sock.sendall(line_of(Took(nbytes=meter.nbytes, bytes_s=min(1e15, meter.bytes_s(began)))))
        drain(sock, 2 * ask.nbytes + 1, monotonic() + LEAVES_S)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises: ConfigError where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        name, passive = None if host == "*" else host, socket.AI_PASSIVE
        found = socket.getaddrinfo(name, port, family, socket.SOCK_STREAM, 0, passive)
        sock = socket.socket(found[0][0], socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be bound ({error.strerror}): set net.listen and net.port") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(found[0][4])
        sock.listen(MOST_AT_ONCE)
    except OSError as error:
        sock.close()
        raise ConfigError(f"{host}:{port} cannot be bound ({error.strerror}): set net.listen and net.port") from error
    return sock
