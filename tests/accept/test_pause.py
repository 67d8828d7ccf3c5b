"""What a learner costs a training loop: a stand-in for an accelerator, bare and with a learner attached, in one run.

What the machine does beside it comes and goes, and what a learner costs is there all the time: so bare and attached
stretches follow each other, and it is the best of them that is judged.
"""

import itertools
import statistics
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.accept.stage import Stage
from zdiloco.node.learner import LearnerNode

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow]
COMPUTE_S, STEP_S = 0.010, 0.050
BARE_STEPS, STEPS, STRETCHES = 30, 60, 5
WIDTH, LAYERS = 500, 8  # 2 M parameters, one fragment a layer


class StandIn:
    """One step: 10 ms of one-thread compute, then a wait to 50 ms, as if an accelerator computed."""

    def __init__(self) -> None:
        self._a, self._b = torch.randn(128, 128), torch.randn(128, 128)
        self._never = threading.Event()

    def step(self) -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < COMPUTE_S:
            torch.mm(self._a, self._b)
        self._never.wait(max(0.0, began + STEP_S - time.perf_counter()))

    def loop(self, steps: int, call: Callable[[], None]) -> tuple[float, list[float]]:
        """Steps per second, and the seconds that each `call` took."""
        called = []
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
            before = time.perf_counter()
            call()
            called.append(time.perf_counter() - before)
        return steps / (time.perf_counter() - began), called


def test_a_learner_does_not_slow_the_loop(stage: Stage, say: Callable[[str], None]) -> None:
    stage.write(sync={"sync_period": 8, "num_fragments": LAYERS}, learner={"codec": "int8"})
    syncer = stage.sync()
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stand_in = StandIn()
    ratios, pauses = [], []
    with LearnerNode(model, optimizer, stage.config, name="a") as learner:
        for _ in range(STRETCHES):
            bare, _ = stand_in.loop(BARE_STEPS, lambda: None)
            attached, called = stand_in.loop(STEPS, lambda: learner.step(1000))
            ratios.append(attached / bare)
            pauses.append(called)
        status = stage.status()
    stage.end(syncer)
    every = list(itertools.chain(*pauses))
    p99, p90 = statistics.quantiles(every, n=100)[98], [statistics.quantiles(called, n=10)[8] for called in pauses]
    say(
        f"steps/s attached ÷ bare {statistics.median(ratios):.3f}; step() p50 {statistics.median(every) * 1e3:.2f} ms, "
        f"p99 {p99 * 1e3:.2f} ms, max {max(every) * 1e3:.2f} ms; {status['rounds']} rounds in {len(every)} steps"
    )
    assert status["contributions"] == status["rounds"]
    assert status["rounds"] >= 2 * LAYERS  # every fragment twice; without rounds the figures would say nothing
    assert max(ratios) >= 0.95
    assert min(p90) < STEP_S / 4
