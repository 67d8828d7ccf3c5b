"""The ready-made learner: a task, its training loop, and a node that never makes the loop wait.

Rule: the loop is the one that a user would write around `step()`. What it notes down (`learner_log`) and where its data
stand (`NAME.cursor.json`) are written between steps, never within one.
"""

import json
import logging
import os
import threading
import time
import zlib
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zdiloco.config import RunConfig
from zdiloco.demo.learner_log import LearnerLog, StepNote, log_path
from zdiloco.errors import ConfigError, LinkError, StoreError
from zdiloco.node.hooks import Hooks
from zdiloco.node.learner import LearnerNode
from zdiloco.node.params import check_name
from zdiloco.train.tasks import Task

log = logging.getLogger(__name__)

CURSOR_EVERY_S = 2.0
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


def train(config: RunConfig, params: TrainerParams, stop: threading.Event) -> int:
    """Train until the run's target is reached, or `stop` is set; then leave in order. Returns the exit code.

    Raises ConfigError (task, data, or another run's model), LinkError (the run is gone, or a newer process has this
    name), StoreError (the run folder), MachineError (our own failure).
    """
    shard = params.shard_of(config.task.num_shards)
    task = Task(config.task, shard=shard)
    cursor = CursorFile(config.run.path / "learners" / f"{params.name}.cursor.json")
    if cursor.load_into(task):
        log.info("%s goes on with its data epoch=%d", params.name, task.cursor.epoch)
    log.info("%s has its task shard=%d of=%d", params.name, shard, config.task.num_shards)
    try:
        node = LearnerNode(task.model, task.optimizer, config, name=params.name, hooks=Hooks(abandon=stop.is_set))
    except LinkError:
        if stop.is_set():  # nobody is at fault: we were asked to leave before we had joined
            return 0
        raise
    facts = {"name": params.name, "incarnation": f"{node.key.incarnation:016x}", "shard": shard}
    with closing(node), LearnerLog(log_path(config.run.path, node.key), facts) as notes:
        loop = Loop(task, node, notes, cursor, params.slowdown)
        loop.run(stop)
        node.close(f"asked to leave by {params.name}'s owner" if stop.is_set() else "the training loop has ended")
        notes.end({"reason": node.reason, "steps": task_steps(node), "counts": node.counts})
    log.info("%s ends steps=%d why=%r", params.name, task_steps(node), node.reason)  # the node has told an error
    return node.exit_code


def task_steps(node: LearnerNode) -> int:
    """Inner steps of this incarnation."""
    return node.machine.step


class Loop:
    """The training loop: one inner step, one `step()`, and a note of how long both took."""

    def __init__(self, task: Task, node: LearnerNode, notes: LearnerLog, cursor: "CursorFile", slowdown: float) -> None:
        self._task, self._node, self._notes, self._cursor = task, node, notes, cursor
        self._slowdown = slowdown
        self._recent: deque[float] = deque(maxlen=UNDISTURBED_OF)

    def run(self, stop: threading.Event) -> None:
        """Train until the node says that it is over, or `stop` is set; then the data's place is saved."""
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
            self._cursor.save_sometimes(task)
        self._notes.flush(self._now())
        self._cursor.save(task)

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


class CursorFile:
    """Where a learner's data stand, on the disk: written aside and moved into place, so it is always whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved_at = time.monotonic()

    def load_into(self, task: Task) -> bool:
        """Have the task's data go on where a former process of this name stood; False: there was none.

        Raises ConfigError where that process had other data, or the file cannot be read.
        """
        try:
            state = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"cannot read the data cursor {self._path} ({error}): remove it to start over") from error
        if not isinstance(state, dict):
            raise ConfigError(f"the data cursor {self._path} holds no table: remove it to start over")
        try:
            task.cursor.restore(state)
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {error}") from error
        return True

    def save_sometimes(self, task: Task) -> None:
        """Save, if the last time was `CURSOR_EVERY_S` ago."""
        if time.monotonic() - self._saved_at >= CURSOR_EVERY_S:
            self.save(task)

    def save(self, task: Task) -> None:
        """Write where the data stand now. Raises StoreError where the disk does not let us."""
        self._saved_at = time.monotonic()
        aside = self._path.with_suffix(".aside")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(task.cursor.state()), encoding="utf-8")
            os.replace(aside, self._path)
        except OSError as error:
            raise StoreError(f"cannot write the data cursor {self._path}: {error.strerror}") from error
