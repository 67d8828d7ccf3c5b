"""Syncer and learners over real sockets, in one process: they train, agree to the bit, survive; the books balance."""

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import zmq

from tests.node.conftest import LIMIT_S
from zdiloco.core import messages
from zdiloco.core.ledger import settle
from zdiloco.errors import ConfigError, LinkError
from zdiloco.node.learner import LearnerNode
from zdiloco.node.query import Query
from zdiloco.node.sockets import Road, dialling, identity_of
from zdiloco.node.syncer import SyncerNode
from zdiloco.rundir import counters
from zdiloco.rundir.counters import read_counters
from zdiloco.units import Epoch, MemberKey, Stamp
from zdiloco.wire.encoding import encode
from zdiloco.wire.transfer import Chunk, Credit, Gone

pytestmark = pytest.mark.net
MakeRun = Callable[..., Any]


def node_of(trainer: Any) -> LearnerNode:
    assert isinstance(trainer.node, LearnerNode)
    return trainer.node


def assert_balanced(run_dir: Path, syncer: SyncerNode) -> None:
    """Every token of every process and fragment has exactly one fate."""
    files = sorted((run_dir / "learners").glob("*.counters"))
    assert files
    for path in files:
        counters = read_counters(path)
        for index, row in enumerate(counters.rows):
            entry = syncer.body.states[index].map_.get(counters.key)
            seq, tokens = (entry.seq, entry.tokens) if entry else (0, 0)
            state = "left" if counters.left else "dead"
            fates = settle(counters.trained_tokens, row, seq, tokens, state)
            assert fates.gap == 0, (path.name, index, fates, row)


def test_two_learners_reach_the_target_with_the_same_bytes(run_of: MakeRun) -> None:
    """B-31: models of different seeds hold identical bytes before their first step, and after their last."""
    run = run_of(run={"target_tokens": 800})
    syncer = run.start_syncer()
    trainers = [run.join("a"), run.join("b", pace_s=0.004)]
    run.until(lambda: all(t.node is not None and t.node.finished for t in trainers), "the target")
    for trainer in trainers:
        trainer.stop()
    run.stop_syncer()
    first, second = (node_of(trainer) for trainer in trainers)
    assert [node.reached_target for node in (first, second)] == [True, True]
    assert (syncer.exit_code, syncer.failure) == (0, None)
    assert not torch.equal(trainers[0].drawn[0], trainers[1].drawn[0])
    assert all(torch.equal(x, y) for x, y in zip(trainers[0].initial, trainers[1].initial, strict=True))
    for index, state in syncer.body.states.items():
        for node in (first, second):
            values = node._body.fragments[index]
            seen = node.machine.duties[index].progress.seen
            assert seen.version > 0
            if seen == state.stamp:
                assert values.reference is not None
                assert torch.equal(node._body.later_reference(values.codec, values.reference), state.value)
    assert first.progress >= 1.0
    assert_balanced(run.config.run.path, syncer)


def test_a_syncer_that_comes_back_goes_on(run_of: MakeRun) -> None:
    run = run_of()
    first = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: first.machine.rounds >= 4, "four rounds")
    run.stop_syncer()
    versions = [state.stamp.version for state in first.body.states.values()]
    assert min(versions) >= 1
    steps = trainer.steps
    run.until(lambda: trainer.steps > steps + 5, "steps without a syncer")
    second = run.start_syncer()
    assert second.machine.run_id == first.machine.run_id
    run.until(lambda: second.machine.rounds >= 4, "four rounds of the successor")
    assert second.machine.epoch.counter == first.machine.epoch.counter + 1
    trainer.stop()
    run.stop_syncer()
    assert all(s.stamp.version > v for s, v in zip(second.body.states.values(), versions, strict=True))
    assert_balanced(run.config.run.path, second)


def test_fresh_refuses_a_used_folder_and_a_second_syncer_is_refused(run_of: MakeRun) -> None:
    run = run_of()
    run.start_syncer()
    with pytest.raises(ConfigError, match="in use by another syncer"):
        SyncerNode(run.config)
    trainer = run.join("a")
    run.until(lambda: trainer.joined.is_set(), "the first join")
    trainer.stop()
    run.stop_syncer()
    with pytest.raises(ConfigError, match="--fresh"):
        SyncerNode(run.config, fresh=True)


