"""What a user's own script can get wrong, and who is turned away: said in the script, without harm to the run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.node.conftest import tiny_model
from zdiloco.core.machine import Serve
from zdiloco.errors import ConfigError, LinkError
from zdiloco.node import difference as differences
from zdiloco.node.difference import difference
from zdiloco.node.hooks import Hooks
from zdiloco.node.learner import LearnerNode
from zdiloco.node.learner_body import layout_for
from zdiloco.node.params import NetParams, whole_tokens
from zdiloco.node.syncer_acts import SyncerActs

pytestmark = pytest.mark.net
MakeRun = Callable[..., Any]


def attach(run: Any, model: nn.Module, name: str = "x", **options: Any) -> LearnerNode:
    return LearnerNode(model, torch.optim.SGD(model.parameters(), lr=0.1), run.config, name=name, **options)


@pytest.mark.parametrize("tokens", [-1, 2.5, "4", None, float("nan"), 2**31 + 1, torch.zeros(2)])
def test_tokens_that_cannot_be(tokens: object) -> None:
    with pytest.raises(ConfigError, match=r"^step\(tokens=.*: allowed is a whole number, 0 to 2147483648"):
        whole_tokens(tokens, 2**31)


@pytest.mark.parametrize("tokens", [0, 7, 2**31, torch.tensor(7)])
def test_tokens_that_can_be(tokens: Any) -> None:
    assert whole_tokens(tokens, 2**31) == int(tokens)
    assert type(whole_tokens(tokens, 2**31)) is int


def test_steps_without_tokens_are_contributed_when_there_are_some(run_of: MakeRun) -> None:
    """Nor does a wrong number harm the learner: the next step goes on."""
    run = run_of()
    syncer = run.start_syncer()
    with attach(run, tiny_model(0)) as node:
        for _ in range(60):
            node.step(0)
        with pytest.raises(ConfigError, match="tokens=-3"):
            node.step(-3)
        assert (node.machine.step, node.machine.trained_tokens) == (60, 0)
        run.until(lambda: node.step(0) or node.machine.counts.get("declined", 0) > 0, "a call, and a decline")
        assert syncer.machine.rounds == 0
        run.until(lambda: node.step(4) or syncer.machine.rounds > 4, "rounds")
    assert not syncer.machine.intakes.refused


def test_initial_values_that_are_no_numbers_do_not_begin_a_run(run_of: MakeRun) -> None:
    run = run_of()
    syncer = run.start_syncer()
    model = tiny_model(0)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(ConfigError, match=r"what you donate cannot be used: .*not finite"):
        attach(run, model)
    run.join("good")
    run.until(lambda: syncer.machine.rounds >= 1, "a round of the next one")


def test_a_learner_that_restores_can_be_asked_to_leave(run_of: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Welcome, but the published values never come."""
    run = run_of()
    syncer = run.start_syncer()
    first = run.join("first")
    run.until(lambda: syncer.machine.rounds >= 1, "a round")
    first.stop()
    asked: list[object] = []
    really = SyncerActs.do

    def do(acts: SyncerActs, action: Any) -> None:
        if isinstance(action, Serve):
            asked.append(action)
        else:
            really(acts, action)

    monkeypatch.setattr(SyncerActs, "do", do)
    with pytest.raises(LinkError, match="the waiting was ended"):
        attach(run, tiny_model(1), hooks=Hooks(abandon=lambda: bool(asked)))


def test_without_an_answer_the_digests_must_do(
    free_ports: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "ASK_S", 0.1)
    said = difference(NetParams(port=free_ports(4)), layout_for(tiny_model(0), 0, "balanced"), "a")
    assert said.startswith(" (which tensor differs first is not known: no syncer answers")


def test_where_two_models_differ_is_said(run_of: MakeRun) -> None:
    run = run_of()
    run.start_syncer()
    first = run.join("first")
    run.until(first.joined.is_set, "the join")
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    with pytest.raises(ConfigError, match=r"first difference: tensor '3\.bias' float32 \[4\] .*\[8\] .*in the run$"):
        attach(run, model)
