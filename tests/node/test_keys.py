"""Runs with keys: who may join does, who may not is told why on both sides, and who is taken out is out at once."""

import contextlib
import datetime
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.node.conftest import LIMIT_S, Run, Trainer
from tests.node.relays import Regions
from zdiloco.chaos.proxy import Proxy
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.messages import Goodbye
from zdiloco.errors import ConfigError, LinkError
from zdiloco.node.entrance import IN_A_ROW
from zdiloco.node.keys import load_pair, load_public, make_pair
from zdiloco.node.query import Query
from zdiloco.node.sockets import Road, identity_of
from zdiloco.units import MemberKey
from zdiloco.wire.encoding import encode

pytestmark = pytest.mark.net
MakeRun = Callable[..., Any]


class Folder:
    """A folder of keys, and the list in it."""

    def __init__(self, place: Path, *names: str) -> None:
        self.place = place
        for name in ("syncer", *names):
            make_pair(place, name)
        self.allow(**{name: {} for name in names})

    def allow(self, **entries: dict[str, Any]) -> None:
        """Write the list anew: by name what is said beside the key."""
        lines = []
        for name, more in entries.items():
            lines += [f"[{name}]", f'key = "{load_public(self.place, name).decode()}"']
            lines += [f"{key} = {value}" for key, value in more.items()]
        (self.place / "allowed.toml").write_text("\n".join(lines))

    @property
    def net(self) -> dict[str, Any]:
        return {"keys": str(self.place)}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "keys", "a", "b", "watcher")


def ends(trainer: Trainer) -> str:
    """Why a learner ended that is to end by itself."""
    assert trainer.joined.wait(LIMIT_S)
    trainer.thread.join(LIMIT_S)
    assert isinstance(trainer.error, ConfigError | LinkError), trainer.error
    return str(trainer.error)


def alone(run: Run, name: str, **net: Any) -> Trainer:
    """A learner with other settings than its run."""
    return Trainer(replace(run.config, net=replace(run.config.net, **net)), name, seed=7)


def merged(run: Run, name: str) -> int:
    assert run.syncer is not None
    states = run.syncer.body.states.values()
    return sum(entry.tokens for state in states for key, entry in state.map_.items() if key.name == name)


def test_a_run_with_keys_trains_and_answers(run_of: MakeRun, folder: Folder) -> None:
    run = run_of(run={"target_tokens": 800}, net=folder.net)
    run.start_syncer()
    with Query(replace(run.config.net, key="watcher")) as query:
        assert query.ask(LIMIT_S)["node"]["insecure"] is False
    trainers = [run.join("a"), run.join("b")]
    run.until(lambda: all(t.node is not None and t.node.finished for t in trainers), "the target")
    assert merged(run, "a") > 0
    assert merged(run, "b") > 0
    assert run.syncer.roads.strangers == {}


def test_nothing_of_a_run_with_keys_can_be_read_on_its_way(run_of: MakeRun, folder: Folder) -> None:
    """K-13: who listens to the broadcast without a key gets nothing; nor does one with a key of its own making."""
    run = run_of(net=folder.net)
    run.start_syncer()
    run.join("a")
    run.until(lambda: merged(run, "a") > 0, "a round")
    for pair in (None, zmq.curve_keypair()):
        with zmq.Context() as context, context.socket(zmq.SUB) as listener:
            if pair:
                listener.curve_publickey, listener.curve_secretkey = pair
                listener.curve_serverkey = load_public(folder.place, "syncer")
            listener.setsockopt(zmq.SUBSCRIBE, b"")
            listener.connect(f"tcp://127.0.0.1:{run.config.net.port + 2}")
            assert not listener.poll(1000), "beats come ten times a second"


