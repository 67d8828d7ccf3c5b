"""What a syncer with keys, exposed for weeks, does among peers that flood it, babble, and connect without a word."""

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.hostile.enemy import PORTS
from tests.node.conftest import Run
from tests.node.test_keys import Folder, merged
from zdiloco.core.messages import Heartbeat, StatusQuery
from zdiloco.node.keys import load_pair, load_public
from zdiloco.node.query import Query
from zdiloco.node.sockets import Road, identity_of
from zdiloco.units import NO_EPOCH, MemberKey
from zdiloco.wire.encoding import encode
from zdiloco.wire.transfer import Chunk

pytestmark = [pytest.mark.net, pytest.mark.slow]  # floods on two roads: seconds of work each
LIMIT_S = 60.0
BEAT = encode(Heartbeat(epoch=NO_EPOCH))
QUICK = {"peer_messages_per_s": 200.0, "ban_s": 3.0, "most_offences": 30}
"""Limits that are met soon on any machine, and bans that end soon."""


class Insider:
    """One whose key is allowed, and that says what it likes under any name."""

    def __init__(self, context: Any, folder: Folder, port: int, owner: str = "eve", name: str = "eve") -> None:
        own = load_pair(folder.place, owner)
        self.sockets = {}
        for road in (Road.CONTROL, Road.BULK):
            made = self.sockets[road] = context.socket(zmq.DEALER)
            made.curve_publickey, made.curve_secretkey = own.public, own.secret
            made.curve_serverkey = load_public(folder.place, "syncer")
            made.setsockopt(zmq.LINGER, 0)
            made.setsockopt(zmq.SNDTIMEO, int(LIMIT_S * 1000))
            made.setsockopt(zmq.IDENTITY, identity_of(MemberKey(name, 666)))
            made.connect(f"tcp://127.0.0.1:{port + PORTS[road]}")

    def say(self, *frames: bytes, road: Road = Road.CONTROL) -> None:
        self.sockets[road].send_multipart(frames)

    def close(self) -> None:
        for made in self.sockets.values():
            made.close(0)


@contextlib.contextmanager
def flooding(insider: Insider, road: Road, *frames: bytes) -> Iterator[None]:
    """Have somebody send the same as fast as it can."""
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            with suppress(zmq.Again):
                insider.sockets[road].send_multipart(frames, zmq.NOBLOCK)
            over.wait(1e-6)

    thread = threading.Thread(target=flood, name=f"flood-{road}")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(autouse=True)
def _not_all_are_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "honest", False)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "keys", "a", "b", "eve")


@pytest.fixture
def insider_of(folder: Folder, zctx: Any) -> Iterator[Callable[..., Insider]]:
    made: list[Insider] = []

    def make(run: Run, **who: str) -> Insider:
        made.append(Insider(zctx, folder, run.config.net.port, **who))
        return made[-1]

    yield make
    for each in made:
        each.close()


def banned(run: Run) -> list[str]:
    return [each["name"] for each in run.syncer.roads.gate.status()["banned"]]


@pytest.mark.parametrize("road", [Road.CONTROL, Road.BULK])
def test_a_flood_of_one_key_is_dropped_and_banned_and_the_others_go_on(
    run_of: Any, folder: Folder, insider_of: Callable[..., Insider], road: Road
) -> None:
    """W-17: well-formed words, or chunks that nobody asked for; the status says who, why and until when."""
    run = run_of(net={**folder.net, **QUICK, "peer_unasked_bytes_per_s": 2.0**16, "ban_s": 60.0})
    run.start_syncer()
    run.join("a")
    run.until(lambda: merged(run, "a") > 0, "a round")
    chunk = encode(Chunk(transfer="c/1", index=0, checksum=0))
    frames = [BEAT] if road is Road.CONTROL else [chunk, bytes(1024)]
    with flooding(insider_of(run), road, *frames):
        run.until(lambda: banned(run) == ["eve"], "a ban")
        before = merged(run, "a")
        run.until(lambda: merged(run, "a") > before + 100, "the other one goes on")
        with Query(replace(run.config.net, key="b")) as query:
            answer = query.ask(LIMIT_S)["node"]["limits"]
    why = "words" if road is Road.CONTROL else "bytes"
    assert [(each["name"], each["times"]) for each in answer["banned"]] == [("eve", 1)]
    assert answer["banned"][0]["why"] == f"more {why} than it may send"
    assert answer["dropped"][why] > 0
    assert answer["dropped"]["banned"] > 0
    json.dumps(answer)