def test_a_poisoned_learner_starts_over_and_harms_nobody(run_of: MakeRun) -> None:
    run = run_of()
    syncer = run.start_syncer()
    good, bad = run.join("good"), run.join("bad")
    run.until(lambda: syncer.machine.rounds >= 4, "four rounds")
    before = node_of(bad).key
    bad.poison = True
    run.until(lambda: node_of(bad).key != before, "a new incarnation")
    rounds = syncer.machine.rounds
    run.until(lambda: syncer.machine.rounds >= rounds + 4, "more rounds")
    run.until(lambda: any(k == node_of(bad).key for k in syncer.body.states[0].map_), "its work is merged again")
    for trainer in (good, bad):
        trainer.stop()
    run.stop_syncer()
    assert all(bool(torch.isfinite(state.theta).all()) for state in syncer.body.states.values())
    assert all(bool(torch.isfinite(p).all()) for p in bad.model.parameters())
    assert_balanced(run.config.run.path, syncer)


def test_step_after_the_end_is_harmless_and_close_is_quick(run_of: MakeRun) -> None:
    run = run_of()
    run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: trainer.steps > 5, "five steps")
    trainer.stop()
    node = node_of(trainer)
    trained = node.machine.trained_tokens
    node.step(100)
    node.close()
    assert node.machine.trained_tokens == trained


