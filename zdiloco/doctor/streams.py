"""Bytes that are sent only to see how fast they come, and lines read off a socket.

Rule: every stream is bounded in bytes and in seconds, whichever comes first; what a partner does in between changes
neither. A stalled one ends like a slow one.
"""

import math
import select
import socket

from zdiloco.doctor.lines import MAX_LINE, Line, read_line
from zdiloco.errors import MalformedFrame
from zdiloco.node.clock import monotonic

PIECE = 2**17
NOTED_S = 0.01
"""How often the way of a stream is noted."""


class Meter:
    """How a stream came: bytes by the time at which they were there."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._notes: list[tuple[float, int]] = []
        self._ends = 0.0

    def note(self, count: int, now: float) -> None:
        """So many more bytes are there at `now` (monotonic seconds)."""
        self.nbytes += count
        self._ends = now
        if not self._notes or now - self._notes[-1][0] >= NOTED_S:
            self._notes.append((now, self.nbytes))

    def bytes_s(self, began: float) -> float:
        """The rate: over all of it, or over its last two thirds where that is more (TCP has found its pace by then)."""
        if not self.nbytes:
            return 0.0
        took_s = self._ends - began
        whole = self.nbytes / max(took_s, 1e-6)
        at, count = next(note for note in [*self._notes, (self._ends, 0)] if note[0] >= began + took_s / 3)
        later_s = self._ends - at
        return max(whole, (self.nbytes - count) / later_s) if later_s > 2 * NOTED_S else whole


def ready(sock: socket.socket, *, write: bool, until: float) -> tuple[bool, bool]:
    """Wait until a socket can be read, or (`write`) written, at most until then; which of both it is."""
    poll = select.poll()
    poll.register(sock, select.POLLIN | (select.POLLOUT if write else 0))
    came = sum(events for _, events in poll.poll(math.ceil(max(0.0, until - monotonic()) * 1e3)))
    return bool(came & ~select.POLLOUT), bool(came & select.POLLOUT)


def drain(sock: socket.socket, most_bytes: int, until: float) -> Meter:
    """Read what comes, to its end or to either bound. Raises: OSError where the connection breaks."""
    meter = Meter()
    while meter.nbytes < most_bytes and ready(sock, write=False, until=until)[0]:
        data = sock.recv(min(PIECE, most_bytes - meter.nbytes))
        if not data:
            break
        meter.note(len(data), monotonic())
    return meter


def pour(sock: socket.socket, nbytes: int, until: float) -> int:
    """Send so many bytes, until then at most, and as long as nothing comes back. How many the system has taken.

    Raises: OSError where the connection breaks.
    """
    block, sent = bytes(PIECE), 0
    sock.setblocking(False)
    while sent < nbytes:
        readable, writable = ready(sock, write=True, until=until)
        if readable or not writable:
            break
        try:
            sent += sock.send(block[: nbytes - sent])
        except BlockingIOError:
            continue
    return sent


class Lines:
    """Reads lines off a socket, and no byte beyond them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def read(self, kind: type[Line], until: float) -> Line | None:
        """The next line; None: the other side has hung up. Raises: MalformedFrame, OSError, TimeoutError."""
        data = self.raw(until)
        return None if data is None else read_line(kind, data)

    def raw(self, until: float) -> bytes | None:
        """The bytes of the next line with its end."""
        data = b""
        while not data.endswith(b"\n"):
            if len(data) >= MAX_LINE:
                raise MalformedFrame(f"a line has more than {MAX_LINE} bytes")
            if not ready(self._sock, write=False, until=until)[0]:
                raise TimeoutError
            piece = self._sock.recv(MAX_LINE - len(data), socket.MSG_PEEK)
            if not piece:
                return None
            end = piece.find(b"\n") + 1 or len(piece)
            data += self._sock.recv(end)
        return data
