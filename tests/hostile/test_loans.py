"""Members that abuse loans: they ask for ever, lend garbage, offer what nobody asked for, and claim sizes.

Nothing is fetched that was not asked for, one loan is under way at most, and who is lent garbage starts cold.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.hostile.enemy import Enemy
from tests.hostile.scene import EVE, Scene
from tests.node.test_loopback import node_of
from zdiloco.core import messages as w
from zdiloco.core.borrowing import BorrowState
from zdiloco.core.loans import MOST_ASKED
from zdiloco.node import learner_loans
from zdiloco.node.sockets import Road
from zdiloco.units import MemberKey, Stamp
from zdiloco.wire.encoding import decode
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit, make_body

pytestmark = [pytest.mark.net]


@pytest.fixture
def scene(run_of: Any, zctx: Any) -> Any:
    """One honest learner; whoever joins wants inner state."""
    made = Scene(run_of(learner={"warm_start": "peer"}), zctx, 1)
    yield made
    for enemy in made.enemies:
        enemy.close()


def member(scene: Scene, key: MemberKey = EVE, steps: int = 0) -> tuple[Enemy, Stamp]:
    """An enemy that was welcomed, and claims so many steps; the stamp is one of fragment 0."""
    machine, enemy = scene.syncer.machine, scene.enemy(key)
    enemy.say(w.Hello(
        name=key.name, incarnation=key.incarnation, layout_digest=machine.layout_digest, run_id=machine.run_id
    ))  # fmt: skip
    welcome = enemy.hear(w.Welcome)
    for step in (0, steps) if steps else ():
        enemy.say(w.Report(step=step, trained_tokens=4, unmerged_tokens=0, dropped_tokens=0))
        scene.run.until(lambda step=step: machine.fleet.find(key).step >= step, "its report")
    return enemy, Stamp(welcome.epoch, 0)


def test_a_member_that_asks_for_ever_is_given_so_much_and_no_more(scene: Scene) -> None:
    """P-16."""
    enemy, stamp = member(scene)
    kind = _kind(scene)
    fragments = len(scene.syncer.machine.desk.fragments)
    for turn in range(600):
        enemy.say(w.Borrow(fragment=turn % 2, kind=kind, stamp=stamp), w.Borrow(fragment=511, kind="x", stamp=stamp))
        assert scene.syncer.transfers.inbox.reserved_bytes <= 2**20
    loans = scene.syncer.machine.loans
    scene.run.until(lambda: loans.counts["refused"] >= 600, "its questions are answered")
    assert loans.number <= (MOST_ASKED + 1) * fragments, "the honest one asked too"
    assert node_of(scene.trainers[0]).counts.get("lent", 0) <= MOST_ASKED * fragments
    enemy.say(w.Goodbye(reason="", trained_tokens=0, left_tokens=0, dropped_tokens=0))
    scene.run.until(lambda: loans.carried is None, "what it was lent is let go")
    assert not [name for name in scene.syncer.transfers.outbox._held if name.startswith("l/")]
    scene.end()


def test_offers_that_nobody_asked_for_are_refused_and_nothing_is_fetched(scene: Scene) -> None:
    """P-16."""
    enemy, stamp = member(scene)
    reserved = scene.syncer.transfers.inbox.reserved_bytes
    for number in range(300):
        for nbytes in (100, 2**53):
            body = w.Body(transfer=f"l/{number}", nbytes=nbytes, chunk_bytes=1024, digest=1)
            enemy.say(w.Loan(fragment=number % 3, number=number, kind="x", stamp=stamp, codec="fp32", body=body))
    loans = scene.syncer.machine.loans
    scene.run.until(lambda: loans.counts["unasked"] == 600, "all of them are refused")
    assert enemy.hear(w.LoanOver).reason == "nobody has asked for it"
    assert not [key for key, _ in scene.syncer.transfers.inbox._entries if key == EVE]
    assert scene.syncer.transfers.inbox.reserved_bytes <= reserved + 2**16
    scene.end()


def _kind(scene: Scene) -> str:
    memory = node_of(scene.trainers[0])._acts.loans._inner.now_look()
    assert memory is not None
    return memory.kind


class BadLender(threading.Thread):
    """Claims more steps than anybody, and lends what `spoil` makes of a sound state; it serves what it offers."""

    def __init__(self, scene: Scene, spoil: Callable[[w.Lend], tuple[w.Body, bytes]]) -> None:
        super().__init__(name="bad-lender", daemon=True)
        self.enemy, self.stamp = member(scene, steps=10**6)
        self.spoil, self.over, self.lent = spoil, threading.Event(), 0
        self.outbox = Outbox()
        self.start()

    def run(self) -> None:
        socket = self.enemy.sockets[Road.CONTROL]
        while not self.over.is_set():
            self.enemy.say(w.Heartbeat(epoch=self.stamp.epoch))
            message = decode(socket.recv()) if socket.poll(20) else None
            if isinstance(message, w.Lend):
                self.lend(message)
            elif isinstance(message, Credit) and message.transfer in self.outbox:
                for out in self.outbox.on_credit("syncer", message):
                    self.enemy.chunk(out.transfer, out.index, out.checksum, bytes(out.view))

    def lend(self, lend: w.Lend) -> None:
        self.lent += 1
        body, payload = self.spoil(lend)
        if payload and body.transfer not in self.outbox:
            self.outbox.add(body.transfer, payload, 1024)
        self.enemy.say(w.Loan(
            fragment=lend.fragment, number=lend.number, kind=lend.kind, stamp=self.stamp, codec="fp32", body=body
        ))  # fmt: skip


def spoiled(scene: Scene, how: str) -> Callable[[w.Lend], tuple[w.Body, bytes]]:
    inner = node_of(scene.trainers[0])._acts.loans._inner

    def spoil(lend: w.Lend) -> tuple[w.Body, bytes]:
        name, nbytes = f"l/{lend.number}", inner.nbytes(lend.fragment, "fp32")
        numel = scene.syncer.body.layout.numels[lend.fragment]
        tensors = len(scene.syncer.body.layout.fragments[lend.fragment].tensors)
        steps = torch.full((tensors,), 0.0 if how == "steps" else 50.0, dtype=torch.float64)
        moments = torch.full((2, numel), {"nan": float("nan"), "negative": -1.0, "huge": 0.0}.get(how, 0.5))
        if how == "huge":
            moments[0] = 1e30
        payload = steps.numpy().tobytes() + moments.numpy().tobytes()
        assert len(payload) == nbytes
        if how == "claims":
            return w.Body(transfer=name, nbytes=2**50, chunk_bytes=1024, digest=1), b""
        payload = payload[:-4] if how == "short" else payload
        return make_body(name, payload, 1024), b"" if how == "silent" else payload

    return spoil


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nan", "negative", "huge", "steps", "short", "claims", "silent"])
def test_a_newcomer_takes_no_garbage_whoever_lends_it(
    scene: Scene, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M-8: The liar has made most steps, so it is asked first; then the honest one is, and what it lends is taken."""
    monkeypatch.setattr(learner_loans, "CODEC", "fp32")
    monkeypatch.setattr("zdiloco.core.loans.CARRY_S", 4.0)  # an honest loan may take a second
    liar = BadLender(scene, spoiled(scene, how))
    try:
        scene.run.until(lambda: scene.trainers[0].steps > 20, "steps of the honest one")
        scene.trainers.append(scene.run.join("new"))
        scene.run.until(lambda: scene.trainers[1].node is not None, "it joins")
        borrowing = node_of(scene.trainers[1]).machine.borrowing
        scene.run.until(lambda: borrowing.state is BorrowState.OVER, "its borrowing is over")
        assert liar.lent >= 1
        assert borrowing.taken == 2
        for state in scene.trainers[1].optimizer.state.values():
            assert torch.isfinite(state["exp_avg"]).all()
            assert float(state["exp_avg"].abs().max()) < 100
            assert float(state["exp_avg_sq"].min()) >= 0
            assert float(state["step"]) >= 1
    finally:
        liar.over.set()
        liar.join()
        liar.enemy.close()
    scene.end()
