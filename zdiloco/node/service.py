"""What a process tells the service manager that has started it (systemd's sd_notify): datagrams to one local socket.

Rule: a word is sent at once or not at all, so nobody ever waits for the manager; where there is none, nothing happens.
Only the thread that owns the sockets calls `turn`: what beats is the loop itself, and where that hangs nothing does.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

LOAD_S = 600.0
"""Loading torch from a cold or a distant disk, and a task's data: longer is a hang."""
READ_S = 3600.0
"""Reading a checkpoint."""
TELL_S = 5.0
"""How often a manager is told how it goes."""
WAIT_S = 60.0
"""How long the manager waits for the next word of one that waits for its syncer, and says so every TELL_S."""
BEATS = 3
"""Beats within the watchdog's time: two may be lost."""


class Service:
    """The manager's ear. `address`: its socket's path, or @NAME; empty: nobody listens. `watchdog_s`: without a beat
    for so long the manager takes the process for hung and ends it; 0: it does not."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._to = f"\0{address[1:]}" if address.startswith("@") else address if address.startswith("/") else ""
        self._every_s = min(TELL_S, watchdog_s / BEATS) if watchdog_s else TELL_S
        self._watched = watchdog_s > 0
        self._due = float("-inf")
        self._tells: Callable[[], str] | None = None
        self._told = self._over = False

    def __bool__(self) -> bool:
        """Whether anybody listens."""
        return bool(self._to)

    def starts(self, what: str, most_s: float) -> None:
        """Say what is being done before this process is ready, and how long that may take."""
        self._send(f"STATUS={what}", _longer(most_s))

    def ready(self, tells: Callable[[], str]) -> None:
        """From its next turn on the process is ready; `tells` says in a line how it goes, on the loop's thread."""
        if self._to:
            self._tells, self._due = tells, float("-inf")

    def turn(self, now: float) -> None:
        """The loop has turned: beat, and tell how it goes, where it is time. Before `ready`: that it takes longer."""
        if not self._to or now < self._due or self._over:
            return
        self._due = now + self._every_s
        if self._tells is None:
            self._send(_longer(WAIT_S))
            return
        words = ["" if self._told else "READY=1", "WATCHDOG=1" if self._watched else "", f"STATUS={self._tells()}"]
        self._told = self._send(*filter(None, words)) or self._told

    def reloads(self) -> None:
        """Say that settings are read anew; called on the loop's thread, whose next turn says that this is done."""
        if self._to:
            self._told, self._due = False, float("-inf")
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stops(self, why: str) -> None:
        """Say that the process is about to end, once; from here on nothing beats, and the manager expects none."""
        if self._to and not self._over:
            self._over = True
            self._send("STOPPING=1", f"STATUS={why}")

    def _send(self, *words: str) -> bool:
        """Send words in one datagram; False: they did not get there."""
        if not self._to:
            return False
        text = "\n".join(" ".join(word.split()) for word in words)
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            way.sendto(text.encode(), self._to)
            return True
        return False


NOBODY = Service()
"""For whoever was started by a shell."""


def service_of(environment: dict[str, str] | os._Environ[str], pid: int) -> Service:
    """The manager that an environment names; a watchdog only where it is meant for the process `pid`."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    watched = microseconds.isdecimal() and environment.get("WATCHDOG_PID", str(pid)) == str(pid)
    return Service(environment.get("NOTIFY_SOCKET", ""), int(microseconds) / 1e6 if watched else 0.0)


def _longer(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}"
