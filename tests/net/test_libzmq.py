"""What libzmq does without a word, pinned: each row is a loss that our own acks, pulls and beats must make up for.

`tests/net/test_losses.py` has the other half. Where libzmq behaves otherwise one day, a test here says so first.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from zdiloco.chaos.proxy import Proxy
from zdiloco.node import sockets
from zdiloco.node.clock import monotonic
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road, dialling, identity_of, serving
from zdiloco.units import MemberKey

pytestmark = pytest.mark.net
KEY = MemberKey("a", 7)
LIMIT_S = 60.0
QUIET_MS = 400
"""Nothing for so long: nothing more will come. Loopback needs microseconds."""
MIB = 2**20
Socket = zmq.Socket[bytes]
MakeLink = Callable[[int], tuple[Proxy, int]]


class Bench:
    """Makes sockets and closes them all."""

    def __init__(self, context: Any, stack: ExitStack) -> None:
        self._context, self._stack = context, stack

    def keep(self, made: Socket) -> Socket:
        self._stack.callback(lambda: made.close(0))
        return made

    def raw(self, kind: int, **options: int) -> Socket:
        made = self.keep(self._context.socket(kind))
        for name, value in options.items():
            made.setsockopt(getattr(zmq, name), value)
        made.setsockopt(zmq.LINGER, 0)
        return made

    def serve(self, road: Road, port: int) -> Socket:
        return self.keep(serving(self._context, road, NetParams(port=port)))

    def dial(self, road: Road, port: int, key: MemberKey = KEY) -> Socket:
        return self.keep(dialling(self._context, road, NetParams(port=port), identity_of(key)))

    def watch(self, made: Socket) -> "Monitor":
        monitor = Monitor(made)
        self._stack.callback(monitor.close)
        return monitor


class Monitor:
    """The events of a socket."""

    def __init__(self, watched: Socket) -> None:
        self._watched = watched
        self._events = watched.get_monitor_socket()

    def until(self, event: zmq.Event) -> None:
        """Wait for an event, with an end."""
        ends = monotonic() + LIMIT_S
        while monotonic() < ends:
            if self._events.poll(100) and recv_monitor_message(self._events)["event"] == event:
                return
        raise AssertionError(f"never came: {event.name}")

    def count(self, event: zmq.Event) -> int:
        """How often it has happened since the last look."""
        found = 0
        while self._events.poll(0):
            found += recv_monitor_message(self._events)["event"] == event
        return found

    def close(self) -> None:
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._events.close(0)


@pytest.fixture
def bench(zctx: Any) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(zctx, stack)


def accepts(socket: Socket, frames: list[bytes]) -> bool:
    """Whether a socket takes these frames now."""
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def read_all(socket: Socket, until: bytes = b"") -> list[bytes]:
    """The last frames of what comes, until it is quiet or (where given) a message has come."""
    found: list[bytes] = []
    ends = monotonic() + LIMIT_S
    while socket.poll(QUIET_MS if not until else 100) or (until and until not in found):
        assert monotonic() < ends, f"{len(found)} have come"
        while socket.poll(0):
            found.append(socket.recv_multipart()[-1])
    return found


def test_handover_discards_what_the_old_connection_had_not_been_read(bench: Bench, free_ports: Any) -> None:
    """A process reconnects while the syncer is busy: all that it had sent before is gone, without an error."""
    port = free_ports(4)
    router = bench.serve(Road.CONTROL, port)
    arrivals = bench.watch(router)
    old = bench.dial(Road.CONTROL, port)
    arrivals.until(zmq.Event.HANDSHAKE_SUCCEEDED)
    for number in range(20):
        old.send(b"old %d" % number)
    new = bench.dial(Road.CONTROL, port)
    arrivals.until(zmq.Event.HANDSHAKE_SUCCEEDED)
    new.send(b"new")
    assert read_all(router, until=b"new") == [b"new"]


def test_a_router_drops_silently_for_a_full_peer_and_ours_says_so(
    bench: Bench, free_ports: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, count = free_ports(4), 60
    plain = bench.raw(zmq.ROUTER, SNDHWM=1, RCVHWM=1)
    plain.bind(f"tcp://127.0.0.1:{port}")
    reader = bench.raw(zmq.DEALER, SNDHWM=1, RCVHWM=1)
    reader.setsockopt(zmq.IDENTITY, b"me")
    reader.connect(f"tcp://127.0.0.1:{port}")
    reader.send(b"hello")
    assert plain.recv_multipart() == [b"me", b"hello"]
    for number in range(count):
        plain.send_multipart([b"me", bytes([number]) * MIB], zmq.NOBLOCK)  # never an error
    assert len(read_all(reader)) < count

    monkeypatch.setattr(sockets, "BULK", {**sockets.BULK, zmq.SNDHWM: 1, zmq.RCVHWM: 1})
    monkeypatch.setitem(sockets._ROAD, Road.BULK, sockets.BULK)
    ours, peer = bench.serve(Road.BULK, port), bench.dial(Road.BULK, port)
    peer.send(b"hello")
    ours.recv_multipart()
    taken = sum(accepts(ours, [identity_of(KEY), bytes(MIB)]) for _ in range(count))
    assert taken < count
    assert len(read_all(peer)) == taken


@pytest.mark.parametrize("road", [Road.CONTROL, Road.BULK])
def test_a_frame_over_the_limit_ends_the_connection_and_takes_the_next_with_it(
    bench: Bench, free_ports: Any, road: Road
) -> None:
    port = free_ports(4)
    router, dealer = bench.serve(road, port), bench.dial(road, port)
    fate = bench.watch(dealer)
    limit = router.getsockopt(zmq.MAXMSGSIZE)
    for attempt in range(40):  # what is behind it may be sent after the end, if this thread has to wait in between
        first, behind, after = (b"%s %d" % (word, attempt) for word in (b"first", b"behind", b"after"))
        dealer.send(first)
        assert read_all(router, until=first) == [first]
        dealer.send(bytes(limit + 1))
        dealer.send(behind)
        fate.until(zmq.Event.DISCONNECTED)
        fate.until(zmq.Event.HANDSHAKE_SUCCEEDED)
        dealer.send(after)
        arrived = read_all(router, until=after)
        assert set(arrived) <= {behind, after}
        if behind not in arrived:
            return
    raise AssertionError("what was behind the frame arrived every time")


def test_a_publisher_drops_for_a_slow_subscriber(bench: Bench, free_ports: Any) -> None:
    """Whatever the mark is: beyond it and the kernel's buffers, holes, and no error."""
    port, count = free_ports(4), 60
    pub = bench.raw(zmq.PUB, SNDHWM=2)
    pub.bind(f"tcp://127.0.0.1:{port}")
    sub = bench.raw(zmq.SUB, RCVHWM=2)
    sub.setsockopt(zmq.SUBSCRIBE, b"")
    sub.connect(f"tcp://127.0.0.1:{port}")
    heard_by(pub, sub)
    for number in range(count):
        pub.send(bytes([number]) * MIB, zmq.NOBLOCK)
    arrived = [message[0] for message in read_all(sub) if len(message) == MIB]
    assert 0 < len(arrived) < count
    assert arrived == sorted(arrived)


