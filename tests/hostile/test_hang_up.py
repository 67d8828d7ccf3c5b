"""A peer that says more than a server has looked at, and hangs up: what libzmq makes of that."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.accept.stage import LIMIT_S, ROOT
from tests.hostile.enemy import greeting
from zdiloco.node.sockets import CONTROL_HWM, Road

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow]
WORD, PING = b"\0\x01x", b"\x04\x07\x04PING\0\0"


def served(port: int, said: bytes) -> tuple[int, str]:
    """How a server fares that is behind when a peer says this and resets its connection: exit code and errors."""
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "behind.py"), str(port)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"serves\n"
        peer = greeting(port, Road.CONTROL)
        peer.settimeout(2.0)
        with suppress(TimeoutError):  # it takes no more
            peer.sendall(said)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        _, errors = child.communicate(b"gone\n", timeout=LIMIT_S)
    finally:
        child.kill()
        child.wait()
    return child.returncode, errors.decode()


def test_who_hangs_up_while_its_words_wait_ends_no_server(free_ports: Callable[[int], int]) -> None:
    """W-10: more words than the mark are on their way when the connection is reset. A heartbeat of the server's own to
    that peer would end its process (libzmq 4.3.5: assertion !_io_error)."""
    code, errors = served(free_ports(4), WORD * 100 * CONTROL_HWM)
    assert (code, errors) == (0, "")


def test_a_ping_among_them_does(free_ports: Callable[[int], int]) -> None:
    """W-11: what is NOT mended, for it is in the library: a peer that is let in, and has pings of ZMTP among its words,
    ends a server that is behind. Where this fails libzmq is better, and docs/attacks.md is to be told."""
    code, errors = served(free_ports(4), (WORD * 5 + PING) * 20 * CONTROL_HWM)
    assert code == -6
    assert "Assertion failed: !_io_error" in errors
