"""`python -m zdiloco.bench.standin RUN.toml NAME PARAMETERS STEP_S`: the stand-in loop as a process of its own.

Rule: one command a line on standard input, one line of JSON as its answer on standard output. With a learner attached
it steps on while it waits for the next command. When its input ends, whatever the reason, it ends too.
"""

import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import AdamW

from zdiloco.api import Learner
from zdiloco.bench.loop import COMPUTE_S, Loop, Record
from zdiloco.errors import LinkError, ZdilocoError

TOKENS = 1000
"""Tokens of a step."""
READ_BYTES = 4096


class StandIn:
    """Obeys what comes on the descriptor `commands`; `answer` gets one line each."""

    def __init__(self, run_toml: str, name: str, loop: Loop, commands: int, answer: Callable[[str], object]) -> None:
        self._run_toml, self._name, self._loop = run_toml, name, loop
        self._commands, self._answer = commands, answer
        self._unread = b""
        self._learner: Learner | None = None
        self._record: Record | None = None

    def obey(self) -> None:
        """Do what is asked for until the input ends. Raises LinkError where the run is over for this learner."""
        try:
            while (words := self._next()) is not None:
                self._answer(json.dumps(self._COMMANDS[words[0]](self, *words[1:])) + "\n")
        finally:
            self._detach()

    def _next(self) -> list[str] | None:
        """The next command, in words; None: there will be none. Steps meanwhile, where a learner is attached."""
        while b"\n" not in self._unread:
            if self._learner is not None and not select.select([self._commands], [], [], 0)[0]:
                self._step(self._learner)
                continue
            data = os.read(self._commands, READ_BYTES)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode().split()

    def _step(self, learner: Learner) -> None:
        self._loop.one(lambda: learner.step(TOKENS), self._record or Record(began=0.0))
        if learner.finished:
            raise LinkError(f"{self._name} is to leave: {learner.reason}")

    # ---- commands

    def _compute(self, mode: str) -> dict[str, Any]:
        """'accelerator': compute for a fifth of the step, wait for the rest; 'computing': compute all the time."""
        self._loop.compute(self._loop.step_s if mode == "computing" else COMPUTE_S)
        return {}

    def _bare(self, steps: str) -> dict[str, Any]:
        return asdict(self._loop.steps(int(steps), lambda: None))

    def _attach(self) -> dict[str, Any]:
        model = self._loop.model
        self._learner = Learner(model, _with_state(model), self._run_toml, name=self._name)
        return {}

    def _measure(self, steps: str) -> dict[str, Any]:
        learner = self._learner
        assert learner is not None
        return asdict(self._loop.steps(int(steps), lambda: learner.step(TOKENS)))

    def _begin(self) -> dict[str, Any]:
        """From here on every step is noted, until `end` answers with them."""
        self._record = self._loop.steps(0, lambda: None)
        return {}

    def _end(self) -> dict[str, Any]:
        record, self._record = self._record, None
        assert record is not None
        record.ended = (record.at or [record.began])[-1]
        return asdict(record)

    def _detach(self) -> dict[str, Any]:
        learner, self._learner = self._learner, None
        if learner is not None:
            learner.close()
        return {}

    _COMMANDS: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {
        "compute": _compute,
        "bare": _bare,
        "attach": _attach,
        "measure": _measure,
        "begin": _begin,
        "end": _end,
        "detach": _detach,
    }


def _with_state(model: nn.Module) -> AdamW:
    """An AdamW that has made a step, which changed nothing: it holds two moments of each parameter, to be saved."""
    optimizer = AdamW(model.parameters(), weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def main(arguments: Sequence[str]) -> int:
    """Be the process; returns its exit code."""
    run_toml, name, parameters, step_s = arguments
    loop = Loop(int(parameters), float(step_s))

    def answer(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    try:
        StandIn(run_toml, name, loop, sys.stdin.fileno(), answer).obey()
    except ZdilocoError as error:
        print(f"zdiloco: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
