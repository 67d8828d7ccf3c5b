"""Both sides on loopback: what is asked is answered, in bounds, and whoever means harm gets nothing."""

import socket
from collections.abc import Callable

import pytest

from tests.doctor.parts import LIMIT_S, dialled, far_side, talker
from zdiloco.doctor import dial
from zdiloco.doctor import far as fars
from zdiloco.doctor.dial import Met, dial_port, measure_link, pull, push
from zdiloco.doctor.far import MOST_AT_ONCE, FarSide
from zdiloco.doctor.lines import About, Ask, Took, line_of
from zdiloco.doctor.streams import Lines
from zdiloco.errors import ConfigError
from zdiloco.node.clock import monotonic
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road

pytestmark = pytest.mark.net
Ports = Callable[[int], int]


def test_every_road_is_met_with_its_round_trip_and_clock(free_ports: Ports) -> None:
    port = free_ports(4)
    with far_side(port) as far:
        found = [dial_port(dialled(port), road) for road in Road]
    assert [(each.road, each.port, each.met) for each in found] == [
        (road, port + number, Met.DOCTOR) for number, road in enumerate(Road)
    ]
    for each in found:
        assert each.rtt_s is not None
        assert each.skew is not None
        assert abs(each.skew.ahead_s) <= each.skew.unsure_s + 0.01
        assert each.about is not None
        assert each.about.road == each.road
    assert far.visitors == ["127.0.0.1"]


def test_a_link_is_measured_both_ways(free_ports: Ports) -> None:
    port = free_ports(4)
    with far_side(port):
        link = measure_link(dialled(port), 0.001)
    assert link.passes is None
    assert link.up_bytes_s is not None
    assert link.down_bytes_s is not None
    assert min(link.up_bytes_s, link.down_bytes_s) > 1e5
    assert link.mtu is None or link.mtu > 1400


@pytest.mark.parametrize(("passing", "wanted"), [({1220, 1000}, 1220), (set(), 0), ({0}, None), ("later", None)])
def test_a_hole_for_large_packets_is_one_only_if_full_ones_vanish_twice(
    passing: set[int] | str, wanted: int | None, free_ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`later`: the first burst was held up by something else."""
    tried: list[int] = []

    def passes(to: object, port: int, wait_s: float, segment: int) -> bool:
        tried.append(segment)
        return len(tried) > 1 if passing == "later" else segment in passing

    monkeypatch.setattr(dial, "_passes", passes)
    port = free_ports(4)
    with far_side(port):
        link = measure_link(dialled(port), 0.001)
    assert link.passes == wanted
    assert (link.up_bytes_s is None) == (wanted is not None)


def test_streams_end_with_their_seconds_however_much_was_asked_for(free_ports: Ports) -> None:
    port = free_ports(4)
    to = dialled(port)
    with far_side(port):
        began = monotonic()
        assert push(to, port, 2**28, 0.2) > 0
        assert pull(to, port, 2**28, 0.2) > 0
        assert monotonic() - began < LIMIT_S


def test_the_ports_are_free_again(free_ports: Ports) -> None:
    port = free_ports(4)
    for _ in range(2):
        with far_side(port):
            pass
    with (
        socket.create_server(("127.0.0.1", port + 3)),
        pytest.raises(ConfigError, match=f"127.0.0.1:{port + 3} cannot"),
    ):
        FarSide(NetParams(port=port))
    with far_side(port):
        pass


def test_it_ends_with_its_time(free_ports: Ports) -> None:
    FarSide(NetParams(port=free_ports(4))).serve(0.01)


@pytest.mark.parametrize(
    "says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"{\n", b'{"doctor":1}\n', b"{" * 5000, b"\xff\0"]
)
def test_somebody_else_at_a_port_is_told_from_a_doctor(says: bytes, free_ports: Ports) -> None:
    port = free_ports(4)
    with talker(port, says):
        found = dial_port(dialled(port, timeout_s=0.5), Road.CONTROL)
    assert found.met is (Met.MUTE if says[:1] == b"\xff" else Met.FOREIGN)


def test_a_connection_on_which_nothing_comes_is_given_up(free_ports: Ports) -> None:
    port = free_ports(4)
    with talker(port, b""):
        assert dial_port(dialled(port, timeout_s=0.2), Road.CONTROL).met is Met.MUTE


def test_nobody_at_all(free_ports: Ports) -> None:
    port = free_ports(4)
    assert dial_port(dialled(port), Road.BULK).met is Met.REFUSED


def test_another_order_of_ports_is_seen(free_ports: Ports) -> None:
    """The far side listens one port higher: what is dialled as bulk is its control."""
    port = free_ports(5)
    with far_side(port + 1):
        found = dial_port(dialled(port), Road.BULK)
    assert found.met is Met.FOREIGN
    assert "serves the road control" in found.said


def heard(port: int, data: bytes) -> bytes:
    """What a doctor says after its greeting to whoever sends this."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as sock:
        sock.settimeout(LIMIT_S)
        assert Lines(sock).read(About, monotonic() + LIMIT_S) is not None
        sock.sendall(data)
        answer = b""
        try:
            while piece := sock.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 10, b"\n", b"GET / HTTP/1.1\r\n\r\n", b"{" * 3000, b'{"ask":"lunch"}\n',
        b'{"ask":"give","nbytes":1000000000000,"seconds":1}\n', b'{"ask":"give","nbytes":1000,"seconds":1000}\n',
    ],
)  # fmt: skip
def test_what_does_not_parse_is_hung_up_on(data: bytes, free_ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fars, "IDLE_S", 1.0)
    port = free_ports(4)
    with far_side(port):
        assert heard(port, data) == b""
        assert dial_port(dialled(port), Road.CONTROL).met is Met.DOCTOR


def test_a_stream_that_stops_is_counted_as_it_is(free_ports: Ports) -> None:
    port = free_ports(4)
    with far_side(port):
        answer = heard(port, line_of(Ask(ask="take", nbytes=1000, seconds=0.2)) + b"x" * 10)
    assert b'"nbytes":10,' in answer


def test_what_was_not_asked_for_is_read_all_the_same_so_that_the_answer_is_not_lost(free_ports: Ports) -> None:
    """A connection closed with bytes unread is reset, which may overtake the answer."""
    port = free_ports(4)
    with far_side(port), socket.create_connection(("127.0.0.1", port), LIMIT_S) as sock:
        lines = Lines(sock)
        assert lines.read(About, monotonic() + LIMIT_S) is not None
        sock.sendall(line_of(Ask(ask="take", nbytes=1000, seconds=10.0)) + bytes(2000))
        sock.shutdown(socket.SHUT_WR)
        took = lines.read(Took, monotonic() + LIMIT_S)
        assert took is not None
        assert took.nbytes == 1000
        sock.settimeout(LIMIT_S)
        assert sock.recv(1) == b""


def test_more_connections_than_there_is_room_for_are_hung_up_on(free_ports: Ports) -> None:
    port, held = free_ports(4), []
    with far_side(port):
        for _ in range(MOST_AT_ONCE):
            held.append(socket.create_connection(("127.0.0.1", port), LIMIT_S))
            assert Lines(held[-1]).read(About, monotonic() + LIMIT_S) is not None
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as one_more:
            assert Lines(one_more).read(About, monotonic() + LIMIT_S) is None
        for sock in held:
            sock.sendall(line_of(Ask(ask="take")))
            assert Lines(sock).read(Took, monotonic() + LIMIT_S) is not None
            sock.close()