def heard_by(pub: Socket, sub: Socket) -> int:
    """Publish small numbers until the subscriber hears one; returns the first that it heard."""
    for number in range(1, 10_000):
        pub.send(b"%d" % number)
        if sub.poll(5):
            first = int(sub.recv())
            while sub.poll(50):
                sub.recv()
            return first
    raise AssertionError("the subscriber hears nothing")


def test_a_late_subscriber_never_hears_what_came_first(bench: Bench, free_ports: Any) -> None:
    port = free_ports(4)
    pub = bench.serve(Road.CONTROL_CAST, port)
    pub.send(b"0")
    sub = bench.dial(Road.CONTROL_CAST, port)
    assert heard_by(pub, sub) >= 1


SERVER = """
import sys, threading, zmq
socket = zmq.Context().socket(zmq.ROUTER)
socket.bind(sys.argv[1])
print(len(socket.recv_multipart()), flush=True)
threading.Event().wait()
"""


def test_sigkill_loses_what_the_dead_had_taken_in(bench: Bench, free_ports: Any) -> None:
    """All of one burst has left the sender when the receiver dies with it unread; its successor gets none of that."""
    address = f"tcp://127.0.0.1:{free_ports(4)}"
    dealer = bench.raw(zmq.DEALER, RECONNECT_IVL=50)
    fate = bench.watch(dealer)
    dealer.connect(address)
    for number in range(20):
        dealer.send(b"%d" % number)
    server = subprocess.Popen([sys.executable, "-c", SERVER, address], stdout=subprocess.PIPE, text=True)
    alarm = threading.Timer(LIMIT_S, server.kill)
    alarm.start()
    try:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline()) == 2  # it has read the first one
    finally:
        alarm.cancel()
        alarm.join()
        server.kill()
        server.communicate()
    fate.until(zmq.Event.DISCONNECTED)
    successor = bench.raw(zmq.ROUTER)
    successor.bind(address)
    fate.until(zmq.Event.HANDSHAKE_SUCCEEDED)
    dealer.send(b"after")
    arrived = read_all(successor, until=b"after")
    assert b"1" not in arrived
    assert len(arrived) < 20


