"""Child processes of the demo and of measurements: real ones, each with a log of its own; none outlives its parent.

Rule: whoever starts a child ends it. `close` asks in order, waits with an end, then kills.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import zdiloco
from zdiloco.errors import ConfigError, ZdilocoError

LEAVE_S = 6.0
"""A child that was asked to leave has so long; it needs up to 5 s."""
LOG_LINES = 8
PORTS = range(20_000, 32_000)
"""Below the ports that the kernel gives to outgoing connections."""


class DemoFailed(ZdilocoError):
    """The demo came to an end that it was not meant to come to; `logs` shows the last lines of those concerned."""

    def __init__(self, what: str, logs: str) -> None:
        super().__init__(what)
        self.logs = logs


class Child:
    """One running `zdiloco` command, or another module of ours. `name` is for people; the log gets all that it prints.

    With `pipes` its standard input and output are `stdin` and `stdout` here, and only its errors go to the log.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, *, module: str = "zdiloco.cli", pipes: bool = False
    ) -> None:  # fmt: skip
        self.name, self.log = name, log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else out,
                stderr=out,
                bufsize=0,
                env=_environment(),
                start_new_session=True,  # an interrupt at the terminal is for the demo, which passes it on
            )
        self.stdin, self.stdout = self._process.stdin, self._process.stdout

    @property
    def exit_code(self) -> int | None:
        """How it ended; None: it runs; below zero: minus the signal that killed it."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL: it dies at once, in the middle of whatever it does. Returns when it is dead."""
        self._process.kill()
        self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal; to one that has ended, nothing."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def ask(self) -> None:
        """SIGTERM: it leaves in order, soon."""
        self.send(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int | None:
        """The exit code; None where it still runs after `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def last_lines(self, count: int = LOG_LINES) -> str:
        """The end of its log."""
        return last_lines_of(self.log, count)


def last_lines_of(path: Path, count: int) -> str:
    """The end of a log; empty where there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-count:])


def end_all(children: Sequence[Child]) -> None:
    """Have every child end: those that do not leave within `LEAVE_S`, or before an interrupt, are killed."""
    running = [child for child in children if child.exit_code is None]
    try:
        for child in running:
            child.ask()
        ends = time.monotonic() + LEAVE_S
        for child in running:
            child.wait(max(0.0, ends - time.monotonic()))
    finally:
        for child in running:
            if child.exit_code is None:
                child.kill()


def free_port_base(count: int = 4) -> int:
    """Find `count` ports in a row on loopback that can be bound now. Raises ConfigError where there are none."""
    chance = random.Random()  # demos that start at the same moment must not look at the same ports
    for _ in range(1000):
        base = chance.randrange(PORTS.start, PORTS.stop - count)
        if all(_is_free(port) for port in range(base, base + count)):
            return base
    raise ConfigError(f"no {count} free ports in a row on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _environment() -> dict[str, str]:
    """One torch thread a process, idle threads asleep; and this very package, wherever it lies."""
    root = str(Path(zdiloco.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": path}
