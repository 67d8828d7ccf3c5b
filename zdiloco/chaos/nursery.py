"""A process that has loaded everything, and forks `zdiloco` commands when told to: `python -m zdiloco.cli.nursery`.

Rule: one command a line on standard input, as JSON; what happened goes to standard output in the same manner. Children
are forked while this process has one thread and no ZeroMQ context, so a start costs a fifth of a second, and what a
child does from there on is what the command does. Nobody is left behind: when the input ends, all children are killed;
when this process is killed, the system kills them (Linux).
"""

import ctypes
import gc
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import torch

import zdiloco.demo.trainer
import zdiloco.node.syncer
import zdiloco.train.tasks  # noqa: F401 - a child finds all of it loaded
from zdiloco.chaos import inside
from zdiloco.errors import MachineError

PR_SET_PDEATHSIG = 1
READ_BYTES = 65536
TASKS = Path("/proc/self/task")
"""The threads of this process, where the system shows them."""
Run = Callable[[Sequence[str]], int]
"""Runs one command line in this process; returns its exit code."""


class NurseryProcess:
    """Obeys until its input ends. Commands: `start` (with `arguments`, `log`, `orders`, `cold`) and `signal`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._children: dict[int, int] = {}
        self._unread = b""
        self._bell, bell = os.pipe()
        os.set_blocking(bell, False)
        os.set_blocking(self._bell, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(bell)

    def obey(self) -> None:
        """Do what comes in; afterwards nobody lives."""
        try:
            say({"ready": os.getpid()})
            while self._turn():
                self._reap()
        finally:
            for pid in self._children.values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in self._children.values():
                os.waitpid(pid, 0)

    def _turn(self) -> bool:
        """Wait for a command or a death. False: there will be no more commands."""
        ready, _, _ = select.select([sys.stdin, self._bell], [], [])
        if self._bell in ready:
            with suppress(BlockingIOError):
                os.read(self._bell, READ_BYTES)
        if sys.stdin not in ready:
            return True
        data = os.read(sys.stdin.fileno(), READ_BYTES)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._do(json.loads(line))
        return bool(data)

    def _do(self, command: Mapping[str, Any]) -> None:
        child = command["child"]
        if "start" in command:
            at = time.monotonic()
            self._children[child] = self._fork(command["start"])
            say({"child": child, "started": self._children[child], "at": at})
        else:
            if child in self._children:  # it is not reaped, so the number is its own still
                os.kill(self._children[child], command["signal"])
            say({"child": child, "signalled": child in self._children, "at": time.monotonic()})

    def _reap(self) -> None:
        for child, pid in list(self._children.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._children[child]
                say({"child": child, "ended": os.waitstatus_to_exitcode(status), "at": time.monotonic()})

    def _fork(self, order: Mapping[str, Any]) -> int:
        if TASKS.exists() and len(list(TASKS.iterdir())) != 1:
            raise MachineError("the nursery has threads: what is forked from it would hang")
        mother = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_child(self._run, order, mother)
        return pid


def say(what: Mapping[str, Any]) -> None:
    """One line to who commands."""
    os.write(1, json.dumps(what).encode() + b"\n")


def _become_child(run: Run, order: Mapping[str, Any], mother: int) -> None:
    """Be the command from here on; never returns."""
    code = 1
    try:
        _settle_in(order["log"], mother)
        arguments = list(order["arguments"])
        if order["cold"]:
            os.execv(sys.executable, [sys.executable, "-m", "zdiloco.cli", *arguments])
        sys.argv = ["zdiloco", *arguments]
        if order["orders"]:
            inside.install(Path(order["orders"]))
        code = run(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the exit handlers are the nursery's


def _settle_in(log: str, mother: int) -> None:
    """Signals, standard streams and chance as a new process has them; and it ends with the nursery."""
    with suppress(OSError, AttributeError):  # only Linux knows it; elsewhere a killed nursery leaves orphans
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != mother:
        os._exit(1)
    os.setsid()  # an interrupt at the terminal is for who commands
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.closerange(3, 256)
    random.seed()
    numpy.random.seed()


def serve(run: Run) -> None:
    """Be the nursery until the input ends."""
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its input
    torch.optim.AdamW([torch.zeros(1)], fused=True)  # loads what torch loads late
    gc.collect()
    gc.freeze()  # or each child would go through all of it
    NurseryProcess(run).obey()
