"""A relay on its own thread, with a syncer's end and learners' ends of its roads in the hands of the test.

Rule: nothing here decides; the test says what is published, and looks at what came. Every wait has an end.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.node.relays import Region
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Heartbeat, Hello, Update
from zdiloco.errors import ConfigError
from zdiloco.node import relay as relay_file
from zdiloco.node.params import NetParams
from zdiloco.node.reading import Arrival
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Road, dialling, identity_of, serving
from zdiloco.units import NO_EPOCH, Epoch, MemberKey, Stamp
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.early import Early
from zdiloco.wire.inbox import Inbox
from zdiloco.wire.outbox import ChunkOut, Outbox
from zdiloco.wire.transfer import Chunk, Credit

LIMIT_S = 30.0
CHUNK = 1024
NET: dict[str, Any] = {"stall_s": 8.0, "give_up_s": 30.0, "chunk_bytes": CHUNK, "window_bytes": 8 * CHUNK}
"""However busy the machine is, nobody is impatient but a client that is told to be."""
EPOCH = Epoch(1, 7)
SIGN = "a sign"


class End:
    """One end of four roads. `heard`: what came, with its sender; `chunks`: chunks alike; `signs`: of life, apart."""

    def __init__(self, sockets: dict[Road, Any], *, server: bool) -> None:
        self.roads = Roads(sockets, server=server)
        self.heard: list[tuple[MemberKey, Any]] = []
        self.chunks: list[tuple[Road, MemberKey, Chunk]] = []
        self.signs: set[tuple[Road, MemberKey]] = set()

    def pump(self) -> None:
        """Take what is there, and send what waits."""
        for road in self.roads.sockets:
            if self.roads.server and road in (Road.CONTROL_CAST, Road.BULK_CAST):
                continue
            for arrival in self.roads.receive(road, 1000):
                if arrival is not None:
                    self.take(road, arrival)
        self.roads.flush(100)

    def take(self, road: Road, arrival: Arrival) -> None:
        key, message, payload = arrival
        if isinstance(message, Heartbeat) or (payload is not None and message.transfer == SIGN):
            self.signs.add((road, key))
        elif payload is None:
            self.heard.append((key, message))
        else:
            self.chunks.append((road, key, message))

    def heard_of(self, *kinds: type) -> list[tuple[MemberKey, Any]]:
        """What came of these kinds."""
        return [(key, message) for key, message in self.heard if isinstance(message, kinds)]


def bound(context: Any, road: Road, net: NetParams, hwm: int) -> Any:
    """A syncer's end of a road; the library frees an address a moment after it was let go: wait for that."""
    ends = time.monotonic() + LIMIT_S
    while True:
        try:
            return serving(context, road, net, hwm)
        except ConfigError:
            assert time.monotonic() < ends
            threading.Event().wait(0.01)


class Upstream(End):
    """A syncer's end: publishes, and answers credits for what it holds."""

    def __init__(self, context: Any, net: NetParams) -> None:
        marks = {Road.BULK_CAST: 4000}
        super().__init__({road: bound(context, road, net, marks.get(road, 0)) for road in Road}, server=True)
        self.box = Outbox()
        self.sent: list[tuple[MemberKey, ChunkOut]] = []
        self.silent = False

    def take(self, road: Road, arrival: Arrival) -> None:
        super().take(road, arrival)
        if isinstance(arrival.message, Credit) and not self.silent:
            answer = self.box.on_credit(arrival.key, arrival.message)
            if isinstance(answer, list):
                self.sent += [(arrival.key, chunk) for chunk in answer]
                self.roads.send_chunks(arrival.key, answer)
            else:
                self.roads.send(arrival.key, answer)

    def update(self, fragment: int, version: int, payload: bytes, *, full: bool = False) -> Update:
        """Hold a state, and say how it would be announced."""
        body = self.box.add(f"{'full' if full else 'update'}/{fragment}/{version}", payload, CHUNK)
        return Update(fragment=fragment, stamp=Stamp(EPOCH, version), full=full, codec="bf16", value_bytes=1, body=body)

    def publish(self, update: Update, *, lost: Callable[[int], bool] = lambda index: False) -> None:
        """Broadcast an update; the chunks that `lost` names are not sent."""
        self.roads.cast(update)
        chunks = self.box.broadcast(update.body.transfer)
        self.roads.cast_chunks([chunk for chunk in chunks if not lost(chunk.index)])


