"""What a learner costs a training loop: a stand-in for an accelerator, bare and with a learner attached, in one run."""

import statistics
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.accept.stage import Stage
from zdiloco.node.learner import LearnerNode

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(120)]
COMPUTE_S, STEP_S = 0.010, 0.050
BARE_STEPS, STEPS = 160, 400
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


def test_a_learner_does_not_slow_the_loop(stage: Stage) -> None:
    stage.write(sync={"sync_period": 8, "num_fragments": LAYERS}, learner={"codec": "int8"})
    syncer = stage.sync()
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stand_in = StandIn()
    with LearnerNode(model, optimizer, stage.config, name="a") as learner:
        before, _ = stand_in.loop(BARE_STEPS // 2, lambda: None)
        attached, pauses = stand_in.loop(STEPS, lambda: learner.step(1000))
        status = stage.status()
    after, _ = stand_in.loop(BARE_STEPS // 2, lambda: None)
    stage.end(syncer)
    ratio = attached / statistics.mean((before, after))
    p99 = statistics.quantiles(pauses, n=100)[98]
    print(
        f"steps/s attached ÷ bare {ratio:.3f}; step() p50 {statistics.median(pauses) * 1e3:.2f} ms, "
        f"p99 {p99 * 1e3:.2f} ms, max {max(pauses) * 1e3:.2f} ms; {status['rounds']} rounds"
    )
    assert status["contributions"] == status["rounds"]
    assert status["rounds"] >= 0.8 * STEPS  # H = P = 8: a round a step; without them the figures would say nothing
    assert ratio >= 0.95
    assert p99 < STEP_S / 4
