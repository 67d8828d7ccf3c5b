"""The ready-made learner: a task, its training loop, and a node that never makes the loop wait.

Rule: the loop is the one that a user would write around `step()`. What it notes down (`learner_log`) is written between
steps, never within one.
"""

import logging
import threading
import time
import zlib
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from zdiloco.config import RunConfig
from zdiloco.demo.learner_log import LearnerLog, StepNote, log_path
from zdiloco.errors import ConfigError, LinkError
from zdiloco.knobs import check_name
from zdiloco.node.hooks import Hooks
from zdiloco.node.learner import LearnerNode
from zdiloco.node.service import NOBODY, Service
from zdiloco.train.tasks import Task

log = logging.getLogger(__name__)

UNDISTURBED_OF = 20
"""Of so many steps the shortest counts as undisturbed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerParams:
    """Who this learner is. `shard`: its part of the data, None: one by its name; `slowdown` ≥ 1: sleep to seem slow."""

    name: str
    shard: int | None = None
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        check_name(self.name, "--name")
        if not 1 <= self.slowdown <= 1000:
            raise ConfigError(f"--slowdown is {self.slowdown}; allowed is 1 to 1000")

    def shard_of(self, num_shards: int) -> int:
        """The shard to train on: as asked for, or one that follows from the name and stays the same for ever."""
        return zlib.crc32(self.name.encode()) % num_shards if self.shard is None else self.shard


def train(config: RunConfig, params: TrainerParams, stop: threading.Event, service: Service = NOBODY) -> int:
    """Train until the run's target is reached, or `stop` is set; then leave in order. Returns the exit code. `service`
    hears when it has joined, and how it goes.

    Raises ConfigError (task, data, or another run's model), LinkError (the run is gone, or a newer process has this
    name), StoreError (the run folder), MachineError (our own failure).
    """
    shard = params.shard_of(config.task.num_shards)
    task = Task(config.task, shard=shard)
    log.info("%s has its task shard=%d of=%d", params.name, shard, config.task.num_shards)
    try:
        hooks, stateful = Hooks(abandon=stop.is_set, service=service), {"data": task.cursor}
        node = LearnerNode(task.model, task.optimizer, config, name=params.name, hooks=hooks, stateful=stateful)
    except LinkError:
        if stop.is_set():  # nobody is at fault: we were asked to leave before we had joined
            return 0
        raise
    service.ready(lambda: f"{node.machine.phase}, step {task_steps(node)}, {node.progress:.1%} of the target")
    resumed = node.resumed
    task.cursor.skip(resumed.steps_since)  # batches that former processes have read since the data's place was saved
    facts = {
        "name": params.name, "incarnation": f"{node.key.incarnation:016x}", "shard": shard, "step": resumed.step,
        "skipped": resumed.steps_since, "restored": resumed.restored,
    }  # fmt: skip
    with closing(node), LearnerLog(log_path(config.run.path, node.key), facts) as notes:
        loop = Loop(task, node, notes, params.slowdown)
        loop.run(stop)
        node.close(f"asked to leave by {params.name}'s owner" if stop.is_set() else "the training loop has ended")
        service.stops(node.reason)
        phases = {phase: round(seconds, 4) for phase, seconds in node.resumed.seconds.items()}
        notes.end({"reason": node.reason, "steps": task_steps(node), "counts": node.counts, "phases": phases})
    log.info("%s ends steps=%d why=%r", params.name, task_steps(node), node.reason)  # the node has told an error
    return node.exit_code


def task_steps(node: LearnerNode) -> int:
    """Inner steps of this incarnation."""
    return node.machine.step


class Loop:
    """The training loop: one inner step, one `step()`, and a note of how long both took."""

    def __init__(self, task: Task, node: LearnerNode, notes: LearnerLog, slowdown: float) -> None:
        self._task, self._node, self._notes = task, node, notes
        self._slowdown = slowdown
        self._recent: deque[float] = deque(maxlen=UNDISTURBED_OF)

    def run(self, stop: threading.Event) -> None:
        """Train until the node says that it is over, or `stop` is set."""
        node, task = self._node, self._task
        while not (self._is_over() or stop.is_set()):
            began = time.perf_counter()
            loss, tokens = task.train_step(task.schedule.rate(node.progress, node.steps_since_join))
            self._seem_slow(time.perf_counter() - began, stop)
            if self._is_over():  # while this step was made the run has ended: it counts nowhere
                break
            called = time.perf_counter()
            node.step(tokens)
            ended = time.perf_counter()
            note = StepNote(loss=loss, tokens=tokens, step_s=ended - began, call_s=ended - called)
            self._notes.step(note, self._now)
        self._notes.flush(self._now())

    def _seem_slow(self, computed_s: float, stop: threading.Event) -> None:
        """Sleep as long as a slower machine would still compute: by the shortest of the last steps, since those that
        others disturbed would exaggerate it."""
        if self._slowdown > 1:
            self._recent.append(computed_s)
            stop.wait((self._slowdown - 1) * min(self._recent))

    def _is_over(self) -> bool:
        return self._node.finished

    def _now(self) -> dict[str, Any]:
        up, down = self._node.traffic
        return {"progress": round(self._node.progress, 5), "bytes_up": up, "bytes_down": down}
