"""A TCP link between learners and a syncer in user space: it forwards, slows, stops without a word, or cuts.

Rule: to stop forwarding is what a black hole does: no FIN, no RST, connections stay, and what was on its way arrives
when the link heals. A cut resets connections. Roads are told apart by their port's distance from the first one.
"""

import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 s: close sends RST
PIECE = 4096
LOOK_S = 0.05
ALL = (0, 1, 2, 3)


class Proxy:
    """Listens on ports `base`..+3 and forwards to `target`..+3, until `close`."""

    def __init__(self, base: int, target: int) -> None:
        self._target = target
        self._closing = threading.Event()
        self._flows = {road: threading.Event() for road in ALL}
        self._refusing: set[int] = set()
        self._rates: dict[int, float] = {}
        self._pairs: dict[int, list[tuple[socket.socket, socket.socket]]] = {road: [] for road in ALL}
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
        """Forward again, and let connections in again."""
        for road in roads:
            self._refusing.discard(road)
            self._flows[road].set()

    def cut(self, roads: Iterable[int] = ALL, *, refuse: bool = False) -> None:
        """Reset every connection of these roads; with `refuse`, new ones too, until `heal`."""
        for road in roads:
            if refuse:
                self._refusing.add(road)
            with self._lock:
                pairs, self._pairs[road] = self._pairs[road], []
            for pair in pairs:
                _reset(*pair)

    def slow(self, road: int, bytes_per_s: float) -> None:
        """Forward at most so much on a road, each way."""
        self._rates[road] = bytes_per_s

    def connections(self, road: int) -> int:
        """How many connections of a road have been let through and not been cut."""
        with self._lock:
            return len(self._pairs[road])

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

    def _start(self, job: object, road: int, *sockets: socket.socket) -> None:
        thread = threading.Thread(target=job, args=(road, *sockets), name=f"proxy-{road}", daemon=True)  # type: ignore[arg-type]
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
        with self._lock:
            self._pairs[road].append((near, far))
        self._start(self._pump, road, near, far)
        self._start(self._pump, road, far, near)

    def _pump(self, road: int, source: socket.socket, sink: socket.socket) -> None:
        """Forward one way until either end is closed."""
        with suppress(OSError):
            while data := source.recv(PIECE):
                self._hold(road, len(data))
                sink.sendall(data)
        _reset(source, sink)

    def _hold(self, road: int, nbytes: int) -> None:
        """Wait until these bytes may go on: the flow is not stopped, and its rate allows them."""
        while not self._flows[road].wait(LOOK_S) and not self._closing.is_set():
            continue
        if road in self._rates:
            self._closing.wait(nbytes / self._rates[road])


def _reset(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            each.shutdown(socket.SHUT_RDWR)
        each.close()