def test_a_replaced_learner_ends_loudly_and_is_not_let_in_again(
    run_of: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    """Two processes of one name: the loop of the older one ends, and its `with` block raises the reason."""
    run = run_of()
    run.start_syncer()
    first = run.join("a")
    run.until(lambda: first.steps > 3, "three steps")
    with caplog.at_level(logging.ERROR):
        second = run.join("a")
        first.thread.join(LIMIT_S)
    error, first.error = first.error, None
    assert isinstance(error, LinkError)
    node = node_of(first)
    assert (str(error), node.exit_code, node.finished) == (node.reason, 3, True)
    assert "newer" in node.reason
    told = [record for record in caplog.records if "a is stopped" in record.getMessage()]
    assert [(record.levelname, node.reason in record.getMessage()) for record in told] == [("ERROR", True)]
    node.step(4)  # silent, so that loops see `finished`
    node.__exit__(KeyError, KeyError("in flight"))  # not covered up
    run.until(lambda: second.steps > 5, "steps of the newer one")
    second.stop()
    assert (second.error, node_of(second).exit_code) == (None, 0)
    run.stop_syncer()
    again = run.start_syncer()
    assert list(again.machine.fleet.replaced) == [node.key]


def test_a_disk_that_is_full_later_does_not_stop_the_training(
    run_of: MakeRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even when the learner starts over as a new incarnation, which wants a counter file of its own."""
    run = run_of()
    run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: trainer.steps > 3, "three steps")
    before = node_of(trainer).key

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(counters, "_reserve", full)
    trainer.poison = True
    run.until(lambda: node_of(trainer).key != before, "a new incarnation")
    steps = trainer.steps
    run.until(lambda: trainer.steps > steps + 20, "steps without a counter file")
    trainer.stop()
    assert trainer.error is None
    assert len([record for record in caplog.records if "the counter file" in record.getMessage()]) == 1
    assert not counters.counters_path(run.config.run.path, node_of(trainer).key).exists()


def test_a_learner_waits_for_a_syncer_that_is_not_there_yet(run_of: MakeRun) -> None:
    """A-19: started first, it joins when the syncer appears."""
    run = run_of()
    trainer = run.join("early")
    assert not trainer.joined.wait(0.3)
    run.start_syncer()
    run.until(lambda: trainer.joined.is_set(), "the join")
    run.until(lambda: trainer.steps > 3, "steps")


def test_another_model_is_refused_with_the_reason(run_of: MakeRun) -> None:
    run = run_of()
    run.start_syncer()
    first = run.join("a")
    run.until(lambda: first.joined.is_set(), "the first join")
    other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    with pytest.raises(ConfigError, match="layout"):
        LearnerNode(other, torch.optim.SGD(other.parameters(), lr=0.1), run.config, name="b")


def test_a_dead_thread_makes_step_raise(run_of: MakeRun) -> None:
    run = run_of()
    run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: trainer.joined.is_set(), "the join")

    def explode() -> None:
        raise RuntimeError("a bug")

    node_of(trainer).wake.post(explode)
    trainer.thread.join(LIMIT_S)
    error, trainer.error = trainer.error, None
    assert error is not None
    assert "a bug" in str(error)
    assert type(error).__name__ == "MachineError"


@pytest.mark.parametrize("codec", ["fp32", "int8", "4bit"])
@pytest.mark.parametrize("adopt", ["overwrite", "blend"])
def test_other_codecs_and_adoptions_run(run_of: MakeRun, codec: str, adopt: str) -> None:
    run = run_of(learner={"codec": codec, "adopt": adopt}, merge={"publish_codec": "fp32", "outer_momentum": 0.5})
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: syncer.machine.rounds >= 6, "six rounds")
    trainer.stop()
    run.stop_syncer()
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    assert_balanced(run.config.run.path, syncer)


@pytest.mark.parametrize("chunk_bytes", [1024, 2**18])
def test_a_fragment_of_many_chunks(run_of: MakeRun, chunk_bytes: int) -> None:
    """More chunks than the usual mark: the broadcast is bound again, and nothing has to be asked for twice."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 8))
    run = run_of(net={"chunk_bytes": chunk_bytes, "window_bytes": 2**19, "stall_s": 5.0}, sync={"num_fragments": 1})
    syncer = run.start_syncer()
    trainer = run.join("a", model=model)
    run.until(lambda: syncer.machine.rounds >= 4, "four rounds")
    run.until(lambda: node_of(trainer).machine.duties[0].progress.seen.version >= 4, "their adoption")
    counts = node_of(trainer).machine.counts
    trainer.stop()
    run.stop_syncer()
    assert counts.get("update lost", 0) == 0
    assert counts.get("pulled", 0) <= 2
    assert_balanced(run.config.run.path, syncer)


def test_initial_values_from_a_file(run_of: MakeRun, tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    values = {name: value.detach().bfloat16().float().clone() for name, value in source.named_parameters()}
    safetensors.torch.save_file(values, tmp_path / "init.safetensors")
    run = run_of(run={"init": str(tmp_path / "init.safetensors"), "target_tokens": 0})
    run.start_syncer()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    trainer = run.join("a", model=model)
    run.until(lambda: trainer.joined.is_set(), "the join")
    assert all(torch.equal(x, y) for x, y in zip(trainer.initial, values.values(), strict=True))


def test_an_initial_file_that_does_not_fit_ends_the_syncer(run_of: MakeRun, tmp_path: Path) -> None:
    safetensors.torch.save_file({"other": torch.zeros(2)}, tmp_path / "init.safetensors")
    run = run_of(run={"init": str(tmp_path / "init.safetensors"), "target_tokens": 0})
    syncer = run.start_syncer()
    run.join("a")
    ended = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if syncer.failure is not None or ended.wait(0.01):
            break
    assert isinstance(syncer.failure, ConfigError)
    assert "is missing" in str(syncer.failure)
    syncer.failure = None


HOSTILE: list[list[bytes]] = [
    [], [b""], [b"\x80"], [b"\xc1"], [b"x" * 20_000], [b"\x82\xa1v\x01\xa1t\xa5hello"], [b"{}", b"payload"],
    [b"\x82\xa1v\x63\xa1t\xa5hello"], [b"a", b"b", b"c"], [bytes(70_000)],
]  # fmt: skip


def hostile_messages() -> list[Any]:
    """Well-formed, and out of place: from nobody, for nothing, of impossible sizes."""
    body = messages.Body(transfer="c/0/1", nbytes=2**50, chunk_bytes=2**20, digest=1)
    stamp = Stamp(Epoch(1, 1), 0)
    contribution = messages.Contribution(
        fragment=0, seq=1, after=0, stamp=stamp, steps=1, tokens=1, cut_step=1, version=1, codec="bf16", body=body
    )
    hello = messages.Hello(name="evil", incarnation=6, layout_digest="x")
    return [
        hello, contribution, messages.Pull(fragment=400),
        messages.Report(step=1, trained_tokens=1, unmerged_tokens=0, dropped_tokens=0),
        messages.LayoutOffer(digest="x", body=body), messages.InitialOffer(fragment=3, body=body),
        messages.Handback(fragment=0, stamp=stamp, codec="zip", value_bytes=1, body=body),
        messages.Update(fragment=0, stamp=stamp, full=True, codec="bf16", value_bytes=9, body=body),
        messages.Decline(fragment=511, version=3, reason="", eta_s=0), messages.Donate(), messages.Beat(
            epoch=Epoch(0, 0), open_rounds=(), versions=(), stable=(), progress=0),
        messages.Goodbye(reason="", trained_tokens=0, left_tokens=0, dropped_tokens=0),
        Credit(transfer="nothing", upto=2**40, received=0), Gone(transfer="nothing", by_sender=True, reason=""),
        messages.Heartbeat(epoch=Epoch(0, 0)),
    ]  # fmt: skip


def test_no_peer_can_end_a_syncer(run_of: MakeRun, zctx: Any) -> None:
    run = run_of()
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: trainer.joined.is_set(), "the join")
    for road in (Road.CONTROL, Road.BULK):
        evil = dialling(zctx, road, run.config.net, identity_of(MemberKey("evil", 6)))
        for frames in HOSTILE:
            evil.send_multipart(frames or [b""])
        for message in hostile_messages():
            evil.send_multipart([encode(message)])
        evil.send_multipart([encode(Chunk(transfer="c/0/1", index=2**40, checksum=0)), b"xyz"])
        strange = zctx.socket(zmq.DEALER)
        strange.connect(f"tcp://127.0.0.1:{run.config.net.port + (road is Road.BULK)}")
        strange.send_multipart([b"who am I"])
        run.until(lambda: syncer.roads.of(MemberKey("evil", 6)).malformed["frame"] > 3, "malformed frames counted")
        evil.close(0)
        strange.close(0)
    rounds = syncer.machine.rounds
    run.until(lambda: syncer.machine.rounds > rounds + 2, "rounds after that")
    assert syncer.roads.of(MemberKey("evil", 6)).malformed["version"] >= 1


def crash(run: Any) -> SyncerNode:
    """End the syncer as a SIGKILL would: nothing more is saved, nobody is told."""
    syncer: SyncerNode = run.syncer
    syncer._fail(RuntimeError("killed by the test"))
    run._thread.join(LIMIT_S)
    assert not run._thread.is_alive()
    run.syncer = None
    return syncer


def _seen(trainer: Any, fragment: int) -> int:
    """The version that a learner holds."""
    return int(node_of(trainer).machine.duties[fragment].progress.seen.version)


@pytest.mark.parametrize(("recover_wait_s", "delta_codec"), [(0.0, "int8"), (2.0, "none"), (2.0, "4bit")])
def test_a_syncer_that_died_unsaved_loses_nothing(run_of: MakeRun, recover_wait_s: float, delta_codec: str) -> None:
    """Its successor starts from an old checkpoint, or from what the fleet hands back; either way work goes on."""
    sync = {"checkpoint_every_s": 3600.0, "recover_wait_s": recover_wait_s}
    run = run_of(sync=sync, merge={"delta_codec": delta_codec})
    first = run.start_syncer()
    trainers = [run.join("a"), run.join("b")]
    run.until(lambda: first.machine.rounds >= 10 and all(t.steps > 0 for t in trainers), "ten rounds, and both join")
    crash(run)
    adopted = [max(_seen(trainer, index) for trainer in trainers) for index in first.body.states]
    second = run.start_syncer()
    run.until(lambda: second.machine.rounds >= 6, "six rounds of the successor")
    if recover_wait_s:
        assert min(adopted) > 0
        assert all(state.stamp.version >= adopted[index] for index, state in second.body.states.items())
    for trainer in trainers:
        trainer.stop()
        assert node_of(trainer).machine.counts.get("misfit", 0) == 0
    run.stop_syncer()
    assert_balanced(run.config.run.path, second)


def test_a_status_query_is_answered_to_anybody(run_of: MakeRun) -> None:
    run = run_of(learner={"region": "us-east"})
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: syncer.machine.rounds >= 2, "two rounds")
    with Query(run.config.net) as query:
        found = query.ask(10.0)
        again = query.ask(10.0)
    assert (found["run_id"], found["node"]["run_dir"]) == (syncer.machine.run_id, str(run.config.run.path))
    assert [(each["name"], each["region"]) for each in found["learners"]] == [("a", "us-east")]
    peers = again["node"]["peers"]
    key = node_of(trainer).key
    assert peers[f"a:{key.incarnation:016x}"]["bytes_down"] > 0
    assert again["node"]["reserved_bytes"] >= 0
    run.until(lambda: syncer.machine.rounds >= 4, "rounds after that")


def test_a_query_without_a_syncer_ends(run_of: MakeRun) -> None:
    with Query(run_of().config.net) as query, pytest.raises(LinkError, match="no syncer answers"):
        query.ask(0.2)
