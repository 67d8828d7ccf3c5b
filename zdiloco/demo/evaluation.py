"""What `zdiloco eval` does: the validation loss of a run's values, once from its newest checkpoint, or as they move.

Rule: who evaluates is no part of the run. It judges a copy of the values, on a thread of its own, so that following
goes on however long an evaluation takes; and nothing that happens to syncer or learners ends it.
"""

import logging
import math
import secrets
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zdiloco.config import RunConfig
from zdiloco.demo.outcome import named_values
from zdiloco.errors import ConfigError, LinkError, StoreError
from zdiloco.node.clock import monotonic
from zdiloco.node.hooks import Hooks
from zdiloco.node.watcher import View, WatcherNode
from zdiloco.node.worker import Worker
from zdiloco.rundir.archive import Cut, read_newest
from zdiloco.rundir.fitting import layout_of_cut
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.layout import Layout
from zdiloco.train.tasks import Task

log = logging.getLogger("zdiloco.eval")

TURN_S = 0.2
"""Longest time between two looks at what was published."""
LAST_S = 1.0
"""Asked to leave, an evaluation under way is waited for so long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """One evaluation: what the values were made of, and their loss in nats per byte; `at_s` since the start."""

    at_s: float
    view: View
    loss: float

    def to_obj(self) -> dict[str, Any]:
        """As JSON has it; a loss that is not finite is null."""
        view = self.view
        return {
            "at_s": round(self.at_s, 3),
            "merged_tokens": view.merged_tokens,
            "progress": view.progress,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "epoch": view.epoch,
            "versions": list(view.versions),
        }

    def __str__(self) -> str:
        share = f" ({self.view.progress:.1%} of the run's target)" if self.view.progress else ""
        return f"merged {self.view.merged_tokens:,.0f} tokens{share}, validation loss {self.loss:.4f} nats/byte"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """All that was evaluated, and how it ended."""

    run_id: str
    evaluations: tuple[Evaluation, ...]
    finished: bool
    reason: str
    exit_code: int = 0

    def to_obj(self) -> dict[str, Any]:
        """What `--json` prints."""
        rows = [each.to_obj() for each in self.evaluations]
        return {
            "run_id": self.run_id,
            "loss": rows[-1]["loss"] if rows else None,
            "finished": self.finished,
            "reason": self.reason,
            "evaluations": rows,
        }


def evaluate_newest(config: RunConfig) -> Found:
    """Evaluate the newest checkpoint of the run folder, whether its syncer lives or not.

    Raises ConfigError where there is none, none is whole, or it is of another model.
    """
    try:
        cut = read_newest(config.run.path)
    except StoreError as error:
        raise ConfigError(f"run.dir {config.run.dir}: {error}") from error
    if cut is None:
        raise ConfigError(
            f"run.dir {config.run.dir} holds no checkpoint to evaluate: where the run lies on another machine or has "
            "just begun, use --follow"
        )
    task = Task(config.task, shard=0)
    layout = layout_of_cut(cut)
    Binding(task.model, layout)  # names the first tensor of another model
    loss = task.evaluate_values(named_values(cut, layout))
    view = _view_of(cut, layout, config.run.target_tokens)
    finished = bool(config.run.target_tokens) and view.progress >= 1.0
    evaluation = Evaluation(at_s=0.0, view=view, loss=loss)
    reason = f"the newest checkpoint of {config.run.dir}"
    return Found(run_id=cut.run_id, evaluations=(evaluation,), finished=finished, reason=reason)


def _view_of(cut: Cut, layout: Layout, target_tokens: int) -> View:
    merged = [sum(entry.tokens for entry in part.map_) for part in cut.fragments]
    tokens = sum(share * each for share, each in zip(layout.shares, merged, strict=True))
    return View(
        epoch=cut.epoch.counter,
        versions=tuple(part.stamp.version for part in cut.fragments),
        merged_tokens=tokens,
        progress=tokens / target_tokens if target_tokens else 0.0,
    )


def follow(config: RunConfig, every_s: float, stop: threading.Event, say: Callable[[Evaluation], None]) -> Found:
    """Evaluate at most every `every_s` seconds what has moved, until the run is over or `stop` is set.

    `say` hears of each evaluation, on a thread of ours. Raises ConfigError where the run is of another model, and
    MachineError for our own failure.
    """
    task = Task(config.task, shard=0)
    name = f"eval-{secrets.token_hex(4)}"
    try:
        node = WatcherNode(task.model, config, name=name, hooks=Hooks(abandon=stop.is_set))
    except LinkError:
        if stop.is_set():  # nobody is at fault: we were asked to leave before anything was there
            return Found(run_id="", evaluations=(), finished=False, reason="asked to leave")
        raise
    with closing(node):
        follower = Follower(task, node, every_s, say)
        try:
            follower.run(stop)
        finally:
            follower.close(LAST_S)
    reason = node.reason if node.finished else "asked to leave" if stop.is_set() else "the syncer has gone at the end"
    return Found(
        run_id=node.machine.run_id,
        evaluations=tuple(follower.done),
        finished=node.reached_target or node.outlived,
        reason=reason,
        exit_code=node.exit_code,
    )


class Follower:
    """Follows a node and judges copies of its values, one at a time, on a thread of its own. `done`: in order."""

    def __init__(self, task: Task, node: WatcherNode, every_s: float, say: Callable[[Evaluation], None]) -> None:
        self._task, self._node, self._every_s, self._say = task, node, every_s, say
        self._began = monotonic()
        self._due_at = self._began
        self._judged: View | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._failure: BaseException | None = None
        self._worker = Worker("zdiloco-eval", self._fail)
        self.done: list[Evaluation] = []

    def run(self, stop: threading.Event) -> None:
        """Follow until the node says that it is over, or `stop` is set; what is there at the end is judged, too."""
        node = self._node
        while not (node.over or node.outlived or stop.is_set()):
            node.turn(min(TURN_S, self._every_s))
            if monotonic() >= self._due_at and not node.finished:
                self._judge()
            self._raise_failure()
        while not (stop.is_set() or self._idle.wait(TURN_S)):
            self._raise_failure()
        if not stop.is_set():
            self._judge()
        while not (stop.is_set() or self._idle.wait(TURN_S)):
            self._raise_failure()
        self._raise_failure()

    def close(self, wait_s: float) -> None:
        """End the thread; what it is at is abandoned after `wait_s`."""
        self._worker.close(wait_s)

    def _judge(self) -> None:
        """Have the values evaluated if they have moved and nothing is under way."""
        if not self._idle.is_set() or not self._node.holds_values:
            return
        view = self._node.view()
        if self._judged is not None and (view.epoch, view.versions) == (self._judged.epoch, self._judged.versions):
            return
        self._judged, self._due_at = view, monotonic() + self._every_s
        values = {name: value.detach().clone() for name, value in self._task.model.named_parameters()}
        self._idle.clear()
        self._worker.submit(lambda: self._evaluate(view, values))

    def _evaluate(self, view: View, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            loss = self._task.evaluate_values(values)
        self.done.append(Evaluation(at_s=monotonic() - self._began, view=view, loss=loss))
        self._say(self.done[-1])
        self._idle.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._idle.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
