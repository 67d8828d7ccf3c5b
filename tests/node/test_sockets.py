"""Sockets: every option is really set, identities tell processes apart, what cannot be bound is said in one line."""

from collections.abc import Callable

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from zdiloco.errors import ConfigError
from zdiloco.node import sockets
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road, address_of, bulk_hwm, cast_hwm, dialling, identity_of, serving, stripe_marks
from zdiloco.units import MemberKey

KEY = MemberKey("eu-west-1", 0xABC)


@pytest.mark.parametrize("key", [KEY, MemberKey("a.b_c-d", 2**64 - 1), MemberKey("x" * 64, 1)])
def test_identities_come_back(key: MemberKey) -> None:
    for stripe in range(4):
        for token in ("", "0123456789abcdef"):
            assert address_of(identity_of(key, stripe, token)) == (key, stripe, token)
            assert len(identity_of(key, stripe, token)) <= 255


STRANGE = [
    b"", b"\x00\x01\x02", b"name", b"name:12", b":0123456789abcdef", b"n:" + b"g" * 16, b"n:" + b"0" * 16,
    b"n:0123456789ABCDEF", b"n:0123456789abcde_", b"n:+123456789abcdef", b"n: 123456789abcdef", b"n:0123456789abcdef\n",
    b"n:0x23456789abcdef", b"n:00000000000000001", b"x" * 65 + b":0123456789abcdef", b"\x1b[31m:0123456789abcdef",
    "n:\u0661123456789abcdef".encode(), b"n\xff:0123456789abcdef", b"n:m:0123456789abcdef", b"syncer:0000000000000000",
    b"n:0123456789abcdef/0", b"n:0123456789abcdef/4", b"n:0123456789abcdef/", b"n:0123456789abcdef/01", b"n:1/1",
    b"n:0123456789abcdef.", b"n:0123456789abcdef.0123456789abcde", b"n:0123456789abcdef.0123456789ABCDEF",
    b"n:0123456789abcdef/1.0123456789abcdef",
]  # fmt: skip


@pytest.mark.parametrize("identity", STRANGE)
def test_strange_identities_are_nobody(identity: bytes) -> None:
    assert address_of(identity) is None


def test_several_stripes_have_low_send_marks() -> None:
    assert stripe_marks(Road.BULK, NetParams()) == {}
    assert stripe_marks(Road.CONTROL, NetParams(stripes=4)) == {}
    assert stripe_marks(Road.BULK, NetParams(stripes=2)) == {zmq.SNDHWM: 2}
    assert stripe_marks(Road.BULK, NetParams(stripes=2, chunk_bytes=2**18)) == {zmq.SNDHWM: 8}
    assert stripe_marks(Road.BULK, NetParams(stripes=4, chunk_bytes=1024)) == {zmq.SNDHWM: sockets.BULK_HWM}
    assert stripe_marks(Road.BULK, NetParams(stripes=4, chunk_bytes=2**23)) == {zmq.SNDHWM: 2}


def test_the_broadcast_holds_two_updates() -> None:
    assert cast_hwm(0, 2**20) == sockets.BULK_HWM
    assert cast_hwm(2**30, 2**20) >= 2 * 2**10
    assert cast_hwm(4 * 2**40, 1024) == sockets.MOST_HWM, "whatever a donor's layout says, it fits the option"


def test_who_reads_nothing_holds_two_windows() -> None:
    assert bulk_hwm(2**23, 2**20) == 18
    assert bulk_hwm(2**28, 1024) == sockets.BULK_HWM
    assert bulk_hwm(2**20, 2**20) > 1


@pytest.mark.net
@pytest.mark.parametrize("road", list(Road))
def test_options_are_set(zctx: "zmq.Context[zmq.Socket[bytes]]", free_ports: Callable[[int], int], road: Road) -> None:
    params = NetParams(port=free_ports(4))
    here = serving(zctx, road, params, 777)
    there = dialling(zctx, road, params, identity_of(KEY), 888)
    wanted = {**sockets.EVERY, **sockets._ROAD[road]}
    del wanted[zmq.SNDHWM], wanted[zmq.RCVHWM]
    assert {option: there.getsockopt(option) for option in wanted} == wanted
    heard = sockets.SUBSCRIPTIONS if road in (Road.CONTROL_CAST, Road.BULK_CAST) else {}
    assert {option: here.getsockopt(option) for option in wanted} == {**wanted, **heard}
    assert here.getsockopt(zmq.SNDHWM) == 777
    assert there.getsockopt(zmq.RCVHWM) == 888
    assert {option: there.getsockopt(option) for option in sockets.DIALLING} == sockets.DIALLING
    if road in (Road.CONTROL, Road.BULK):
        assert there.getsockopt(zmq.IMMEDIATE) == 1
        assert there.getsockopt(zmq.IDENTITY) == identity_of(KEY)
    assert here.getsockopt(zmq.HEARTBEAT_IVL) == 0, "a server beats to nobody"
    beats = {option: there.getsockopt(option) for option in sockets.BEATING}
    assert (beats == sockets.BEATING) is (road in (Road.CONTROL, Road.CONTROL_CAST))
    assert (beats[zmq.HEARTBEAT_IVL] > 0) is (road in (Road.CONTROL, Road.CONTROL_CAST))
    here.close(0)
    there.close(0)


@pytest.mark.net
def test_a_router_refuses_what_it_cannot_deliver(
    zctx: "zmq.Context[zmq.Socket[bytes]]", free_ports: Callable[[int], int]
) -> None:
    router = serving(zctx, Road.CONTROL, NetParams(port=free_ports(4)))
    with pytest.raises(zmq.ZMQError) as caught:
        router.send_multipart([b"nobody", b"x"], zmq.NOBLOCK)
    assert caught.value.errno == zmq.EHOSTUNREACH
    router.close(0)


@pytest.mark.net
def test_a_taken_port_is_said_in_one_line(
    zctx: "zmq.Context[zmq.Socket[bytes]]", free_ports: Callable[[int], int]
) -> None:
    params = NetParams(port=free_ports(4))
    first = serving(zctx, Road.BULK, params)
    with pytest.raises(ConfigError, match=rf"tcp://127.0.0.1:{params.port + 1} is taken.*net.port") as caught:
        serving(zctx, Road.BULK, params)
    assert "\n" not in str(caught.value)
    first.close(0)


@pytest.mark.net
def test_an_address_that_is_not_ours(zctx: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with pytest.raises(ConfigError, match="cannot be bound"):
        serving(zctx, Road.BULK, NetParams(listen="203.0.113.7", insecure=True))


def test_only_loopback_without_keys() -> None:
    with pytest.raises(ConfigError, match=r"net.insecure = true"):
        NetParams(listen="192.168.0.1")


def test_an_old_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    with pytest.raises(ConfigError, match=r"at least 4\.3\.5"):
        sockets.check_library()


@pytest.mark.net
def test_who_waits_for_a_syncer_dials_soon_and_not_in_step(
    zctx: "zmq.Context[zmq.Socket[bytes]]", free_ports: Callable[[int], int]
) -> None:
    """However long nobody is there, the next try is at most half a second away, and drawn anew each time."""
    there = dialling(zctx, Road.CONTROL, NetParams(port=free_ports(4)), identity_of(KEY))
    monitor = there.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED)
    waits = []
    while len(waits) < 4:
        assert monitor.poll(2_000), waits
        waits.append(recv_monitor_message(monitor)["value"])
    there.disable_monitor()
    for socket in (monitor, there):
        socket.close(0)
    assert all(250 <= wait < 500 for wait in waits), waits
    assert len(set(waits)) > 1, waits