def test_a_ban_ends_by_itself_and_whoever_behaves_is_read_again(
    run_of: Any, folder: Folder, insider_of: Callable[..., Insider], caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(net={**folder.net, **QUICK})
    run.start_syncer()
    insider = insider_of(run)
    with caplog.at_level(logging.WARNING, "zdiloco.node.limits"):
        for _ in range(40):
            insider.say(b"garbage")
        run.until(lambda: banned(run) == ["eve"], "a ban")
        run.until(lambda: banned(run) == [], "its end")
    assert "banned who=eve for_s=3 times=1 why='frame'" in caplog.text
    assert "banned no more who=eve why='its time is over'" in caplog.text
    read = run.syncer.roads.of(MemberKey("eve", 666)).frames_down
    insider.say(encode(StatusQuery()))
    run.until(lambda: run.syncer.roads.of(MemberKey("eve", 666)).frames_down > read, "its question is read")


def test_an_operator_releases_with_a_signal(
    run_of: Any, folder: Folder, insider_of: Callable[..., Insider]
) -> None:
    run = run_of(net={**folder.net, **QUICK, "ban_s": 3600.0})
    syncer = run.start_syncer()
    insider = insider_of(run)
    for _ in range(40):
        insider.say(b"garbage")
    run.until(lambda: banned(run) == ["eve"], "a ban")
    syncer.look_again()
    run.until(lambda: banned(run) == [], "its end")


def test_under_the_name_of_another_one_nothing_is_counted_for_that(
    run_of: Any, folder: Folder, insider_of: Callable[..., Insider]
) -> None:
    """Garbage under an honest learner's very identity: it is the owner of the key that is banned."""
    run = run_of(net={**folder.net, **QUICK, "ban_s": 60.0})
    run.start_syncer()
    run.join("a")
    run.until(lambda: merged(run, "a") > 0, "a round")
    insider = insider_of(run, name="a")
    for _ in range(40):
        insider.say(b"garbage")
    run.until(lambda: banned(run) == ["eve"], "a ban")
    peers = run.syncer.roads.counts
    assert not any(counts.malformed for key, counts in peers.items() if key.name == "a")
    before = merged(run, "a")
    run.until(lambda: merged(run, "a") > before + 40, "the owner of the name goes on")


def test_a_learner_joins_while_hundreds_knock_and_say_nothing(run_of: Any, folder: Folder) -> None:
    """User case E-81: raw connections that are silent, and ones that trickle a byte at a time, all of them cut off."""
    run = run_of(net={**folder.net, "handshake_s": 1.0})
    syncer = run.start_syncer()
    over, made = threading.Event(), list[socket.socket]()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE".ljust(23, b"\0") + bytes(2000)

    def knock() -> None:
        while not over.is_set() and len(made) < 1000:
            with suppress(OSError):
                made.append(socket.create_connection(("127.0.0.1", run.config.net.port + len(made) % 4), timeout=30))
            for at, each in enumerate(made[-100:]):
                with suppress(OSError):
                    each.send(greeting[:1]) if at % 2 else None
            over.wait(0.002)

    thread = threading.Thread(target=knock, name="knock")
    thread.start()
    try:
        run.join("a")
        run.until(lambda: merged(run, "a") > 40, "it joins and is merged")
        run.until(lambda: len(made) >= 300, "hundreds have knocked")
    finally:
        over.set()
        thread.join()
    connections = syncer.roads.gate.connections
    run.until(lambda: connections.count <= 4, "all that said nothing are cut off")
    for each in made:
        each.close()


def test_idle_connections_beyond_the_most_are_hung_up_and_the_run_goes_on(run_of: Any, folder: Folder) -> None:
    """W-18, user case E-81: descriptors stay bounded; who is in stays in."""
    run = run_of(net={**folder.net, "most_connections": 40, "handshake_s": 30.0})
    syncer = run.start_syncer()
    run.join("a")
    run.until(lambda: merged(run, "a") > 0, "a round")
    made = [socket.create_connection(("127.0.0.1", run.config.net.port + at % 4), timeout=30) for at in range(300)]
    connections = syncer.roads.gate.connections
    run.until(lambda: connections.hung_up >= 260, "those that are too many")
    assert connections.count <= 40
    before = merged(run, "a")
    run.until(lambda: merged(run, "a") > before + 40, "the run goes on")
    for each in made:
        each.close()


def test_an_honest_learner_meets_no_limit(run_of: Any, folder: Folder) -> None:
    """Under the limits that are the defaults, with tiny steps and chunks, so that it says as much as ever it can."""
    run = run_of(net=folder.net, sync={"report_every_s": 0.0})
    run.start_syncer()
    trainers = [run.join("a", pace_s=0.0), run.join("b", pace_s=0.0)]
    run.until(lambda: merged(run, "a") > 2000 and merged(run, "b") > 2000, "many rounds")
    began = time.monotonic()
    steps = sum(trainer.steps for trainer in trainers)
    run.until(lambda: time.monotonic() > began + 3.0, "some seconds")
    print(f"{(sum(trainer.steps for trainer in trainers) - steps) / 3:.0f} steps a second")
    status = run.syncer.roads.gate.status()
    assert (status["dropped"], status["banned"], status["over"]) == ({}, [], [])
    left = [account.words.level / account.words.most for account in run.syncer.roads.gate.limits._accounts.values()]
    assert min(left) > 0.5


def test_who_floods_on_is_hung_up_on_and_may_come_back_when_it_behaves(
    run_of: Any, folder: Folder, insider_of: Callable[..., Insider]
) -> None:
    """Dropped frames are received and decrypted first, so a banned peer that goes on loses its connection."""
    run = run_of(net={**folder.net, **QUICK, "ban_s": 5.0})
    run.start_syncer()
    insider, connections = insider_of(run), run.syncer.roads.gate.connections
    with flooding(insider, Road.CONTROL, b"garbage"):
        run.until(lambda: banned(run) == ["eve"], "a ban")
        run.until(lambda: connections.hung_up >= 2, "it is hung up on, again and again")
    run.until(lambda: banned(run) == [], "its end")
    peer = MemberKey("eve", 666)
    read = run.syncer.roads.of(peer).frames_down

    def is_read() -> bool:
        with suppress(zmq.Again):
            insider.sockets[Road.CONTROL].send(BEAT, zmq.NOBLOCK)
        return run.syncer.roads.of(peer).frames_down > read

    run.until(is_read, "what it says is read again")
