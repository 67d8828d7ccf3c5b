"""A whole run in one process: a syncer and learners on threads, over loopback sockets."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.node.relay_stage import stage_of  # noqa: F401 - a fixture
from tests.node.relays import region_of  # noqa: F401 - a fixture
from zdiloco.config import RunConfig, from_tree
from zdiloco.node.hooks import Hooks
from zdiloco.node.learner import LearnerNode
from zdiloco.node.syncer import SyncerNode

LIMIT_S = 90.0
BASE: dict[str, dict[str, Any]] = {
    "run": {"target_tokens": 0},
    "sync": {
        "sync_period": 4, "num_fragments": 2, "checkpoint_every_s": 0.2, "recover_wait_s": 0.3, "beat_every_s": 0.1,
        "suspect_after_s": 1.0, "gone_after_s": 2.0, "report_every_s": 0.01, "drain_s": 5.0,
    },
    "learner": {"silent_after_s": 1.0, "answer_timeout_s": 0.5},
    "net": {"stall_s": 0.2, "chunk_bytes": 1024, "window_bytes": 4096},
}  # fmt: skip


def tiny_model(seed: int) -> nn.Sequential:
    """Two layers and a normalisation, so that there is a fragment of buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))


class Trainer:
    """One learner on its own thread: trains until told to stop, or finished."""

    def __init__(
        self, config: RunConfig, name: str, seed: int, pace_s: float = 0.002, model: nn.Module | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    ) -> None:  # fmt: skip
        self.model = model or tiny_model(seed)
        self.optimizer = optimizer(self.model.parameters(), lr=1e-3)
        self.name, self.pace_s = name, pace_s
        self.error: BaseException | None = None
        self.node: LearnerNode | None = None
        self.drawn = [p.detach().clone() for p in self.model.parameters()]
        self.initial: list[torch.Tensor] = []
        self.steps = 0
        self.poison = False
        self.stopping = threading.Event()
        self.joined = threading.Event()
        self._config = config
        self.thread = threading.Thread(target=self._run, name=f"trainer-{name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            hooks = Hooks(abandon=self.stopping.is_set)
            with LearnerNode(self.model, self.optimizer, self._config, name=self.name, hooks=hooks) as node:
                self.node = node
                self.initial = [p.detach().clone() for p in self.model.parameters()]
                self.joined.set()
                generator = torch.Generator().manual_seed(len(self.name))
                while not (node.finished or self.stopping.is_set()):
                    self._step(node, generator)
        except BaseException as error:
            self.error = error
        finally:
            self.joined.set()

    def _step(self, node: LearnerNode, generator: torch.Generator) -> None:
        x = torch.randn(4, 8, generator=generator)
        loss = ((self.model(x) - x.flip(1)) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.poison:
            self.poison = False
            with torch.no_grad():
                next(self.model.parameters()).fill_(float("nan"))
        self.stopping.wait(self.pace_s)  # the stand-in for an accelerator's work, and for other threads' time
        node.step(4)
        self.steps += 1

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()


class Run:
    """A run folder, its ports, and everybody who takes part; all are ended with the test. `honest`: all of them keep
    the protocol."""

    honest = True

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.trainers: list[Trainer] = []
        self.syncer: SyncerNode | None = None
        self._thread: threading.Thread | None = None

    def start_syncer(self, **changes: Any) -> SyncerNode:
        self.syncer = SyncerNode(self.config, **changes)
        self._thread = self.syncer.start()
        return self.syncer

    def stop_syncer(self) -> SyncerNode:
        assert self.syncer is not None
        assert self._thread is not None
        self.syncer.stop("the test stops it")
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        return self.syncer

    def join(self, name: str, **options: Any) -> Trainer:
        trainer = Trainer(self.config, name, seed=len(self.trainers), **options)
        self.trainers.append(trainer)
        return trainer

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition, with an end."""
        ends = time.monotonic() + LIMIT_S
        pause = threading.Event()
        while not condition():
            for trainer in self.trainers:
                assert trainer.error is None, trainer.error
            assert self.syncer is None or self.syncer.failure is None
            assert time.monotonic() < ends, f"never came: {what}"
            pause.wait(0.005)

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.stop()
        if self.syncer is not None:
            self.stop_syncer()
            limits = self.syncer.roads.gate.status()
            assert not self.honest or limits["dropped"] == {}, f"who keeps the protocol met a limit: {limits}"


@pytest.fixture
def run_of(tmp_path: Path, free_ports: Callable[[int], int]) -> Iterator[Callable[..., Run]]:
    """Makes runs from changes to BASE: run_of(run={...}, sync={...})."""
    runs: list[Run] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def make(**sections: dict[str, Any]) -> Run:
        tree = {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in {*BASE, *sections}}
        tree["run"].setdefault("dir", str(tmp_path / "run"))
        tree["net"].setdefault("port", free_ports(4))
        runs.append(Run(from_tree(tree)))
        return runs[-1]

    yield make
    for run in runs:
        run.close()
    torch.set_num_threads(threads)


def merged_tokens(syncer: SyncerNode) -> dict[int, int]:
    """Merged tokens of every fragment, whoever made them."""
    return {index: sum(m.tokens for m in state.map_.values()) for index, state in syncer.body.states.items()}
