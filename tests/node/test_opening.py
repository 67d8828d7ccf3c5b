"""A node that cannot be opened leaves nothing open: no socket, no context, no pipe, no thread."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import zmq

from tests.node.conftest import tiny_model
from zdiloco.errors import ConfigError
from zdiloco.node import learner, query, syncer
from zdiloco.node.learner import LearnerNode
from zdiloco.node.params import NetParams
from zdiloco.node.query import Query
from zdiloco.node.syncer import SyncerNode

pytestmark = pytest.mark.net
MakeRun = Callable[..., Any]


class Watched(zmq.Context[Any]):
    """A context that remembers its sockets and itself."""

    made: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def socket(self, *args: Any, **options: Any) -> Any:
        self.made.append(super().socket(*args, **options))
        return self.made[-1]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every context and socket that is made from here on."""
    Watched.made = []
    monkeypatch.setattr(zmq, "Context", Watched)
    return Watched.made


def explode(*args: Any, **options: Any) -> Any:
    raise RuntimeError("no room")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_learner(run_of: MakeRun, opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run, model = run_of(), tiny_model(0)
    monkeypatch.setattr(learner, "Transfers", explode)
    before = descriptors()
    with pytest.raises(RuntimeError, match="no room"):
        LearnerNode(model, torch.optim.SGD(model.parameters(), lr=0.1), run.config, name="a")
    assert len(opened) == 5, "a context, three roads, and what is told of a handshake"
    assert all(each.closed for each in opened)
    assert descriptors() == before


@pytest.mark.parametrize("part", ["Transfers", "SyncerMachine", "SyncerActs", "Journal"])
def test_a_syncer(run_of: MakeRun, opened: list[Any], monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    run = run_of()
    with monkeypatch.context() as patch:
        patch.setattr(syncer, part, explode)
        before = descriptors()
        with pytest.raises(RuntimeError, match="no room"):
            SyncerNode(run.config)
        assert descriptors() == before
    assert len(opened) == 9, "a context, four roads, and what is told of the connections of each"
    assert all(each.closed for each in opened)
    SyncerNode(run.config).close()  # ports and folder are free


@pytest.mark.parametrize("why", ["a host that is none", "no room"])
def test_a_query(opened: list[Any], monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    before = descriptors()
    if why == "no room":
        monkeypatch.setattr(query, "Transfers", explode)
        with pytest.raises(RuntimeError, match=why):
            Query(NetParams())
        assert len(opened) == 4
    else:
        with pytest.raises(ConfigError, match=r"net\.connect"):
            Query(NetParams(connect=why))
    assert all(each.closed for each in opened)
    assert descriptors() == before


@pytest.mark.parametrize(("robust", "quorum", "said"), [("trim", 1, True), ("trim", 3, False), ("none", 1, False)])
def test_a_syncer_says_when_a_robust_merge_may_be_none(
    run_of: MakeRun, caplog: pytest.LogCaptureFixture, robust: str, quorum: int, said: bool
) -> None:
    run = run_of(merge={"robust": robust}, sync={"min_quorum": quorum})
    SyncerNode(run.config).close()
    assert ("merged as if nobody were hostile" in caplog.text) == said
