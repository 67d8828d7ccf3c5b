"""The doors of a server with keys: each socket has one, and it is tried; and keys that change."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from tests.node.conftest import LIMIT_S
from tests.node.relays import Regions
from tests.node.test_keys import Folder, MakeRun, alone, ends, merged
from zdiloco.errors import MachineError
from zdiloco.node.allowed import Allowed
from zdiloco.node.guard import Guard
from zdiloco.node.keys import load_pair, load_public, make_pair
from zdiloco.node.sockets import Road

pytestmark = pytest.mark.net


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "keys", "a", "b", "watcher")


@pytest.mark.parametrize("road", list(Road))
def test_every_server_socket_has_a_door(run_of: MakeRun, folder: Folder, road: Road) -> None:
    """With a key that nobody knows, each of the four is shut."""
    run = run_of(net=folder.net)
    syncer = run.start_syncer()
    served = syncer.roads.sockets[road]
    domain = b"zdiloco.cast" if road in (Road.CONTROL_CAST, Road.BULK_CAST) else b"zdiloco"
    assert (served.getsockopt(zmq.MECHANISM), served.getsockopt(zmq.ZAP_DOMAIN)) == (zmq.CURVE, domain)
    assert served.getsockopt(zmq.ZAP_ENFORCE_DOMAIN) == 1


def test_the_key_of_a_syncer_changes_and_nobody_is_started_again(run_of: MakeRun, folder: Folder) -> None:
    """Its new public key is put in the place of the old one, before or after; learners look for it."""
    run = run_of(net=folder.net)
    run.start_syncer()
    learner = run.join("a")
    run.until(lambda: merged(run, "a") > 0, "a round")
    run.stop_syncer()
    make_pair(folder.place, "syncer-2")
    run.config = replace(run.config, net=replace(run.config.net, key="syncer-2"))
    second = run.start_syncer()
    (folder.place / "syncer-2.key").replace(folder.place / "syncer.key")
    run.until(lambda: second.machine.rounds >= 3, "three rounds of the one with the new key")
    assert merged(run, "a") > 0
    assert learner.error is None


def test_a_learner_changes_its_key_while_both_are_good(run_of: MakeRun, folder: Folder) -> None:
    make_pair(folder.place, "a-2")
    new = load_public(folder.place, "a-2").decode()
    run = run_of(net=folder.net)
    syncer = run.start_syncer()
    old = run.join("a")
    run.until(lambda: merged(run, "a") > 0, "a round")
    folder.allow(a={"next_key": f'"{new}"'})
    syncer.look_again()
    rounds = syncer.machine.rounds
    run.until(lambda: syncer.machine.rounds > rounds + 2, "it goes on by the old one")
    old.stop()
    run.trainers.remove(old)
    second = alone(run, "a", key="a-2")
    run.trainers.append(second)
    rounds = syncer.machine.rounds
    run.until(lambda: syncer.machine.rounds > rounds + 2, "and then by the new one")
    folder.allow(b={})
    (folder.place / "allowed.toml").write_text(f'[a]\nkey = "{new}"\n')
    syncer.look_again()
    rounds = syncer.machine.rounds
    run.until(lambda: syncer.machine.rounds > rounds + 2, "the old one is out, the new one is not")
    assert "does not let this key in" in ends(alone(run, "a"))


@pytest.mark.parametrize("who", ["syncer", "relay"])
@pytest.mark.parametrize("mistake", ["everybody", "no keys"])
def test_a_door_that_is_open_is_found_before_anybody_is_served(
    run_of: MakeRun, region_of: Regions, folder: Folder, monkeypatch: pytest.MonkeyPatch, who: str, mistake: str
) -> None:
    """A mistake of ours: the process knocks at its own doors, and ends."""
    make_pair(folder.place, "relay")
    run = run_of(net=folder.net)
    if mistake == "everybody":
        monkeypatch.setattr(Allowed, "why_not", lambda *_: "")
    else:
        monkeypatch.setattr(Guard, "options", lambda *_, **__: {})
    with pytest.raises(MachineError, match="lets in a key that nobody has allowed"):
        run.start_syncer() if who == "syncer" else region_of(run.config.net)


def test_knocking_at_ones_own_doors_is_no_strangers_doing(
    run_of: MakeRun, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(net={**folder.net, "listen": "0.0.0.0"})
    with caplog.at_level(logging.WARNING):
        syncer = run.start_syncer()
    assert syncer.roads.strangers == {}
    assert syncer.roads.guard.strangers == {}
    assert "turned away" not in caplog.text


@pytest.mark.parametrize("road", [Road.CONTROL_CAST, Road.BULK_CAST])
def test_a_long_subscription_ends_the_connection(run_of: MakeRun, folder: Folder, road: Road) -> None:
    """Each byte of it would cost the publisher fifty."""
    run = run_of(net=folder.net)
    syncer = run.start_syncer()
    own, port = load_pair(folder.place, "watcher"), run.config.net.port + list(Road).index(road)
    with zmq.Context() as context, context.socket(zmq.SUB) as listener:
        listener.setsockopt(zmq.LINGER, 0)
        listener.setsockopt(zmq.RECONNECT_IVL, -1)
        listener.curve_publickey, listener.curve_secretkey = own.public, own.secret
        listener.curve_serverkey = load_public(folder.place, "syncer")
        told = listener.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        listener.connect(f"tcp://127.0.0.1:{port}")
        assert told.poll(LIMIT_S * 1000)
        assert parse_monitor_message(told.recv_multipart())["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        listener.setsockopt(zmq.SUBSCRIBE, b"x" * 100_000)
        assert told.poll(LIMIT_S * 1000)
        assert parse_monitor_message(told.recv_multipart())["event"] == zmq.EVENT_DISCONNECTED
        listener.disable_monitor()
        told.close(0)
    assert syncer.failure is None