class Client(End):
    """A learner's end: expects what it is told to, asks for what it lacks, and says what it likes."""

    def __init__(self, context: Any, net: NetParams, key: MemberKey) -> None:
        super().__init__({road: dialling(context, road, net, identity_of(key)) for road in Road}, server=False)
        self.key = key
        self.inbox = Inbox(net.inbox(2**26))
        self.early = Early()
        self.deaf = False

    def take(self, road: Road, arrival: Arrival) -> None:
        super().take(road, arrival)
        message, now = arrival.message, time.monotonic()
        if isinstance(message, Update):
            self.inbox.expect(SYNCER, message.body, now, passive=not message.full)
            for chunk, payload in self.early.take(message.body.transfer):
                self.inbox.on_chunk(SYNCER, chunk, payload, now)
        if arrival.payload is None or (self.deaf and road is Road.BULK_CAST):
            return
        if self.inbox.on_chunk(SYNCER, message, arrival.payload, now) is Outcome.UNKNOWN:
            self.early.keep(message.transfer, message, arrival.payload)

    def pump(self) -> None:
        super().pump()
        for _, message in self.inbox.turn(time.monotonic()).to_send:
            self.say(message)
        super().pump()

    def say(self, message: Any) -> None:
        """Send a word up."""
        self.roads.send(SYNCER, message)

    @property
    def hello(self) -> Hello:
        """How it introduces itself."""
        return Hello(name=self.key.name, incarnation=self.key.incarnation)

    def has(self, update: Update) -> bool:
        """Whether all of an update is here."""
        assembly = self.inbox.assembly(SYNCER, update.body.transfer)
        return assembly is not None and assembly.complete and assembly.digest_is_right


class Stage:
    """One relay between ends that the test plays; `until` pumps them all. `far`: what the relay dials, if not them."""

    def __init__(
        self, context: Any, free_ports: Callable[[int], int], far: Callable[[NetParams], NetParams], **relay: Any
    ) -> None:
        self.context, self.net = context, NetParams(port=free_ports(4), **NET)
        self.upstream = Upstream(context, self.net)
        self.ends: list[End] = [self.upstream]
        self.region = Region(far(self.net), free_ports(4), **relay)
        self.relay = self.region.relay

    def client(self, name: str, incarnation: int = 1, **net: Any) -> Client:
        """A learner's end behind the relay."""
        made = Client(self.context, replace(self.region.behind, **net), MemberKey(name, incarnation))
        self.ends.append(made)
        return made

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Pump until a condition holds, with an end."""
        ends, pause = time.monotonic() + LIMIT_S, threading.Event()
        while not condition():
            assert self.relay.failure is None, self.relay.failure
            assert time.monotonic() < ends, f"never came: {what}"
            for end in self.ends:
                end.pump()
            pause.wait(0.001)

    def listening(self, *clients: Client) -> None:
        """Until what is published reaches all of these, and what they say reaches upstream."""
        casts = {(road, SYNCER) for road in (Road.CONTROL_CAST, Road.BULK_CAST)}

        def both_ways() -> bool:
            self.upstream.roads.cast(Heartbeat(epoch=EPOCH))
            sign = ChunkOut(None, SIGN, 0, 0, memoryview(b"-"))
            self.upstream.roads.cast_chunks([sign])
            for client in clients:
                client.say(Heartbeat(epoch=NO_EPOCH))
                client.roads.send_chunks(SYNCER, [sign])
            ups = {(road, client.key) for road in (Road.CONTROL, Road.BULK) for client in clients}
            return ups <= self.upstream.signs and all(casts <= client.signs for client in clients)

        self.until(both_ways, "words and chunks both ways")

    def end(self, end: End) -> None:
        """Hang one end up."""
        self.ends.remove(end)
        end.roads.close(0)

    def close(self) -> None:
        """End everything."""
        self.region.stop()
        for end in self.ends:
            end.roads.close(0)


def pattern(chunks: float, seed: int = 0) -> bytes:
    """Bytes that differ from chunk to chunk."""
    return bytes((index * 7 + seed) % 251 for index in range(int(chunks * CHUNK)))


MakeStage = Callable[..., Stage]


@pytest.fixture
def stage_of(zctx: Any, free_ports: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeStage]:
    """stage_of(far, **relay settings) -> a stage, whose relay looks round often; all are ended with the test."""
    monkeypatch.setattr(relay_file, "SWEEP_S", 0.05)
    made: list[Stage] = []

    def make(far: Callable[[NetParams], NetParams] = lambda net: net, **relay: Any) -> Stage:
        made.append(Stage(zctx, free_ports, far, **relay))
        return made[-1]

    yield make
    for stage in made:
        stage.close()
