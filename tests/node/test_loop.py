"""The loop over real sockets: control before bulk, inputs before time, bounded queues, peers that do no harm."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from tests.accept.pace import assert_within
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Heartbeat, Pull
from zdiloco.errors import MalformedFrame
from zdiloco.node import roads as roads_module
from zdiloco.node.clock import monotonic
from zdiloco.node.loop import Loop
from zdiloco.node.params import NetParams
from zdiloco.node.reading import Arrival
from zdiloco.node.roads import Offered, Roads
from zdiloco.node.sockets import Road, dialling, identity_of, serving
from zdiloco.node.transfers import Transfers
from zdiloco.node.wake import Wake
from zdiloco.units import NO_EPOCH, MemberKey
from zdiloco.wire.flow import InboxParams

pytestmark = pytest.mark.net
KEY = MemberKey("a", 7)
BEAT = Heartbeat(epoch=NO_EPOCH)
Context = zmq.Context[zmq.Socket[bytes]]


class Recorder:
    """A role that writes down what happens to it; `transfers` takes what belongs to them."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.bodies: dict[str, bytes] = {}
        self.lost: list[str] = []
        self.transfers: Transfers | None = None
        self.due: float | None = None
        self.bad = False

    def on_message(self, key: MemberKey, message: Any, now: float) -> None:
        if self.bad:
            raise MalformedFrame("the role does not like it")
        if self.transfers is None or not self.transfers.on_message(key, message, now):
            self.seen.append((key, message))

    def on_chunk(self, key: MemberKey, chunk: Any, payload: memoryview, now: float) -> None:
        self.seen.append("chunk")
        if self.transfers is not None:
            self.transfers.on_chunk(key, chunk, payload, now)

    def on_time(self, now: float) -> None:
        self.seen.append("time")
        if self.transfers is not None:
            self.transfers.turn(now)

    def deadline(self) -> float | None:
        return self.due if self.due is not None else self.transfers.deadline() if self.transfers else None

    def arrived(self, key: MemberKey, transfer: str, now: float) -> None:
        assert self.transfers is not None
        self.bodies[transfer] = bytes(self.transfers.inbox.take(key, transfer))
        self.transfers.release(key, transfer, now)

    def on_lost(self, key: MemberKey, transfer: str, reason: str, now: float) -> None:
        self.lost.append(f"{transfer}: {reason}")


class Side:
    """One end: roads, loop, role."""

    def __init__(self, sockets: dict[Road, Any], *, server: bool, budget_bytes: int) -> None:
        self.roads = Roads(sockets, server=server)
        self.wake = Wake()
        self.loop = Loop(self.roads, self.wake, monotonic)
        self.role = Recorder()
        params = InboxParams(budget_bytes=budget_bytes, window_bytes=4096, stall_s=0.2, give_up_s=5.0)
        self.role.transfers = Transfers(
            self.roads, params, self.role.arrived, self.role.on_lost, keeps_early=not server
        )

    @property
    def transfers(self) -> Transfers:
        assert self.role.transfers is not None
        return self.role.transfers


class Pair:
    """A syncer's and a learner's end, turned by hand."""

    def __init__(self, context: Context, port: int, budget_bytes: int = 10**6) -> None:
        net = NetParams(port=port)
        self.up = Side({road: serving(context, road, net) for road in Road}, server=True, budget_bytes=budget_bytes)
        there = {road: dialling(context, road, net, identity_of(KEY)) for road in Road}
        self.down = Side(there, server=False, budget_bytes=budget_bytes)

    def until(self, condition: Callable[[], bool]) -> None:
        ends = monotonic() + 60.0
        while not condition():
            assert monotonic() < ends, (self.up.role.seen[-5:], self.down.role.seen[-5:])
            for side in (self.up, self.down):
                side.loop.turn(side.role)
            self.down.roads.sockets[Road.CONTROL].poll(1)

    def meet(self) -> None:
        """Let both ends know each other on every road, broadcasts included."""
        self.down.roads.send(SYNCER, BEAT)
        self.until(lambda: (KEY, BEAT) in self.up.role.seen)

        def heard() -> bool:
            self.up.roads.cast(BEAT)
            return (SYNCER, BEAT) in self.down.role.seen

        self.until(heard)

    def close(self) -> None:
        for side in (self.up, self.down):
            side.roads.close(0)
            side.wake.close()


