"""Roads without a network: what waits is bounded, and nobody speaks for somebody else."""

from typing import Any

import pytest
import zmq

from zdiloco.core.messages import Heartbeat, Hello
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Road, identity_of
from zdiloco.units import NO_EPOCH, Epoch, MemberKey
from zdiloco.wire.encoding import encode
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit

KEY = MemberKey("a", 7)


class Wire:
    """A socket: takes what is sent while it has room, and hands out what lies in `inbound`."""

    def __init__(self) -> None:
        self.has_room = False
        self.sent: list[list[bytes]] = []
        self.inbound: list[list[bytes]] = []

    def send_multipart(self, frames: list[Any], *options: Any, copy: bool) -> None:
        if not self.has_room:
            raise zmq.Again
        self.sent.append([bytes(frame) for frame in frames])

    def recv_multipart(self, *options: Any, copy: bool) -> list[zmq.Frame]:
        if not self.inbound:
            raise zmq.Again
        return [zmq.Frame(frame) for frame in self.inbound.pop(0)]


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def roads(wire: Wire) -> Roads:
    sockets: Any = {road: wire for road in (Road.CONTROL, Road.BULK)}
    return Roads(sockets, server=True)


def test_a_chunk_waits_once_however_often_it_is_asked_for(roads: Roads, wire: Wire) -> None:
    """A peer names the same chunks again and again, and reads nothing."""
    outbox = Outbox()
    payload = bytes(i % 251 for i in range(10_000))
    for name in ("t/1", "t/2"):
        body = outbox.add(name, payload, 1024)
    everything = Credit(transfer="t/1", upto=body.nbytes, received=0, missing=((0, 10),))
    for name in ("t/1", "t/2"):
        for missing in [((0, 10),), ((2, 3),), ((9, 1),)] * 100:
            chunks = outbox.on_credit(KEY, Credit(transfer=name, upto=body.nbytes, received=0, missing=missing))
            assert isinstance(chunks, list)
            roads.send_chunks(KEY, chunks)
            roads.flush(32)
    assert len(roads._bulk[KEY]) == 20
    wire.has_room = True
    roads.flush(100)
    assert [frames[2][:4] for frames in wire.sent] == [payload[i * 1024 : i * 1024 + 4] for i in range(10)] * 2
    assert not roads.waiting
    chunks = outbox.on_credit(KEY, everything)
    assert isinstance(chunks, list)
    roads.send_chunks(KEY, chunks)
    roads.flush(100)
    assert len(wire.sent) == 30, "what was sent may be asked for again"


def test_a_road_that_is_dialled_anew_while_it_is_read_goes_on(roads: Roads, wire: Wire) -> None:
    """An arrival may make a learner start over, with sockets of its own."""
    other: Any = Wire()
    beats = [encode(Heartbeat(epoch=Epoch(counter, 1))) for counter in range(3)]
    wire.inbound = [[identity_of(KEY), beat] for beat in beats[:2]]
    other.inbound = [[identity_of(KEY), beats[2]]]
    heard = []
    for arrival in roads.receive(Road.CONTROL, 10):
        assert arrival is not None
        heard.append(arrival.message.epoch.counter)
        roads.sockets[Road.CONTROL] = other
    assert heard == [0, 2]


def test_a_dropped_transfer_leaves_the_others_in_the_queue(roads: Roads, wire: Wire) -> None:
    outbox = Outbox()
    for name in ("t/1", "t/2"):
        outbox.add(name, bytes(3_000), 1024)
        roads.send_chunks(KEY, outbox.broadcast(name))
    roads.drop_transfer(KEY, "t/1")
    assert [transfer for transfer, _ in roads._bulk[KEY]] == ["t/2"] * 3
    roads.drop_transfer(KEY, "t/2")
    assert not roads.waiting


def receive(roads: Roads, wire: Wire, identity: bytes, message: Any) -> list[Any]:
    wire.inbound.append([identity, encode(message)])
    return list(roads.receive(Road.CONTROL, 10))


def test_a_hello_for_somebody_else_is_dropped_and_counted(roads: Roads, wire: Wire) -> None:
    hello = Hello(name="a", incarnation=7)
    [arrival] = receive(roads, wire, identity_of(KEY), hello)
    assert (arrival.key, arrival.message) == (KEY, hello)
    for stranger in (Hello(name="a", incarnation=8), Hello(name="b", incarnation=7)):
        assert receive(roads, wire, identity_of(KEY), stranger) == [None]
    assert roads.strangers == {"hello": 2}


def test_an_identity_that_is_not_exactly_ours_is_dropped_and_counted(roads: Roads, wire: Wire) -> None:
    beat = Heartbeat(epoch=NO_EPOCH)
    for identity in (b"a:00000000000000AB", b"a:0000000000000000", b"a:+00000000000000b", b"\x1b[2J:0000000000000007"):
        assert receive(roads, wire, identity, beat) == [None]
    assert roads.strangers == {"identity": 4}
    assert roads.counts == {}


def test_a_payload_that_is_let_go_waits_for_nobody(roads: Roads, wire: Wire) -> None:
    """Two peers asked for it and read nothing: their chunks of it go, those of another payload stay."""
    outbox = Outbox()
    for name in ("t/1", "t/2"):
        outbox.add(name, bytes(3000), 1024)
        for key in (KEY, MemberKey("b", 8)):
            chunks = outbox.on_credit(key, Credit(transfer=name, upto=3000, received=0))
            assert isinstance(chunks, list)
            roads.send_chunks(key, chunks)
    roads.drop_everywhere("t/1")
    wire.has_room = True
    roads.flush(100)
    assert len(wire.sent) == 6
    assert all(b"t/2" in frames[1] for frames in wire.sent)
    roads.drop_everywhere("t/2")
    assert not roads.waiting