def test_a_heartbeat_at_the_receiver_of_a_slow_chunk_cuts_it_and_ours_have_none_there(
    bench: Bench, free_ports: Any, link_to: MakeLink
) -> None:
    """A megabyte that takes 2 s: with a ZMTP heartbeat of 0.5 s it is lost; on our bulk roads it arrives."""
    for road in (Road.BULK, Road.BULK_CAST):
        assert not {zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TIMEOUT, zmq.HEARTBEAT_TTL} & set(sockets._ROAD[road])
        for made in (bench.serve(road, port := free_ports(4)), bench.dial(road, port)):
            assert made.getsockopt(zmq.HEARTBEAT_IVL) == 0
    for beats in (True, False):
        port = free_ports(4)  # of its own: a closed socket gives its port free a little later
        proxy, near = link_to(port)
        proxy.slow(1, MIB / 2)
        router = bench.raw(zmq.ROUTER, HEARTBEAT_IVL=250, HEARTBEAT_TIMEOUT=500) if beats else None
        if router:
            router.bind(f"tcp://127.0.0.1:{port + 1}")
        else:
            router = bench.serve(Road.BULK, port)
        fate = bench.watch(router)
        dealer = bench.dial(Road.BULK, near)
        fate.until(zmq.Event.HANDSHAKE_SUCCEEDED)
        dealer.send(bytes(MIB))
        if beats:
            fate.until(zmq.Event.DISCONNECTED)
            assert not router.poll(0)
        else:
            assert router.poll(LIMIT_S * 1000)
            assert len(router.recv_multipart()[-1]) == MIB
            assert fate.count(zmq.Event.DISCONNECTED) == 0
        dealer.close(0)
        fate.close()
        router.close(0)


def test_a_black_hole_is_not_noticed_without_a_heartbeat_and_is_with_one(
    bench: Bench, free_ports: Any, link_to: MakeLink
) -> None:
    """No FIN comes. A plain socket sees nothing for as long as we look; one with a heartbeat is cut."""
    port = free_ports(4)
    proxy, near = link_to(port)
    router = bench.raw(zmq.ROUTER)
    router.bind(f"tcp://127.0.0.1:{port}")
    plain, beating = bench.raw(zmq.DEALER), bench.raw(zmq.DEALER, HEARTBEAT_IVL=200, HEARTBEAT_TIMEOUT=500)
    fates = []
    for dealer in (plain, beating):
        fates.append(bench.watch(dealer))
        dealer.connect(f"tcp://127.0.0.1:{near}")
        fates[-1].until(zmq.Event.HANDSHAKE_SUCCEEDED)
        dealer.send(b"hello")
        router.recv_multipart()
    proxy.stop((0,))
    fates[1].until(zmq.Event.DISCONNECTED)
    assert fates[0].count(zmq.Event.DISCONNECTED) == 0
    plain.send(b"through")
    proxy.heal((0,))
    assert b"through" in read_all(router, until=b"through")
