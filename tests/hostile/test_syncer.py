"""A living syncer among enemies: nothing that they send ends it, stops its run, enters a merge or stays in memory."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.hostile.enemy import RAW, Enemy, greeting, huge_frame, malformed_headers, zip_bomb
from tests.hostile.scene import EVE, Scene
from tests.node.test_loopback import node_of
from zdiloco.core import messages as w
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Road
from zdiloco.wire.encoding import decode, encode

pytestmark = [pytest.mark.net, pytest.mark.slow]
MakeRun = Callable[..., Any]


def test_headers_of_every_wrong_kind(scene: Scene) -> None:
    """W-3: User cases E-85 and E-91: 2^60 bytes, pickles, bombs, deep nesting, wrong types, negative sizes, repeats."""
    enemy = scene.enemy()
    wrong = malformed_headers()
    for road in (Road.CONTROL, Road.BULK):
        for header in wrong:
            enemy.frames(road, header)
            enemy.frames(road, header, b"payload")
        for frames in ([b"a", b"b", b"c"], [b""] * 100, [encode(w.StatusQuery()), zip_bomb()]):
            enemy.frames(road, *frames)
    scene.until_malformed(EVE, 4 * len(wrong) + 6)
    assert scene.syncer.transfers.inbox.reserved_bytes <= 2**20
    scene.end()


def test_strangers_that_speak_no_zeromq(scene: Scene) -> None:
    """Bytes before and after the handshake, among them a frame that claims 2^60 bytes: its connection is closed."""
    opened = []
    for road in range(4):
        for data in RAW:
            opened.append(socket.create_connection(("127.0.0.1", scene.port + road), timeout=60))
            opened[-1].sendall(data)
    for road in (Road.CONTROL, Road.BULK):
        for size in (2**60, 2**63 - 1, 2**24):
            made = greeting(scene.port, road)
            opened.append(made)
            made.sendall(huge_frame(size) + b"x" * 1000)
            assert is_closed(made)
    scene.goes_on()
    for made in opened:
        made.close()
    scene.end()


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side hangs up; what it still says is passed over."""
    with suppress(ConnectionError):
        while connection.recv(4096):
            continue
    return True


@pytest.mark.parametrize("identity", [b"x", b"\xff" * 200, b"a:0", b"eve:000000000000029A", b"eve:" + b"0" * 16])
def test_identities_that_no_process_of_ours_has(scene: Scene, identity: bytes) -> None:
    enemy = scene.enemy(identity)
    before = scene.syncer.roads.strangers["identity"]
    for _ in range(50):
        enemy.say(w.StatusQuery(), w.Hello(name="eve", incarnation=666))
    scene.run.until(lambda: scene.syncer.roads.strangers["identity"] >= before + 100, "strangers are counted")
    scene.end()


# ---- recorded frames


class Recorder:
    """Keeps what learners send to the syncer, frame by frame."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[tuple[Road, list[bytes]]] = []
        real = Roads._parse

        def parse(roads: Roads, road: Road, frames: list[Any]) -> Any:
            if roads.server and len(self.heard) < 1000:
                self.heard.append((road, [bytes(frame.buffer) for frame in frames[1:]]))
            return real(roads, road, frames)

        monkeypatch.setattr(Roads, "_parse", parse)

    def replay(self, enemy: Enemy, times: int = 2) -> int:
        """Say all of it again, in order and then backwards; a Goodbye too. Returns how many messages."""
        heard = list(self.heard)
        for _ in range(times):
            for road, frames in heard:
                enemy.frames(road, *frames)
            heard.reverse()
        return times * len(heard)


def test_what_was_recorded_counts_for_nobody_else(
    scene_of: Callable[[int], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another identity says all that an honest learner said, chunks of finished transfers included (E-89)."""
    recorder = Recorder(monkeypatch)
    scene = scene_of(1)
    kinds = {type(decode(frames[0])) for _, frames in recorder.heard}
    assert {w.Hello, w.Contribution, w.LayoutOffer, w.InitialOffer} <= kinds
    enemy = scene.enemy()
    count = recorder.replay(enemy)
    scene.run.until(lambda: scene.syncer.roads.of(EVE).frames_down >= count, "all of it was heard")
    assert scene.syncer.roads.strangers["hello"] >= 2
    assert scene.syncer.machine.fleet.find(EVE) is None
    scene.end()


def test_what_was_recorded_of_a_process_that_has_left_counts_no_more(
    scene_of: Callable[[int], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-11: a ghost: the very frames, under the very identity, when its owner is gone and another of its name here."""
    recorder = Recorder(monkeypatch)
    scene = scene_of(2)
    ghost = node_of(scene.trainers[0]).key
    recorded = [entry for entry in recorder.heard if not isinstance(decode(entry[1][0]), w.Goodbye)]
    scene.trainers[0].stop()
    scene.trainers.append(scene.run.join("a"))
    scene.run.until(lambda: scene.trainers[-1].steps > 3, "a newer process of that name")
    desks = scene.syncer.machine.desk
    scene.run.until(lambda: not any(ghost in desk.intake.held for desk in desks), "the merge of what is held of it")
    scene.goes_on()
    merged = [state.map_.get(ghost) for state in scene.syncer.body.states.values()]
    recorder.heard = recorded
    count = recorder.replay(scene.enemy(ghost), times=1)
    scene.run.until(lambda: scene.syncer.roads.of(ghost).frames_down >= count, "all of it was heard")
    scene.goes_on()
    assert [state.map_.get(ghost) for state in scene.syncer.body.states.values()] == merged
    assert scene.syncer.machine.fleet.find(ghost) is None
    scene.end()
