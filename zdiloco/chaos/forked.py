"""The nursery as who commands it sees it: starts commands as forks, and ends what it has started.

Rule: one thread uses it. Signals go through the nursery, which knows who has ended, so no process that has taken a
dead one's number is ever hit.
"""

import itertools
import json
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zdiloco.demo.processes import LOG_LINES, Child, DemoFailed, last_lines_of

ANSWER_S = 60.0
"""The nursery answers sooner; it takes seconds to load everything on a busy machine."""
READ_BYTES = 65536


class Forked:
    """One command that was started. Times are monotonic seconds; `ended_at` and `exit_code` None: it runs."""

    def __init__(self, nursery: "Nursery", number: int, name: str, log: Path) -> None:
        self._nursery, self._number = nursery, number
        self.name, self.log = name, log
        self.pid = 0
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self._exit_code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """How it ended; None: it runs; below zero: minus the signal that killed it."""
        self._nursery.listen(0.0)
        return self._exit_code

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; to one that has ended, nothing. Returns whether it got it."""
        return bool(self._nursery.ask({"child": self._number, "signal": int(number)})["signalled"])

    def wait(self, limit_s: float) -> int | None:
        """The exit code; None where it still runs after `limit_s`."""
        ends = time.monotonic() + limit_s
        while self.exit_code is None and time.monotonic() < ends:
            self._nursery.listen(ends - time.monotonic())
        return self._exit_code

    def kill(self) -> None:
        """SIGKILL: it dies in the middle of whatever it does. Returns when it is dead."""
        self.send(signal.SIGKILL)
        if self.wait(ANSWER_S) is None:
            raise DemoFailed(f"{self.name} outlives SIGKILL", self.last_lines())

    def last_lines(self, count: int = LOG_LINES) -> str:
        """The end of its log."""
        return last_lines_of(self.log, count)

    def hear(self, what: dict[str, Any]) -> None:
        """The nursery tells something of this process."""
        if "started" in what:
            self.pid, self.started_at = what["started"], what["at"]
        elif "ended" in what:
            self._exit_code, self.ended_at = what["ended"], what["at"]


class Nursery:
    """The running nursery; `close` ends it, and with it everybody that it has started."""

    def __init__(self, folder: Path, *, module: str = "zdiloco.cli.nursery") -> None:
        """Start it; its own words go to `nursery.log` in `folder`. Returns when it is ready to fork."""
        self._numbers = itertools.count(1)
        self._forked: dict[int, Forked] = {}
        self._unread = b""
        self._answers: list[dict[str, Any]] = []
        self.process = Child("nursery", [], folder / "nursery.log", module=module, pipes=True)
        try:
            self._answer("ready")
        except BaseException:
            self.close()
            raise

    def start(
        self, name: str, arguments: Sequence[str], folder: Path, *, cold: bool = False, free: bool = False
    ) -> Forked:  # fmt: skip
        """Start a `zdiloco` command under the orders in `folder`, or `free` of them; `cold`: as a new program, which
        obeys none either."""
        number = next(self._numbers)
        log = folder / f"{number:03d}-{name}.log"
        self._forked[number] = child = Forked(self, number, name, log)
        orders = "" if free else str(folder / f"{name}.orders")
        order = {"arguments": list(arguments), "log": str(log), "orders": orders, "cold": cold}
        self.ask({"child": number, "start": order})
        return child

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Have it do something; returns its answer. Raises DemoFailed where it has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
        except BrokenPipeError:
            raise DemoFailed("the nursery has ended", self.process.last_lines()) from None
        return self._answer("started" if "start" in command else "signalled")

    def listen(self, wait_s: float) -> None:
        """Take in what it says, for which it is waited at most `wait_s`."""
        assert self.process.stdout is not None
        out = self.process.stdout.fileno()
        if not select.select([out], [], [], max(0.0, wait_s))[0]:
            return
        data = os.read(out, READ_BYTES)
        if not data:
            raise DemoFailed("the nursery has ended", self.process.last_lines())
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "child" in told:
                self._forked[told["child"]].hear(told)
            if "ended" not in told:
                self._answers.append(told)

    def _answer(self, word: str) -> dict[str, Any]:
        ends = time.monotonic() + ANSWER_S
        while not self._answers:
            if time.monotonic() > ends:
                raise DemoFailed(f"the nursery says nothing for {ANSWER_S:g} s", self.process.last_lines())
            self.listen(ends - time.monotonic())
        answer = self._answers.pop(0)
        assert word in answer, answer
        return answer

    @property
    def running(self) -> list[Forked]:
        """Who has not ended."""
        return [child for child in self._forked.values() if child.exit_code is None]

    def close(self) -> None:
        """End it and everybody that it has started, at once; harmless when repeated."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()  # the end of its input is what it ends with
        if self.process.wait(ANSWER_S) is None:
            self.process.kill()