@pytest.fixture
def pair(zctx: Context, free_ports: Callable[[int], int]) -> Iterator[Pair]:
    made = Pair(zctx, free_ports(4))
    made.meet()
    yield made
    made.close()


def payload_of(nbytes: int) -> bytes:
    return bytes(i * 7 % 251 for i in range(nbytes))


def test_a_body_goes_up_and_another_comes_down(pair: Pair) -> None:
    for sender, receiver, key_there, key_here in (
        (pair.down, pair.up, KEY, SYNCER), (pair.up, pair.down, SYNCER, KEY),
    ):  # fmt: skip
        payload = payload_of(50_000)
        body = sender.transfers.outbox.add("t/1", payload, 1024)
        receiver.transfers.expect(key_there, body, monotonic())
        pair.until(lambda receiver=receiver: "t/1" in receiver.role.bodies)
        assert receiver.role.bodies["t/1"] == payload
        assert sender.transfers.outbox.counters.resent_bytes == 0
        assert sender.roads.of(key_here).bytes_up > 50_000


def test_a_broadcast_that_overtakes_its_announcement_is_kept(pair: Pair) -> None:
    payload = payload_of(5_000)
    body = pair.up.transfers.outbox.add("u/1", payload, 1024)

    def repaired_or_here() -> bool:
        return "u/1" in pair.down.role.bodies

    pair.up.roads.cast_chunks(pair.up.transfers.outbox.broadcast("u/1"))
    pair.until(lambda: pair.down.role.seen.count("chunk") >= 5)
    pair.down.transfers.expect(SYNCER, body, monotonic(), passive=True)
    pair.until(repaired_or_here)
    assert pair.down.role.bodies["u/1"] == payload
    assert pair.down.transfers.inbox.counters.asked_again == 0


def test_a_body_without_room_waits_its_turn(zctx: Context, free_ports: Callable[[int], int]) -> None:
    pair = Pair(zctx, free_ports(4), budget_bytes=6_000)
    pair.meet()
    now = monotonic()
    for name in ("t/1", "t/2", "t/3"):
        pair.up.transfers.expect(KEY, pair.down.transfers.outbox.add(name, payload_of(5_000), 1024), now)
    pair.up.transfers.expect(KEY, pair.down.transfers.outbox.add("t/4", payload_of(7_000), 1024), now)
    assert pair.up.role.lost == ["t/4: 7000 bytes are more than the whole byte budget"]
    pair.until(lambda: len(pair.up.role.bodies) == 3)
    assert pair.up.transfers.inbox.reserved_bytes == 0
    pair.close()


def test_a_transfer_that_is_gone_is_lost(pair: Pair) -> None:
    body = pair.down.transfers.outbox.add("t/1", payload_of(5_000), 1024)
    pair.down.transfers.outbox.drop("t/1")
    pair.up.transfers.expect(KEY, body, monotonic())
    pair.until(lambda: bool(pair.up.role.lost))
    assert "t/1" in pair.up.role.lost[0]


def test_control_comes_before_bulk(pair: Pair) -> None:
    body = pair.down.transfers.outbox.add("t/1", payload_of(30_000), 1024)
    pair.up.transfers.expect(KEY, body, monotonic())
    pair.up.transfers.turn(monotonic())
    pair.until(lambda: "chunk" in pair.up.role.seen)
    while not pair.up.roads.sockets[Road.BULK].poll(100):
        pair.down.loop.turn(pair.down.role)
    pair.down.roads.send(SYNCER, Pull(fragment=1))
    assert pair.up.roads.sockets[Road.CONTROL].poll(5000)
    pair.up.role.seen.clear()
    pair.up.loop.turn(pair.up.role)
    kinds = [entry if isinstance(entry, str) else "message" for entry in pair.up.role.seen]
    assert kinds[0] == "message"
    assert kinds.index("time") == len(kinds) - 1


