"""Inner state from a live learner, over loopback sockets: what arrives, what stays cold, and what is refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from zdiloco.core.borrowing import BorrowState
from zdiloco.node import learner_loans
from zdiloco.tensor.inner import InnerState, InnerValues

pytestmark = [pytest.mark.net]
MakeRun = Callable[..., Any]
PEER = {"learner": {"warm_start": "peer"}}


class Seen:
    """Copies of everything that is copied and loaded, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copied: list[InnerValues] = []
        self.loaded: list[InnerValues] = []
        copy, load = InnerState.now_copy, InnerState.now_load

        def now_copy(inner: InnerState, fragment: int) -> InnerValues | None:
            values = copy(inner, fragment)
            if values is not None:
                self.copied.append(_clone(values))
            return values

        def now_load(inner: InnerState, values: InnerValues) -> InnerValues:
            self.loaded.append(_clone(values))
            return load(inner, values)

        monkeypatch.setattr(InnerState, "now_copy", now_copy)
        monkeypatch.setattr(InnerState, "now_load", now_load)


def _clone(values: InnerValues) -> InnerValues:
    return InnerValues(values.fragment, [moment.clone() for moment in values.moments], values.scalars.clone())


def borrowed(run: Any, newcomer: Any) -> Any:
    """Wait until a newcomer has nothing more to ask for."""
    run.until(lambda: newcomer.node is not None, "it joins")
    borrowing = newcomer.node.machine.borrowing
    run.until(lambda: borrowing.state is BorrowState.OVER, "its borrowing is over")
    steps = newcomer.steps
    run.until(lambda: newcomer.steps > steps + 1, "the boundary at which it took the last loan is over")
    return borrowing


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_a_newcomer_takes_the_moments_of_a_live_learner(
    run_of: MakeRun, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    monkeypatch.setattr(learner_loans, "CODEC", codec)
    seen = Seen(monkeypatch)
    run = run_of(**PEER)
    run.start_syncer()
    first = run.join("a")
    run.until(lambda: first.steps > 20, "steps of the first")
    second = run.join("b")
    borrowing = borrowed(run, second)
    assert (borrowing.taken, borrowing.wanted) == (2, 2)  # the buffers have no inner state
    assert [values.fragment for values in seen.loaded] == [0, 1]
    for sent, taken in zip(seen.copied, seen.loaded, strict=True):
        assert torch.equal(sent.scalars, taken.scalars)
        assert float(taken.scalars.min()) > 10, "the steps of the first"
        for before, after in zip(sent.moments, taken.moments, strict=True):
            assert torch.equal(after, before if codec == "fp32" else before.bfloat16().float())
    steps = [float(state["step"]) for state in second.optimizer.state.values()]
    assert min(steps) > 10, "its own optimizer counts on from there"
    run.until(lambda: run.syncer.machine.loans.carried is None, "the bytes are let go")
    status = run.syncer.machine.loans.status()
    assert (status["used_bytes"], status["carried"], status["failed"], status["unasked"]) == (0, 2, 0, 0)
    assert not [name for name in run.syncer.transfers.outbox._held if name.startswith("l/")]


def test_another_optimizer_lends_nothing_and_the_newcomer_starts_cold(run_of: MakeRun) -> None:
    run = run_of(**PEER)
    run.start_syncer()
    first = run.join("a", optimizer=partial(torch.optim.SGD, momentum=0.9))
    run.until(lambda: first.steps > 20, "steps of the first")
    second = run.join("b")
    borrowing = borrowed(run, second)
    assert borrowing.taken == 0
    assert "its inner optimizer is another one" in borrowing.why
    assert max(float(state["step"]) for state in second.optimizer.state.values()) <= second.steps + 1


class Restored(torch.optim.AdamW):
    """One that its owner has given a state before the learner was made."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        self.step()
        self.zero_grad()


def test_who_has_an_inner_state_of_its_own_borrows_none(run_of: MakeRun) -> None:
    run = run_of(**PEER)
    run.start_syncer()
    first = run.join("a")
    run.until(lambda: first.steps > 20, "steps of the first")
    second = run.join("b", optimizer=Restored)
    assert borrowed(run, second).wanted == 0


def test_a_saved_state_goes_before_a_peer_s(run_of: MakeRun) -> None:
    run = run_of(learner={"warm_start": "peer", "save_every_s": 0.05})
    run.start_syncer()
    first, second = run.join("a"), run.join("b")
    run.until(lambda: min(first.steps, second.steps) > 20, "steps of both")
    second.stop()
    again = run.join("b")
    assert borrowed(run, again).wanted == 0
    assert again.node.resumed.saved_step > 10
    assert min(float(state["step"]) for state in again.optimizer.state.values()) > 10
