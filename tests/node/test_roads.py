"""Roads without a network: what waits is bounded, and nobody speaks for somebody else."""

import random
from collections import Counter
from typing import Any

import pytest
import zmq

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Heartbeat, Hello
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Road, identity_of
from zdiloco.units import NO_EPOCH, Epoch, MemberKey
from zdiloco.wire.encoding import encode
from zdiloco.wire.outbox import ChunkOut, Outbox
from zdiloco.wire.transfer import Chunk, Credit

KEY = MemberKey("a", 7)


class Wire:
    """A socket: takes what is sent while it has room, and hands out what lies in `inbound`."""

    def __init__(self) -> None:
        self.has_room = False
        self.sent: list[list[bytes]] = []
        self.inbound: list[list[bytes]] = []
        self.full: set[bytes] = set()
        self.nowhere: set[bytes] = set()

    def send_multipart(self, frames: list[Any], *options: Any, copy: bool) -> None:
        if frames[0] in self.nowhere:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if not self.has_room or frames[0] in self.full:
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


@pytest.mark.parametrize("seed", range(10))
def test_what_waits_is_counted_without_being_looked_through(roads: Roads, wire: Wire, seed: int) -> None:
    """Queued, again with another length, sent, sent to nobody, dropped, forgotten: the sums are those of the queues."""
    rng, keys = random.Random(seed), [KEY, MemberKey("b", 8), MemberKey("c", 9)]
    for _ in range(300):
        key, name, what = rng.choice(keys), rng.choice("xyz"), rng.random()
        if what < 0.6:
            view = memoryview(bytes(rng.randrange(5)))
            roads.send_chunks(key, [ChunkOut(key, name, rng.randrange(4), 0, view)])
        elif what < 0.8:
            wire.has_room, wire.nowhere = rng.random() < 0.5, {identity_of(rng.choice(keys))}
            roads.flush(rng.randrange(4))
        elif what < 0.9:
            roads.drop_transfer(key, name)
        elif what < 0.95:
            roads.drop_everywhere(name)
        else:
            roads.forget(key)
        sums = Counter[str]()
        for waiting in roads._bulk.values():
            for chunk in waiting.values():
                sums[chunk.transfer] += chunk.view.nbytes
        assert dict(roads.waiting_of) == {transfer: nbytes for transfer, nbytes in sums.items() if nbytes}
        assert roads.waiting_bytes == sums.total()


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


def chunks_of(roads: Roads, count: int, key: MemberKey = KEY) -> Outbox:
    """So many chunks wait for a peer."""
    outbox = Outbox()
    outbox.add("t/1", bytes(1024 * count), 1024)
    roads.send_chunks(key, outbox.broadcast("t/1"))
    return outbox


def test_chunks_come_on_every_stripe_and_words_on_none(roads: Roads, wire: Wire) -> None:
    chunk = Chunk(transfer="t", index=0, checksum=0)
    for stripe in range(4):
        wire.inbound.append([identity_of(KEY, stripe), encode(chunk), b"x"])
    found = list(roads.receive(Road.BULK, 10))
    assert [arrival and arrival.key for arrival in found] == [KEY] * 4
    assert roads.counts[KEY].frames_down == 8
    for stripe in range(1, 4):
        assert receive(roads, wire, identity_of(KEY, stripe), Hello(name="a", incarnation=7)) == [None]
    assert roads.strangers == {"identity": 3}


def test_chunks_go_down_on_the_stripes_that_are_there_and_have_room(wire: Wire) -> None:
    sockets: Any = {Road.BULK: wire}
    roads = Roads(sockets, server=True, most_stripes=4)
    wire.has_room, wire.nowhere, wire.full = True, {identity_of(KEY, 3)}, {identity_of(KEY, 1)}
    chunks_of(roads, 6)
    roads.flush(100)
    assert [frames[0] for frames in wire.sent] == [identity_of(KEY, stripe) for stripe in (0, 2, 0, 2, 0, 2)]
    wire.full |= {identity_of(KEY, 0), identity_of(KEY, 2)}
    outbox = chunks_of(roads, 1)
    roads.flush(100)
    assert roads.waiting, "all that are there are full"
    wire.nowhere |= wire.full
    roads.flush(100)
    assert not roads.waiting, "nobody is there any more: sent, and lost"
    assert roads.of(KEY).dropped == 1
    assert outbox.counters.handed_out_bytes == 1024


def test_a_learner_with_fewer_stripes_than_are_tried_is_served_on_though_all_of_its_own_rest(wire: Wire) -> None:
    """Those that it has never opened do not rest, and carry nothing."""
    sockets: Any = {Road.BULK: wire}
    roads = Roads(sockets, server=True, most_stripes=4)
    wire.has_room, wire.nowhere = True, {identity_of(KEY, stripe) for stripe in (1, 2, 3)}
    for _ in range(3):
        chunks_of(roads, 4)  # the same again
        roads.flush(100)
    assert [frames[0] for frames in wire.sent] == [identity_of(KEY)] * 12
    assert roads.of(KEY).dropped == 0
    wire.full = {identity_of(KEY)}
    chunks_of(roads, 1)
    roads.flush(100)
    assert roads.waiting, "it has no room now: that is no loss"


def test_a_learner_sends_and_listens_on_all_its_stripes(wire: Wire) -> None:
    sockets: Any = {Road.CONTROL: Wire(), Road.BULK: wire}
    roads = Roads(sockets, server=False)
    others: Any = [Wire(), Wire()]
    roads.more = others
    wires = [wire, *others]
    for each in (wires[0], wires[2]):
        each.has_room = True
    chunks_of(roads, 4, SYNCER)
    roads.flush(100)
    assert [len(each.sent) for each in wires] == [2, 0, 2]
    chunk = encode(Chunk(transfer="t", index=0, checksum=0))
    for each in wires:
        each.inbound = [[chunk, b"x"], [chunk, b"y"]]
    assert len(list(roads.receive(Road.BULK, 10))) == 6


def test_a_stripe_whose_chunk_is_asked_for_again_is_not_polled(wire: Wire) -> None:
    sockets: Any = {Road.BULK: wire}
    roads = Roads(sockets, server=False)
    more: Any = Wire()
    roads.more = [more]
    wire.has_room = more.has_room = True
    outbox = Outbox()
    body = outbox.add("t/1", bytes(4096), 1024)
    for missing in ((), ((1, 1),)):
        chunks = outbox.on_credit(SYNCER, Credit(transfer="t/1", upto=body.nbytes, received=0, missing=missing))
        assert isinstance(chunks, list)
        roads.send_chunks(SYNCER, chunks)
        roads.flush(100)
    assert [len(each.sent) for each in (wire, more)] == [3, 2], "chunk 1 goes by the other one now"
    assert roads.outlets(Road.BULK) == [wire]