def test_what_a_role_says_of_a_peer_is_counted_not_raised(pair: Pair) -> None:
    pair.up.role.bad = True
    pair.down.roads.send(SYNCER, BEAT)
    pair.until(lambda: pair.up.roads.of(KEY).malformed["MalformedFrame"] == 1)


def test_control_without_a_connection_waits_bounded(zctx: Context, free_ports: Callable[[int], int]) -> None:
    there = {road: dialling(zctx, road, NetParams(port=free_ports(4)), identity_of(KEY)) for road in Road}
    lonely = Roads(there, server=False)
    for _ in range(roads_module.CONTROL_WAITING + 9):
        lonely.send(SYNCER, Pull(fragment=1))
        lonely.send(SYNCER, BEAT)
    assert lonely.waiting
    assert lonely.of(SYNCER).dropped == 10
    lonely.forget(SYNCER)
    assert not lonely.waiting
    lonely.close(0)


def test_a_peer_that_is_not_there_costs_nothing(pair: Pair) -> None:
    nobody = MemberKey("nobody", 1)
    pair.up.roads.send(nobody, BEAT)
    pair.up.transfers.outbox.add("t/1", payload_of(3_000), 1024)
    pair.up.roads.send_chunks(nobody, pair.up.transfers.outbox.broadcast("t/1"))
    pair.up.roads.flush(32)
    assert not pair.up.roads.waiting
    assert pair.up.roads.of(nobody).dropped == 4


def test_a_flush_sends_no_more_than_it_may_and_starves_nobody(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    roads, sent, full = pair.up.roads, list[str](), {"p3"}

    def accept(road: Road, key: MemberKey, frames: list[Any], stripe: int) -> Offered:
        if key.name in full:
            return Offered.FULL
        sent.append(key.name)
        return Offered.TAKEN

    monkeypatch.setattr(roads, "_offer", accept)
    pair.up.transfers.outbox.add("t/1", payload_of(3_000), 1024)
    chunks = pair.up.transfers.outbox.broadcast("t/1")
    peers = [MemberKey(f"p{index}", 1) for index in range(10)]
    for key in peers:
        roads.send_chunks(key, chunks)
    for _ in range(3):
        before = len(sent)
        roads.flush(3)
        assert len(sent) - before == 3, "whoever's socket is full does not count"
    assert sorted(sent) == [f"p{index}" for index in range(10) if index != 3]
    full.clear()
    roads.flush(100)
    assert all(sent.count(key.name) == 3 for key in peers)
    assert not roads.waiting


def test_a_stopped_loop_ends_when_nothing_waits(pair: Pair) -> None:
    pair.up.role.due = monotonic()
    pair.up.wake.post(lambda: pair.up.loop.stop(5.0))
    began = monotonic()
    pair.up.loop.run(pair.up.role)
    assert_within(2.0, began)


def test_an_error_of_ours_ends_the_loop(pair: Pair) -> None:
    def explode() -> None:
        raise RuntimeError("a bug")

    pair.up.wake.post(explode)
    with pytest.raises(RuntimeError, match="a bug"):
        pair.up.loop.run(pair.up.role)


@pytest.mark.parametrize(("useful", "passes"), [(0, 1), (50, 1), (500, 3)])
def test_time_passes_though_a_flood_of_what_is_dropped_never_ends(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, useful: int, passes: int
) -> None:
    """Where nearly all of a pass was for nothing, inputs are as good as drained; else it goes on, for a while."""
    taken: list[int] = []
    ticks = iter(range(10**6))
    monkeypatch.setattr(pair.up.loop, "_clock", lambda: len(taken) / 2.5 + 1e-9 * next(ticks))

    def receive(road: Road, most: int) -> Iterator[Any]:
        if road is Road.CONTROL:
            taken.append(most)
            for number in range(most):
                yield Arrival(KEY, BEAT, None) if number < useful else None

    monkeypatch.setattr(pair.up.roads, "receive", receive)
    pair.up.role.seen.clear()
    pair.up.loop.turn(pair.up.role)
    assert len(taken) == passes
    assert pair.up.role.seen[-1] == "time"
