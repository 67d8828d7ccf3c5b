"""What members bring back of a syncer's words is believed with the proof of its key, and else it is as if unsaid."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import Run
from tests.node.test_keys import Folder
from zdiloco.core.messages import Handback, Heartbeat, Hello
from zdiloco.core.start import SyncerPhase
from zdiloco.node.keys import load_pair
from zdiloco.node.proofs import Proofs
from zdiloco.units import NO_EPOCH, Epoch, MemberKey, Merged, Stamp

MakeRun = Callable[..., Run]
KEY, OLD, NEW = MemberKey("a", 7), Epoch(3, 33), Epoch(4, 44)
MAP = (Merged("b", 2, 5, 50, 500), Merged("a", 1, 3, 30, 300))


@pytest.fixture
def proofs() -> Proofs:
    return Proofs(b"a secret of forty characters, let us say")


def test_a_proof_is_of_everything_that_it_is_under(proofs: Proofs) -> None:
    right = ("run-1", 2, Stamp(OLD, 9), "bf16", b"values", MAP)
    proof = proofs.of_state(*right)
    assert proofs.of_state(*right[:5], MAP[::-1]) == proof, "a map has no order"
    others: list[tuple[Any, ...]] = [
        ("run-2", *right[1:]), (*right[:1], 3, *right[2:]), (*right[:2], Stamp(OLD, 10), *right[3:]),
        (*right[:2], Stamp(NEW, 9), *right[3:]), (*right[:3], "fp32", *right[4:]), (*right[:4], b"value", MAP),
        (*right[:5], MAP[:1]), (*right[:5], (MAP[0], MAP[1]._replace(tokens=301))),
    ]  # fmt: skip
    assert proof not in {proofs.of_state(*other) for other in others}
    assert Proofs(b"another secret").of_state(*right) != proof
    assert len({proofs.of_epoch("run-1", OLD), proofs.of_epoch("run-1", NEW), proofs.of_epoch("run-2", OLD)}) == 3


def test_an_epoch_above_ones_own_wants_a_proof(proofs: Proofs, caplog: pytest.LogCaptureFixture) -> None:
    good = proofs.of_epoch("run-1", NEW)
    for message in (Heartbeat(epoch=NEW), Hello(name="a", incarnation=7, run_id="run-1", epoch=NEW)):
        assert proofs.believed("run-1", OLD, KEY, replace(message, proof=good)).epoch == NEW
        assert proofs.believed("run-1", NEW, KEY, message).epoch == NEW, "its own needs none"
        for bad in ("", good[:-1], proofs.of_epoch("run-2", NEW), proofs.of_epoch("run-1", OLD), "é"):
            assert proofs.believed("run-1", OLD, KEY, replace(message, proof=bad)).epoch == NO_EPOCH
    assert caplog.text.count("what a claims is not believed") == 1


def test_states_are_believed_up_to_the_epoch_that_is_proved(proofs: Proofs) -> None:
    hello = Hello(name="a", incarnation=7, run_id="run-1", epoch=OLD, stamps=(Stamp(OLD, 1), Stamp(NEW, 1)))
    proved = replace(hello, proof=proofs.of_epoch("run-1", OLD))
    assert proofs.believed("run-1", NO_EPOCH, KEY, proved).stamps == ()
    sound = replace(proved, stamps=hello.stamps[:1])
    assert proofs.believed("run-1", NO_EPOCH, KEY, sound) == sound
    assert proofs.believed("run-1", NO_EPOCH, KEY, replace(sound, proof="")).stamps == ()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "keys", "a", "b")


def lives_on(run: Run) -> None:
    """Train, with nothing of it saved, and end the syncer as a SIGKILL would."""
    first = run.start_syncer()
    trainers = [run.join("a"), run.join("b")]
    run.until(lambda: first.machine.rounds >= 10 and all(t.steps > 0 for t in trainers), "ten rounds, and both join")
    first._fail(RuntimeError("killed by the test"))
    assert run._thread is not None
    run._thread.join(60.0)
    run.syncer = None


def unsaved(run_of: MakeRun, folder: Folder, delta_codec: str = "4bit") -> Run:
    return run_of(
        sync={"checkpoint_every_s": 3600.0, "recover_wait_s": 2.0},
        merge={"delta_codec": delta_codec},
        net={"keys": str(folder.place), "listen": "127.0.0.1"},
    )


@pytest.mark.net
@pytest.mark.parametrize("delta_codec", ["none", "4bit"])
def test_what_the_fleet_hands_back_is_proved(run_of: MakeRun, folder: Folder, delta_codec: str) -> None:
    """The proof fits what a learner has put together itself: the value of deltas, the map of records."""
    run = unsaved(run_of, folder, delta_codec)
    lives_on(run)
    held = [
        max(t.node.machine.duties[index].progress.seen.version for t in run.trainers if t.node) for index in range(3)
    ]
    assert min(held) > 0
    second = run.start_syncer()
    run.until(lambda: second.machine.rounds >= 6, "six rounds of the successor")
    assert all(state.stamp.version >= held[index] for index, state in second.body.states.items())
    assert second.machine.epoch.counter == 2


@pytest.mark.net
def test_what_is_handed_back_without_its_proof_is_not_taken(
    run_of: MakeRun, folder: Folder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that alter the map of what they hand back: the successor goes on from its disk, and they with it."""
    sound = Handback.__post_init__

    def forged(self: Handback) -> None:
        sound(self)
        object.__setattr__(self, "proof", "0" * 64)

    run = unsaved(run_of, folder)
    lives_on(run)
    monkeypatch.setattr(Handback, "__post_init__", forged)
    with caplog.at_level(logging.WARNING):
        second = run.start_syncer()
        run.until(lambda: second.machine.phase is SyncerPhase.RUNNING, "the successor begins")
        run.until(lambda: second.machine.rounds >= 6, "six rounds of the successor")
    assert "not what the key of this syncer has published" in caplog.text
    assert second.machine.epoch.counter == 2, "the disk's next one"


@pytest.mark.net
def test_a_false_epoch_stops_no_syncer(run_of: MakeRun, folder: Folder) -> None:
    run = run_of(net={"keys": str(folder.place)})
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: syncer.machine.rounds >= 2, "two rounds")
    assert trainer.node is not None
    rounds = syncer.machine.rounds
    trainer.node._acts._proved = (higher := Epoch(syncer.machine.epoch.counter + 5, 1)), "0" * 64
    trainer.node.machine.epoch = higher
    run.until(lambda: len(syncer._proofs._told) == 1 if syncer._proofs else False, "its heartbeat says so")
    run.join("b")
    run.until(lambda: syncer.machine.rounds >= rounds + 3, "three more rounds")
    assert syncer.failure is None
    assert load_pair(folder.place, "syncer").secret not in repr(syncer._proofs).encode()