def test_a_stranger_is_named_on_both_sides(run_of: MakeRun, folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    make_pair(folder.place, "c")
    run = run_of(net=folder.net)
    run.start_syncer()
    with caplog.at_level(logging.WARNING, "zdiloco.node.guard"):
        assert "does not let this key in" in ends(alone(run, "c"))
    assert "turned away who=127.0.0.1 why='its key is not in net.allowed'" in caplog.text


def test_an_expired_key_is_named_on_both_sides(
    run_of: MakeRun, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.allow(a={"expires": "2020-02-29"}, b={})
    run = run_of(net=folder.net)
    run.start_syncer()
    with caplog.at_level(logging.WARNING, "zdiloco.node.guard"):
        assert "does not let this key in" in ends(alone(run, "a"))
    assert "the key of a was good until 2020-02-29" in caplog.text


def test_whoever_dials_without_keys_is_told_so(run_of: MakeRun, folder: Folder) -> None:
    run = run_of(net=folder.net)
    run.start_syncer()
    assert "wants keys, and net.keys is not set" in ends(alone(run, "a", keys=""))


def test_another_server_key_is_told(run_of: MakeRun, folder: Folder) -> None:
    run = run_of(net=folder.net)
    run.start_syncer()
    began = time.monotonic()
    assert "does not answer to the key b.key" in ends(alone(run, "a", server_key="b"))
    assert time.monotonic() - began < 15.0


@pytest.mark.parametrize("keyed", [False, True])
def test_a_tunnel_with_nobody_behind_it_is_waited_at(
    run_of: MakeRun, folder: Folder, free_ports: Callable[[int], int], keyed: bool
) -> None:
    """It takes each connection and closes it again, until the syncer is there."""
    run = run_of(net=folder.net if keyed else {})
    port = free_ports(4)
    taken, ends = [0], threading.Event()

    def tunnel() -> None:
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(LIMIT_S)
            while not ends.is_set():
                server.accept()[0].close()
                taken[0] += 1

    thread = threading.Thread(target=tunnel)
    thread.start()
    try:
        learner = alone(run, "a", port=port)
        run.until(lambda: taken[0] >= 3 * IN_A_ROW or learner.error is not None, "it knocks again and again")
        assert learner.error is None
    finally:
        ends.set()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
        thread.join(LIMIT_S)
    proxied = Proxy(port, run.config.net.port)
    try:
        run.start_syncer()
        run.until(lambda: merged(run, "a") > 0, "it joins when the syncer is there")
        learner.stop()
    finally:
        proxied.close()


def test_a_syncer_without_keys_is_told_from_one_with(run_of: MakeRun, folder: Folder) -> None:
    run = run_of()
    run.start_syncer()
    assert "works without keys" in ends(alone(run, "a", **folder.net))


def test_a_key_speaks_for_its_own_name_only(run_of: MakeRun, folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    run = run_of(net=folder.net)
    run.start_syncer()
    with caplog.at_level(logging.WARNING, "zdiloco.node.guard"):
        thief = alone(run, "a", key="b")
        assert "the key of b may not say Hello as a" in ends(thief)
    assert "turned away who=b why='the key of b may not say Hello as a'" in caplog.text
    assert thief.steps == 0
    run.join("a")
    run.until(lambda: merged(run, "a") > 0, "the owner of the name")


def test_who_only_watches_cannot_contribute(run_of: MakeRun, folder: Folder) -> None:
    folder.allow(a={}, watcher={"rights": '["watch"]'})
    run = run_of(net=folder.net)
    run.start_syncer()
    run.join("a")
    assert "the key of watcher may not say Hello as watcher" in ends(alone(run, "watcher"))
    run.until(lambda: merged(run, "a") > 0, "a round")
    with Query(replace(run.config.net, key="watcher")) as query:
        assert query.ask(LIMIT_S)["learners"]


def test_who_is_taken_out_is_out_and_the_others_go_on(run_of: MakeRun, folder: Folder) -> None:
    run = run_of(net=folder.net)
    syncer = run.start_syncer()
    run.join("a")
    other = alone(run, "b")
    run.until(lambda: merged(run, "a") > 0 and merged(run, "b") > 0, "both are merged")
    folder.allow(a={}, watcher={})
    syncer.look_again()
    assert "does not let this key in" in ends(other)
    before = merged(run, "a")
    run.until(lambda: merged(run, "a") > before + 40, "the other one goes on")


def test_a_wrong_list_changes_nothing(run_of: MakeRun, folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    run = run_of(net=folder.net)
    syncer = run.start_syncer()
    run.join("a")
    run.until(lambda: merged(run, "a") > 0, "a round")
    (folder.place / "allowed.toml").write_text("[a]\nkey = 'short'\n")
    with caplog.at_level(logging.ERROR, "zdiloco.node.guard"):
        syncer.look_again()
        run.until(lambda: "stays as it is" in caplog.text, "it is looked at")
    run.join("b")
    run.until(lambda: merged(run, "b") > 0, "who was allowed before still is")


def test_a_key_that_expires_while_it_is_in_is_out(run_of: MakeRun, folder: Folder) -> None:
    folder.allow(a={}, b={"expires": "2030-01-31"})
    run = run_of(net=folder.net)
    syncer = run.start_syncer()
    guard = syncer.roads.guard
    today = datetime.date(2030, 1, 31)
    guard._today = lambda: today
    run.join("a")
    other = alone(run, "b")
    run.until(lambda: merged(run, "b") > 0, "its last day")
    today = datetime.date(2030, 2, 1)
    assert "does not let this key in" in ends(other)


def test_a_region_behind_a_relay_with_keys(run_of: MakeRun, region_of: Regions, folder: Folder) -> None:
    """The relay speaks for those whom its entry names, and for nobody else; its own list says who may dial it."""
    make_pair(folder.place, "relay")
    behind = Folder(folder.place.parent / "behind", "a", "b")
    for name in ("relay.key", "relay.key_secret", "syncer.key"):
        (behind.place / name).unlink(missing_ok=True)
        (behind.place / name).write_bytes((folder.place / name).read_bytes())
        (behind.place / name).chmod(0o600)
    folder.allow(relay={"rights": '["relay"]', "names": '["a"]'}, watcher={})
    run = run_of(net=folder.net)
    syncer = run.start_syncer()
    region = region_of(replace(run.config.net, keys=str(behind.place)))
    learner = Trainer(replace(run.config, net=replace(region.behind, server_key="relay")), "a", seed=3)
    run.until(lambda: merged(run, "a") > 0, "a is merged")
    stranger = Trainer(replace(run.config, net=replace(region.behind, server_key="relay")), "b", seed=4)
    run.until(lambda: syncer.roads.strangers["key"] > 0, "the relay speaks for b")
    assert merged(run, "b") == 0
    stranger.stop()
    run.stop_syncer()  # and comes back with another key, which the relay is given a moment later
    make_pair(folder.place, "syncer-2")
    run.config = replace(run.config, net=replace(run.config.net, key="syncer-2"))
    second = run.start_syncer()
    (behind.place / "syncer.key").write_bytes((folder.place / "syncer-2.key").read_bytes())
    run.until(lambda: second.machine.rounds >= 3, "rounds of the one with the new key")
    assert learner.error is None
    learner.stop()


def test_a_relay_that_is_not_let_in_ends_and_says_why(run_of: MakeRun, region_of: Regions, folder: Folder) -> None:
    make_pair(folder.place, "relay")
    run = run_of(net=folder.net)
    run.start_syncer()
    region = region_of(run.config.net)
    run.until(lambda: region.relay.failure is not None, "it ends")
    assert "does not let this key in" in str(region.relay.failure)


def test_what_is_said_under_another_identity_moves_nothing(run_of: MakeRun, folder: Folder) -> None:
    """A key that is allowed, on bare sockets, under the name and incarnation of somebody else: not a word is heard, and
    the owner is not robbed of a single one, for the rest of its identity is known to nobody."""
    run = run_of(net=folder.net)
    syncer = run.start_syncer()
    trainer = run.join("a")
    run.until(lambda: merged(run, "a") > 0, "a round")
    node = trainer.node
    identity = identity_of(MemberKey("a", node.key.incarnation))
    assert node._roads.sockets[Road.CONTROL].getsockopt(zmq.IDENTITY).startswith(identity + b".")
    own = load_pair(folder.place, "b")
    goodbye = encode(Goodbye(reason="stolen", trained_tokens=1, left_tokens=0.0, dropped_tokens=0.0))
    dropped = syncer.roads.of(node.key).dropped
    with zmq.Context() as context, context.socket(zmq.DEALER) as control, context.socket(zmq.DEALER) as bulk:
        for offset, made in enumerate((control, bulk)):
            made.curve_publickey, made.curve_secretkey = own.public, own.secret
            made.curve_serverkey = load_public(folder.place, "syncer")
            made.setsockopt(zmq.LINGER, 0)
            made.setsockopt(zmq.IDENTITY, identity)
            made.connect(f"tcp://127.0.0.1:{run.config.net.port + offset}")
        control.send(goodbye)
        run.until(lambda: syncer.roads.strangers["key"] > 0, "it is heard, and not believed")
        before = merged(run, "a")
        run.until(lambda: merged(run, "a") > before + 40, "the owner goes on")
        assert not control.poll(200)
        assert not bulk.poll(200)
    assert syncer.roads.of(node.key).dropped == dropped
    assert node.machine.phase is LearnerPhase.TRAINING
