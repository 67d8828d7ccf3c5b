"""A service manager of straw: the socket that NOTIFY_SOCKET names, and what came there."""

import os
import secrets
import socket
import time

import pytest

LIMIT_S = 120.0
"""For whatever a loaded machine may make slow, such as starting a process."""
WATCHDOG_S = 0.6
"""What is asked of the processes here: they beat three times as often."""
SILENCE_S = 2.0
"""Ten beats: who says nothing for so long has stopped."""


class Ear:
    """Hears one process."""

    def __init__(self, name: str = "") -> None:
        self.name = name or f"@zdiloco-{os.getpid()}-{secrets.token_hex(4)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.name.replace("@", "\0", 1) if self.name[0] == "@" else self.name)

    def environment(self, patch: pytest.MonkeyPatch) -> None:
        """Have whoever is started from here on report to this ear."""
        patch.setenv("NOTIFY_SOCKET", self.name)
        patch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
        patch.delenv("WATCHDOG_PID", raising=False)

    def hear(self, limit_s: float = LIMIT_S) -> dict[str, str]:
        """The words of the next datagram, by name; empty: none came."""
        self._socket.settimeout(limit_s)
        try:
            lines = self._socket.recv(4096).decode().split("\n")
        except (TimeoutError, BlockingIOError):
            return {}
        return dict(line.split("=", 1) for line in lines)

    def until(self, word: str) -> list[dict[str, str]]:
        """All that came up to the first datagram that has this word, which is the last one."""
        ends = time.monotonic() + LIMIT_S
        came: list[dict[str, str]] = []
        while not came or word not in came[-1]:
            assert time.monotonic() < ends, f"{word} never came: {came[-5:]}"
            if said := self.hear(1.0):
                came.append(said)
        return came

    def drain(self) -> list[dict[str, str]]:
        """All that is there by now."""
        came = []
        while said := self.hear(0.0):
            came.append(said)
        return came

    def is_silent(self) -> bool:
        """Whether nothing comes any more; what is on its way already does not count."""
        self.drain()
        return not self.hear(SILENCE_S)

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()
