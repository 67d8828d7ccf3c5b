"""The stand-in for a training loop: a step of fixed work and fixed length, and how long each call beside it took.

Rule: the same steps are made with a learner and without one. One step moves one layer of the model a little, multiplies
matrices (a fixed number of times, counted once to fill the wanted time on this machine while it is quiet), and then
waits until the step is as long as it should be, as a host waits for its accelerator.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

LAYERS = 24
"""Layers of the model, all alike: P = 24 makes each of them a fragment."""
STEP_S, COMPUTE_S = 0.050, 0.010
SIDE = 128  # of the matrices
CHANGE = 1e-4
TRIALS = 50


@dataclass(slots=True)
class Record:
    """A stretch of steps, in monotonic seconds: when each call began (`at`) and how long it took (`pauses`)."""

    began: float
    ended: float = 0.0
    at: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)


class Loop:
    """Makes steps. `parameters`: of the model, rounded to 24 square layers."""

    def __init__(self, parameters: int, step_s: float = STEP_S) -> None:
        width = max(1, round(math.sqrt(parameters / LAYERS)))
        layers = [nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
        self.model = nn.Sequential(*layers)
        self._weights = [layer.weight for layer in layers]
        self._change = CHANGE * torch.randn(width, width)
        self._left, self._right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
        self._product_s = min(self._multiply(1) for _ in range(TRIALS))
        self._step_s = step_s
        self._layer = 0
        self._products = 0
        self.compute(COMPUTE_S)

    def compute(self, seconds: float) -> None:
        """From here on a step computes for so long on this machine while it is quiet."""
        self._products = max(1, round(seconds / self._product_s))

    @property
    def step_s(self) -> float:
        """The shortest step, in seconds."""
        return self._step_s

    def step(self) -> None:
        """Make one step; it takes `step_s`, or longer where the work does."""
        began = time.monotonic()
        self._move()
        self._multiply(self._products)
        time.sleep(max(0.0, began + self._step_s - time.monotonic()))

    def steps(self, count: int, call: Callable[[], None]) -> Record:
        """Make so many steps with a call after each."""
        record = Record(began=time.monotonic())
        for _ in range(count):
            self.one(call, record)
        record.ended = time.monotonic()
        return record

    def one(self, call: Callable[[], None], record: Record) -> None:
        """Make one step and the call after it, and note how long the call took."""
        self.step()
        at = time.monotonic()
        call()
        record.pauses.append(time.monotonic() - at)
        record.at.append(at)

    @torch.no_grad()
    def _move(self) -> None:
        self._weights[self._layer].add_(self._change)
        self._layer = (self._layer + 1) % LAYERS

    def _multiply(self, times: int) -> float:
        began = time.monotonic()
        for _ in range(times):
            torch.mm(self._left, self._right)
        return time.monotonic() - began
