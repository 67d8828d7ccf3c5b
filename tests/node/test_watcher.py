"""Who watches, over real sockets: it holds what is published, counts for nothing, and outlives everybody."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.node.conftest import LIMIT_S, Run, tiny_model
from tests.node.test_loopback import crash
from zdiloco.core.messages import Farewell
from zdiloco.errors import ConfigError, LinkError, MachineError
from zdiloco.node.hooks import Hooks
from zdiloco.node.query import Query
from zdiloco.node.watcher import WatcherNode

pytestmark = pytest.mark.net
MakeRun = Callable[..., Run]


class Eye:
    """A watcher on a thread of its own that looks on and on."""

    def __init__(self, run: Run) -> None:
        self.model = tiny_model(77)
        self.node: WatcherNode | None = None
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self._run = run
        self.thread = threading.Thread(target=self._look, name="eye", daemon=True)
        self.thread.start()

    def _look(self) -> None:
        try:
            hooks = Hooks(abandon=self.stopping.is_set)
            self.node = node = WatcherNode(self.model, self._run.config, name="eye", hooks=hooks)
            while not (node.over or node.outlived or self.stopping.is_set()):
                node.turn(0.05)
            node.close()
        except BaseException as error:
            self.error = error

    def versions(self) -> tuple[int, ...]:
        return self.node.view().versions if self.node else ()

    def epoch(self) -> int:
        return self.node.view().epoch if self.node else 0

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()


@contextmanager
def watching(run: Run) -> Iterator[Eye]:
    eye = Eye(run)
    yield eye
    eye.stop()


def newest_of(run: Run) -> tuple[int, ...]:
    assert run.syncer is not None
    return tuple(state.stamp.version for _, state in sorted(run.syncer.body.states.items()))


def test_it_holds_the_published_bytes_and_counts_for_nothing(run_of: MakeRun) -> None:
    """K = 2: one learner and one that watches are no quorum."""
    run = run_of(sync={"min_quorum": 2})
    syncer = run.start_syncer()
    with watching(run) as eye:
        first = run.join("a")
        run.until(lambda: first.steps > 30, "steps of one learner")
        run.until(lambda: eye.node is not None and eye.node.holds_values, "initial values at the eye")
        assert syncer.machine.rounds == 0
        with Query(run.config.net) as query:
            found = query.ask(10.0)
        assert {each["name"]: each["state"] for each in found["learners"]} == {"a": "live", "eye": "watching"}
        assert found["live"] == 1
        second = run.join("b")
        run.until(lambda: syncer.machine.rounds >= 6, "six rounds")
        for trainer in (first, second):
            trainer.stop()
        run.until(lambda: eye.versions() == newest_of(run), "the newest of every fragment")
        eye.stop()
        node = eye.node
        assert node is not None
        for index, state in syncer.body.states.items():
            values = node._body.fragments[index]
            assert values.reference is not None
            assert torch.equal(node._body.later_reference(values.codec, values.reference), state.value)
            assert torch.equal(node._body._binding.gather(index), values.reference)
            assert all(key.name != "eye" for key in state.map_)
        assert node.view().merged_tokens == pytest.approx(syncer.machine.merged_tokens)
    assert sorted(path.name[0] for path in Path(run.config.run.path, "learners").glob("*.counters")) == ["a", "b"]
    run.until(lambda: all(member.key.name != "eye" for member in syncer.machine.fleet), "no trace of it")


def test_it_outlives_the_syncer_and_the_learners(run_of: MakeRun, caplog: pytest.LogCaptureFixture) -> None:
    """A-19: there before the syncer, said once; then syncer killed, learner gone, new ones of both; the end."""
    run = run_of(run={"target_tokens": 1200}, sync={"recover_wait_s": 1.0})
    with caplog.at_level(logging.INFO), watching(run) as eye:
        waits = "eye waits for the syncer"
        run.until(lambda: waits in caplog.text, "word of waiting")
        assert not eye.stopping.wait(1.2)
        assert caplog.text.count(waits) == 1
        first = run.start_syncer()
        trainer = run.join("a", pace_s=0.01)
        run.until(lambda: sum(eye.versions()) >= 4, "four versions")
        crash(run)
        steps = trainer.steps
        run.until(lambda: trainer.steps > steps + 10, "steps without a syncer")
        second = run.start_syncer()
        run.until(lambda: eye.epoch() == second.machine.epoch.counter > first.machine.epoch.counter, "the new epoch")
        trainer.stop()
        run.join("b", pace_s=0.01)
        eye.thread.join(LIMIT_S)
        assert not eye.thread.is_alive()
    assert eye.error is None
    assert eye.node is not None
    assert (eye.node.reached_target, eye.node.reason, eye.node.exit_code) == (True, "the target is reached", 0)
    assert eye.node.progress >= 1.0
    assert eye.versions() == newest_of(run)


@pytest.mark.slow
def test_a_syncer_that_goes_at_the_very_end_without_a_word_is_outlived(run_of: MakeRun) -> None:
    run = run_of(run={"target_tokens": 2000})
    run.start_syncer()
    with watching(run) as eye:
        trainer = run.join("a")
        run.until(lambda: eye.node is not None, "values at the eye")
        assert eye.node is not None
        machine = eye.node.machine
        deaf = {kind: handler for kind, handler in machine._MESSAGES.items() if kind is not Farewell}
        machine._MESSAGES = deaf
        run.until(lambda: trainer.node is not None and trainer.node.finished, "the end")
        eye.thread.join(LIMIT_S)
        assert not eye.thread.is_alive()
        assert eye.error is None
        assert (machine.farewell, eye.node.outlived or eye.node.finished, eye.node.exit_code) == (None, True, 0)


def test_it_makes_no_steps_and_another_model_is_refused(run_of: MakeRun) -> None:
    run = run_of()
    run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: trainer.joined.is_set(), "the first join")
    other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    with pytest.raises(ConfigError, match="layout"):
        WatcherNode(other, run.config, name="other")
    node = WatcherNode(tiny_model(1), run.config, name="eye")
    with pytest.raises(MachineError, match="makes no steps"):
        node.step(4)
    node.close()


def test_the_waiting_can_be_ended(run_of: MakeRun) -> None:
    with pytest.raises(LinkError, match="waiting was ended"):
        WatcherNode(tiny_model(1), run_of().config, name="eye", hooks=Hooks(abandon=lambda: True))


def test_a_thread_that_dies_is_said(run_of: MakeRun) -> None:
    run = run_of()
    run.start_syncer()
    run.join("a")

    def explode() -> Any:
        raise RuntimeError("a bug")

    with watching(run) as eye:
        run.until(lambda: eye.node is not None, "the eye")
        assert eye.node is not None
        eye.node.wake.post(explode)
        eye.thread.join(LIMIT_S)
    assert isinstance(eye.error, MachineError)
    eye.node.close()
