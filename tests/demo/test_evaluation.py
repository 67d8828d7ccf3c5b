"""Evaluating a run: of its newest checkpoint, or as it moves, on copies, whatever else happens."""

import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from zdiloco.config import RunConfig, from_tree
from zdiloco.demo.evaluation import Evaluation, Follower, Found, evaluate_newest
from zdiloco.errors import ConfigError
from zdiloco.node.learner_body import layout_for
from zdiloco.node.watcher import View, WatcherNode
from zdiloco.rundir.archive import Cut, FragmentCut
from zdiloco.rundir.store import Store
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.codecs import get_codec
from zdiloco.train.tasks import Task
from zdiloco.units import Epoch, Merged, Stamp

LIMIT_S = 60.0
EPOCH = Epoch(3, 9)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A tiny task on a little text."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(200):
        (texts / f"{number}.txt").write_text("a line of some text, and another one\n" * 40)
    return from_tree(
        {
            "run": {"dir": str(tmp_path / "run"), "target_tokens": 1000},
            "sync": {"num_fragments": 3},
            "task": {
                "data_dir": str(texts), "min_data_bytes": 1000, "context": 16, "batch_size": 2,
                "validation_batches": 1, "validation_batch_size": 2,
            },
        }
    )  # fmt: skip


def saved(config: RunConfig, task: Task) -> Cut:
    """A checkpoint of the task's values, with 600 tokens merged into each fragment."""
    layout = layout_for(task.model, config.sync.num_fragments, config.learner.strategy)
    binding, parts = Binding(task.model, layout), []
    for index in range(len(layout.fragments)):
        theta = binding.gather(index)
        map_ = (Merged("a", 1, 4, 6, 600),)
        parts.append(
            FragmentCut(
                fragment=index, revision=1, stamp=Stamp(EPOCH, index + 1), theta=theta, buf=None,
                value=get_codec("bf16").encode(theta), codec="bf16", map_=map_,
            )
        )  # fmt: skip
    cut = Cut(run_id="run-1", epoch=EPOCH, layout_digest=layout.digest, layout=layout.to_obj(), fragments=tuple(parts))
    store = Store(config.run.path, keep=2)
    store.write(cut)
    store.close()
    return cut


def test_the_newest_checkpoint_is_evaluated_beside_a_living_syncer(config: RunConfig) -> None:
    task = Task(config.task, shard=0)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(0.5)
    saved(config, task)
    syncer = Store(config.run.path, keep=2)  # holds the folder
    try:
        found = evaluate_newest(config)
    finally:
        syncer.close()
    (one,) = found.evaluations
    assert one.loss == pytest.approx(task.evaluate(), abs=1e-6)
    assert one.view.merged_tokens == pytest.approx(600)
    assert (one.view.epoch, one.view.versions, one.view.progress) == (3, (1, 2, 3), pytest.approx(0.6))
    assert str(one) == f"merged 600 tokens (60.0% of the run's target), validation loss {one.loss:.4f} nats/byte"
    assert (found.run_id, found.finished, found.exit_code) == ("run-1", False, 0)


def test_without_a_checkpoint_it_says_so_and_makes_nothing(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match=r"holds no checkpoint to evaluate.*--follow"):
        evaluate_newest(config)
    assert not config.run.path.exists()


def test_a_checkpoint_of_another_model_is_named(config: RunConfig) -> None:
    saved(config, Task(replace(config.task, preset="small"), shard=0))
    with pytest.raises(ConfigError, match=r"tensor .* is .* in the layout"):
        evaluate_newest(config)


def test_no_whole_checkpoint_is_an_error(config: RunConfig) -> None:
    saved(config, Task(config.task, shard=0))
    for path in (config.run.path / "checkpoints").glob("fragment-*"):
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match="no checkpoint is whole"):
        evaluate_newest(config)


# ---- following


class FakeTask:
    """Its one value is its loss; an evaluation waits for the gate."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.gate, self.inside = threading.Event(), threading.Event()
        self.broken = False

    def set(self, value: float) -> None:
        with torch.no_grad():
            self.model.weight.fill_(value)

    def evaluate_values(self, values: dict[str, torch.Tensor]) -> float:
        self.inside.set()
        assert self.gate.wait(LIMIT_S)
        if self.broken:
            raise RuntimeError("no memory")
        return float(values["weight"])


class FakeNode:
    """At each turn, the next thing of a script happens."""

    def __init__(self, script: list[Callable[[], None]]) -> None:
        self.script = script
        self.version = 1
        self.finished = self.outlived = False
        self.holds_values = True

    @property
    def over(self) -> bool:
        return not self.script

    def turn(self, wait_s: float) -> None:
        self.script.pop(0)()

    def view(self) -> View:
        return View(epoch=1, versions=(self.version,), merged_tokens=10.0 * self.version, progress=0.1 * self.version)


def follower(task: FakeTask, node: FakeNode, said: list[Evaluation]) -> Follower:
    return Follower(cast(Task, task), cast(WatcherNode, node), 0.001, said.append)


def run(task: FakeTask, node: FakeNode, stop: threading.Event | None = None) -> list[Evaluation]:
    said: list[Evaluation] = []
    made = follower(task, node, said)
    try:
        made.run(stop or threading.Event())
    finally:
        made.close(LIMIT_S)
    assert said == made.done
    return said


def test_a_copy_is_judged_while_the_values_move_on() -> None:
    task = FakeTask()
    task.set(4.0)

    def adopt(value: float) -> Callable[[], None]:
        def happen() -> None:
            assert task.inside.wait(LIMIT_S)
            task.set(value)
            node.version += 1

        return happen

    node = FakeNode([])
    node.script = [lambda: None, adopt(3.0), adopt(2.0), task.gate.set]
    said = run(task, node)
    assert said[0].loss == 4.0  # not 2.0, though the evaluation ended after two adoptions
    assert said[-1].loss == 2.0  # what is there at the end is judged, too
    assert [each.view.versions for each in said] == [(1,), (3,)]
    assert said[-1].view.merged_tokens == 30.0


def test_what_has_not_moved_is_not_judged_again() -> None:
    task = FakeTask()
    task.set(1.0)
    task.gate.set()
    assert len(run(task, FakeNode([lambda: None] * 50))) == 1


def test_without_values_there_is_nothing_to_judge() -> None:
    node = FakeNode([lambda: None] * 3)
    node.holds_values = False
    assert run(FakeTask(), node) == []


def test_a_failure_of_the_evaluation_is_raised() -> None:
    task = FakeTask()
    task.broken = True
    task.gate.set()
    with pytest.raises(RuntimeError, match="no memory"):
        run(task, FakeNode([lambda: None] * 3))


def test_asked_to_leave_it_leaves_at_once() -> None:
    task, stop = FakeTask(), threading.Event()
    node = FakeNode([lambda: None, stop.set, lambda: None])
    made = follower(task, node, [])
    made.run(stop)
    assert len(node.script) == 1
    task.gate.set()
    made.close(LIMIT_S)


def test_json_holds_what_programs_read() -> None:
    view = View(epoch=1, versions=(4, 5), merged_tokens=12.5, progress=0.0)
    ruined = Evaluation(at_s=1.23456, view=view, loss=math.nan)
    found = Found(run_id="r", evaluations=(ruined,), finished=True, reason="the target is reached")
    again: dict[str, Any] = json.loads(json.dumps(found.to_obj(), allow_nan=False))
    assert (again["loss"], again["finished"], again["evaluations"][0]["versions"]) == (None, True, [4, 5])
    assert "target" not in str(ruined)
