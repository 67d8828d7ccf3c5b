"""Ends of runs over loopback: a syncer that never returns, a target that is raised, clocks that are set meanwhile."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.node.conftest import LIMIT_S, Run
from tests.node.test_loopback import assert_balanced, node_of
from zdiloco.errors import LinkError

pytestmark = [pytest.mark.net, pytest.mark.slow]
MakeRun = Callable[..., Run]
HOUR_S = 3600.0


def finish(run: Run, *names: str) -> int:
    """Begin a run, or go on with it, until its target is reached; the version that every fragment has at the end."""
    syncer = run.start_syncer()
    run.trainers = [run.join(name) for name in names]
    run.until(lambda: all(t.node is not None and t.node.finished for t in run.trainers), "the target")
    for trainer in run.trainers:
        trainer.stop()
        assert (trainer.error, node_of(trainer).exit_code) == (None, 0)
    run.stop_syncer()
    assert "the target is reached" in syncer.reason
    assert_balanced(run.config.run.path, syncer)
    return min(state.stamp.version for state in syncer.body.states.values())


def test_what_a_learner_that_gives_up_leaves_begins_another_run(run_of: MakeRun, tmp_path: Path) -> None:
    """The syncer never returns: the `with` block ends with an error, and a file holds what the model does."""
    run = run_of(learner={"give_up_after_s": 1.0, "silent_after_s": 0.3})
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: syncer.machine.rounds >= 2, "two rounds")
    run.stop_syncer()
    trainer.thread.join(LIMIT_S)
    error, trainer.error = trainer.error, None
    assert isinstance(error, LinkError)
    assert "learner.give_up_after_s is 1" in str(error)
    assert node_of(trainer).exit_code == 3
    assert_balanced(run.config.run.path, syncer)
    path = run.config.run.path / "learners" / "a-last.safetensors"
    left = safetensors.torch.load_file(path)
    for name, value in trainer.model.named_parameters():
        assert torch.equal(left[name], value), name
    following = run_of(run={"dir": str(tmp_path / "next"), "init": str(path)}, sync={"sync_period": 1_000_000})
    syncer, next_one = following.start_syncer(), following.join("b")
    following.until(next_one.joined.is_set, "the join")
    for fragment in node_of(next_one).layout.fragments:
        wanted = torch.cat([left[tensor.name].reshape(-1).float() for tensor in fragment.tensors])
        assert torch.equal(syncer.body.states[fragment.index].theta, wanted)


def test_a_finished_run_goes_on_under_a_raised_target(run_of: MakeRun) -> None:
    """D-63: everything is stopped and started again: to the old target nothing is added, to a higher one it is."""
    run = run_of(run={"target_tokens": 400})
    first = finish(run, "a", "b")
    run.config = replace(run.config, run=replace(run.config.run, target_tokens=1200))
    assert finish(run, "a", "b") > first + 1


def test_a_wall_clock_that_is_set_changes_nothing(run_of: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-69: at each look the wall clock is an hour before or behind where it was; the run does not care."""
    looks, clock = count(), time.time
    monkeypatch.setattr(time, "time", lambda: clock() + (HOUR_S if next(looks) % 2 else -HOUR_S))
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * time.time()))
    finish(run_of(run={"target_tokens": 400}), "a", "b")
    assert next(looks) > 0, "it was looked at: for the journal's header"
