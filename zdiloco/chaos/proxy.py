"""A TCP link between learners and a syncer in user space: it forwards, slows, stops without a word, or cuts.

Rule: to stop forwarding is what a black hole does: no FIN, no RST, connections stay, and what was on its way arrives
when the link heals. A cut resets connections. Roads are told apart by their port's distance from the first one; of one
with several connections each may be stopped or cut alone, by its place among those that are there.
"""

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 s: close sends RST
PIECE = 4096
LOOK_S = 0.05
ALL = (0, 1, 2, 3)


class _Line:
    """One connection that was let through: its two ends, whether it flows, and the ways (up: True) that lose it all."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.ends = (near, far)
        self.flow = threading.Event()
        self.flow.set()
        self.deaf: set[bool] = set()


class Proxy:
    """Listens on ports `base`..+3 and forwards to `target`..+3, until `close`."""

    def __init__(self, base: int, target: int) -> None:
        self._target = target
        self._closing = threading.Event()
        self._flows = {road: threading.Event() for road in ALL}
        self._refusing: set[int] = set()
        self._rates: dict[int, float] = {}
        self._lines: dict[int, list[_Line]] = {road: [] for road in ALL}
        self._dialled = dict.fromkeys(ALL, 0)
        self._halfway: Counter[tuple[int, bool]] = Counter()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        for road in ALL:
            self._flows[road].set()
            listener = socket.create_server((HOST, base + road))
            listener.settimeout(LOOK_S)
            self._start(self._accept, road, listener)

    def stop(self, roads: Iterable[int] = ALL) -> None:
        """Forward nothing any more on these roads, and say nothing of it."""
        for road in roads:
            self._flows[road].clear()

    def heal(self, roads: Iterable[int] = ALL) -> None:
        """Forward again, on every connection, and let connections in again."""
        for road in roads:
            self._refusing.discard(road)
            self._flows[road].set()
            with self._lock:
                lines = list(self._lines[road])
            for line in lines:
                line.flow.set()

    def stop_one(self, road: int, place: int) -> None:
        """Forward nothing any more on one connection of a road, and say nothing of it."""
        with self._lock:
            self._lines[road][place].flow.clear()

    def cut_one(self, road: int, place: int) -> None:
        """Reset one connection of a road."""
        with self._lock:
            line = self._lines[road].pop(place)
        _reset(*line.ends)
        line.flow.set()

    def cut(self, roads: Iterable[int] = ALL, *, refuse: bool = False) -> None:
        """Reset every connection of these roads; with `refuse`, new ones too, until `heal`."""
        for road in roads:
            if refuse:
                self._refusing.add(road)
            with self._lock:
                lines, self._lines[road] = self._lines[road], []
            for line in lines:
                _reset(*line.ends)
                line.flow.set()

    def swallow(self, road: int, *, up: bool) -> None:
        """Lose all that goes one way by the connections of a road that are there now; neither end is told. New
        connections are sound."""
        with self._lock:
            for line in self._lines[road]:
                line.deaf.add(up)

    def forward_to(self, target: int) -> None:
        """Let connections that are made from now on through to other ports; those that are there stay."""
        self._target = target

    def slow(self, road: int, bytes_per_s: float) -> None:
        """Forward at most so much on a road, each way."""
        self._rates[road] = bytes_per_s

    def connections(self, road: int) -> int:
        """How many connections of a road have been let through and not been cut."""
        with self._lock:
            return len(self._lines[road])

    def dialled(self, road: int) -> int:
        """How many connections of a road were ever let through."""
        with self._lock:
            return self._dialled[road]

    def halfway(self, road: int, *, up: bool) -> int:
        """How many pieces that came in on a road one way have not gone out yet; while it is stopped, they stay."""
        with self._lock:
            return self._halfway[road, up]

    def close(self) -> None:
        """End every connection and thread."""
        self._closing.set()
        self.heal()
        self.cut()
        ends = monotonic() + 5.0
        while alive := [thread for thread in self._threads if thread.is_alive()]:
            assert monotonic() < ends, [thread.name for thread in alive]
            self.cut()  # again: a connection may have been let through just now
            alive[0].join(LOOK_S)

    def _start(self, job: Callable[..., object], road: int, *args: object) -> None:
        thread = threading.Thread(target=job, args=(road, *args), name=f"proxy-{road}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, road: int, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                near, _ = listener.accept()
            except TimeoutError:
                continue
            self._connect(road, near)
        listener.close()

    def _connect(self, road: int, near: socket.socket) -> None:
        try:
            if road in self._refusing:
                raise ConnectionRefusedError
            far = socket.create_connection((HOST, self._target + road), timeout=1.0)
        except OSError:
            _reset(near)
            return
        for each in (near, far):
            each.settimeout(None)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = _Line(near, far)
        with self._lock:
            self._lines[road].append(line)
            self._dialled[road] += 1
        self._start(partial(self._pump, line, True), road, near, far)
        self._start(partial(self._pump, line, False), road, far, near)

    def _pump(self, line: _Line, up: bool, road: int, source: socket.socket, sink: socket.socket) -> None:
        """Forward one way until either end is closed."""
        with suppress(OSError):
            while data := source.recv(PIECE):
                self._count(road, up, 1)
                self._hold(line.flow, road, len(data))
                self._count(road, up, -1)
                if up not in line.deaf:
                    sink.sendall(data)
        _reset(source, sink)

    def _count(self, road: int, up: bool, pieces: int) -> None:
        with self._lock:
            self._halfway[road, up] += pieces

    def _hold(self, flow: threading.Event, road: int, nbytes: int) -> None:
        """Wait until these bytes may go on: neither road nor connection is stopped, and its rate allows them."""
        for each in (self._flows[road], flow):
            while not each.wait(LOOK_S) and not self._closing.is_set():
                continue
        if road in self._rates:
            self._closing.wait(nbytes / self._rates[road])


def _reset(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            each.shutdown(socket.SHUT_RDWR)
        each.close()
