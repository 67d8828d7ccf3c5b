"""Deltas over real sockets: they arrive, they heal, and at the end everybody holds Theta itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from zdiloco.core.messages import Update
from zdiloco.node.learner_acts import LearnerActs

pytestmark = pytest.mark.net
FOUR_BIT = {"merge": {"delta_codec": "4bit"}, "learner": {"codec": "4bit", "silent_after_s": 1.0}}


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """Every update that a learner takes in, in order."""
    found: list[Update] = []
    receive = LearnerActs._receive

    def look(acts: LearnerActs, action: Any) -> None:
        found.append(action.update)
        receive(acts, action)

    monkeypatch.setitem(LearnerActs._ACTIONS, type_of_receive(), look)
    return found


def type_of_receive() -> type:
    return next(kind for kind in LearnerActs._ACTIONS if kind.__name__ == "Receive")


def test_a_run_with_deltas_ends_with_the_exact_values(run_of: Callable[..., Any], received: list[Update]) -> None:
    run = run_of(run={"target_tokens": 400}, **FOUR_BIT)
    syncer = run.start_syncer()
    trainers = [run.join("a"), run.join("b", pace_s=0.004)]
    run.until(lambda: all(t.node is not None and t.node.finished for t in trainers), "the target")
    for trainer in trainers:
        trainer.stop()
    run.stop_syncer()
    layout = syncer.body.layout
    assert layout is not None
    for trainer in trainers:
        values = dict(trainer.model.named_parameters())
        for fragment in layout.fragments:
            theta = syncer.body.states[fragment.index].theta
            names = [tensor.name for tensor in fragment.tensors if tensor.name in values]
            flat = [values[name].detach().flatten() for name in names]
            assert not flat or torch.equal(torch.cat(flat), theta)
        assert trainer.node.machine.counts.get("misfit", 0) == 0
    buffers = next(f.index for f in layout.fragments if f.is_buffers)
    deltas = [u for u in received if u.base is not None]
    assert deltas
    assert all((u.full, u.codec) == (False, "4bit") and u.fragment != buffers for u in deltas)
    assert all(u.codec in ("bf16", "fp32") for u in received if u.base is None)


def test_a_spoiled_reference_is_noticed_and_heals(run_of: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    run = run_of(**FOUR_BIT)
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: syncer.machine.rounds >= 4, "four rounds")
    values, machine = trainer.node._body.fragments[0], trainer.node.machine
    spoiled: list[torch.Tensor] = []

    def misfit() -> bool:
        if machine.counts.get("misfit", 0):
            return True
        if not any(values.reference is each for each in spoiled):  # or another, prepared before, has taken its place
            spoiled.append(values.reference)
            spoiled[-1][3] += 1.0  # a bit of its memory tips over
        return False

    run.until(misfit, "a misfit")
    seen = machine.duties[0].progress.seen
    run.until(lambda: machine.duties[0].progress.seen > seen, "an adoption of the whole value")
    rounds, misfits = syncer.machine.rounds, machine.counts["misfit"]
    run.until(lambda: syncer.machine.rounds >= rounds + 4, "rounds after that")
    trainer.stop()
    run.stop_syncer()
    assert machine.counts["misfit"] == misfits, "one pull is enough"
    held, at = trainer.node._body.later_reference(values.codec, values.reference), machine.duties[0].progress.seen
    state = syncer.body.states[0]
    assert at != state.stamp or torch.equal(held, state.value)
    warnings = [r for r in caplog.records if "does not fit" in r.getMessage() and r.levelname == "WARNING"]
    assert len(warnings) == 1
