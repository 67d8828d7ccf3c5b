"""The ready-made loop: it stops when told, and notes every step."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from zdiloco.demo.learner_log import LearnerLog, read_notes
from zdiloco.demo.trainer import Loop, TrainerParams
from zdiloco.errors import ConfigError
from zdiloco.train.data import ShardCursor
from zdiloco.train.schedule import InnerSchedule


class FakeTask:
    """Takes no time; walks real data."""

    def __init__(self, seed: int = 0) -> None:
        import numpy as np

        shard = np.arange(1000, dtype=np.uint8)
        self.cursor = ShardCursor(shard, index=0, batch_size=2, context=8, seed=seed)
        self.schedule = InnerSchedule(lr=1.0, warmup_fraction=0.5, rejoin_warmup_steps=0)
        self.rates: list[float] = []

    def train_step(self, rate: float) -> tuple[float, int]:
        self.cursor.next_batch()
        self.rates.append(rate)
        return 2.0, 16


class FakeNode:
    """Is finished after so many steps."""

    traffic = (3, 4)

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.tokens: list[int] = []

    @property
    def finished(self) -> bool:
        return self.left <= 0

    @property
    def progress(self) -> float:
        return len(self.tokens) / 10

    @property
    def steps_since_join(self) -> int:
        return len(self.tokens)

    def step(self, tokens: int) -> None:
        self.left -= 1
        self.tokens.append(tokens)


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[LearnerLog]:
    with LearnerLog(tmp_path / "a.jsonl", {"name": "a", "incarnation": "1"}) as log:
        yield log


def loop_of(task: FakeTask, node: FakeNode, notes: LearnerLog, slowdown: float = 1.0) -> Loop:
    return Loop(task, node, notes, slowdown)


def test_every_step_is_told_to_the_node_and_noted(notes: LearnerLog, tmp_path: Path) -> None:
    task, node = FakeTask(), FakeNode(7)
    loop_of(task, node, notes).run(threading.Event())
    assert node.tokens == [16] * 7
    assert task.rates[:3] == pytest.approx([0.1, 0.28, 0.46])
    found = read_notes(tmp_path / "a.jsonl")
    assert (found.steps, found.tokens, found.bytes_up, found.bytes_down) == (7, 7 * 16, 3, 4)
    assert all(call <= step for call, step in zip(found.call_s, found.step_s, strict=True))


def test_a_step_that_is_done_counts_though_the_end_was_asked_for(notes: LearnerLog, tmp_path: Path) -> None:
    stop = threading.Event()
    task, node = FakeTask(), FakeNode(100)
    step = task.train_step

    def last_step(rate: float) -> tuple[float, int]:
        stop.set()
        return step(rate)

    task.train_step = last_step
    loop_of(task, node, notes, slowdown=1000.0).run(stop)
    assert node.tokens == [16]


def test_a_step_during_which_the_run_has_ended_counts_nowhere(notes: LearnerLog, tmp_path: Path) -> None:
    task, node = FakeTask(), FakeNode(3)
    step = task.train_step

    def overtaken(rate: float) -> tuple[float, int]:
        node.left -= len(task.rates) == 2  # the third step's last moment
        return step(rate)

    task.train_step = overtaken
    loop_of(task, node, notes).run(threading.Event())
    assert (node.tokens, len(task.rates)) == ([16, 16], 3)
    assert read_notes(tmp_path / "a.jsonl").steps == 2


def test_slowness_follows_the_shortest_of_the_last_steps(notes: LearnerLog, tmp_path: Path) -> None:
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    loop = loop_of(FakeTask(), FakeNode(0), notes, slowdown=3.0)
    for computed_s in (0.5, 0.2, 0.9):
        loop._seem_slow(computed_s, Stop())
    assert waits == pytest.approx([1.0, 0.4, 0.4])


def test_the_shard_follows_from_the_name_and_stays() -> None:
    assert TrainerParams(name="a", shard=2).shard_of(3) == 2
    by_name = {name: TrainerParams(name=name).shard_of(5) for name in ("us-east-0", "us-east-1", "eu-0")}
    assert by_name == {"us-east-0": 3, "us-east-1": 0, "eu-0": 0}


@pytest.mark.parametrize("wrong", [{"name": "a/b"}, {"name": "a", "slowdown": 0.5}, {"name": ""}])
def test_impossible_learners_are_refused(wrong: dict[str, str | float]) -> None:
    with pytest.raises(ConfigError, match="--"):
        TrainerParams(**wrong)
