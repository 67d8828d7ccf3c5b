"""Connections of a server: counted as they come and go, never too many, and cut off where they say nothing."""

import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from zdiloco.node.clock import monotonic
from zdiloco.node.connections import OWN, Connections, room_for
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road, serving

LIMIT_S = 60.0


class Server:
    """A control socket that counts its connections."""

    def __init__(self, context: Any, port: int, **net: Any) -> None:
        self.net = NetParams(port=port, **net)
        self.connections = Connections(context, self.net, monotonic)
        self.socket = serving(context, Road.CONTROL, self.net, connections=self.connections)
        self.raw: list[socket.socket] = []

    def dial(self) -> socket.socket:
        self.raw.append(socket.create_connection(("127.0.0.1", self.net.port), timeout=LIMIT_S))
        return self.raw[-1]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < ends, f"never came: {what}"
            self.connections.turn()
            self.socket.poll(5)

    def close(self) -> None:
        for each in self.raw:
            each.close()
        self.connections.close()
        self.socket.close(0)


@pytest.fixture
def server_of(zctx: Any, free_ports: Callable[[int], int]) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(**net: Any) -> Server:
        made.append(Server(zctx, free_ports(4), **net))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.net
def test_connections_are_counted_as_they_come_and_go(server_of: Callable[..., Server]) -> None:
    server = server_of()
    for _ in range(5):
        server.dial()
    server.until(lambda: server.connections.count == 5, "five are here")
    for each in server.raw:
        each.close()
    server.until(lambda: server.connections.count == 0, "all are gone")


@pytest.mark.net
def test_those_beyond_the_most_are_hung_up_and_the_others_stay(
    server_of: Callable[..., Server], zctx: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_of(most_connections=8)
    peer = zctx.socket(zmq.DEALER)
    peer.connect(f"tcp://127.0.0.1:{server.net.port}")
    peer.send(b"first")
    server.until(lambda: bool(server.socket.poll(0)), "its word")
    assert server.socket.recv_multipart()[1] == b"first"
    with caplog.at_level(logging.WARNING, "zdiloco.node.connections"):
        for _ in range(30):
            server.dial()
        server.until(lambda: server.connections.hung_up == 23, "the rest is hung up")
    assert server.connections.count == 8
    assert len(caplog.records) == 1
    peer.send(b"still here")
    server.until(lambda: bool(server.socket.poll(0)), "its word")
    assert server.socket.recv_multipart()[1] == b"still here"
    for each in server.raw:
        each.close()
    server.until(lambda: server.connections.count == 1, "room again")
    peer.close(0)


@pytest.mark.net
def test_an_end_that_was_not_told_keeps_nobody_out(server_of: Callable[..., Server], tmp_path: Path) -> None:
    """What is counted is looked at before anybody is hung up."""
    server = server_of(most_connections=4)
    with (tmp_path / "file").open("w") as file:
        server.connections._all[0].live = {file.fileno(), 10**6, 10**6 + 1}
        for _ in range(4):
            server.dial()
        server.until(lambda: server.connections.count == 4, "all four are here")
    assert server.connections.hung_up == 0


@pytest.mark.net
@pytest.mark.parametrize("trickles", [False, True])
def test_half_open_handshakes_are_cut_off(server_of: Callable[..., Server], trickles: bool) -> None:
    """Also one that goes on, byte by byte: the time counts from its beginning."""
    server = server_of(handshake_s=0.5)
    assert server.socket.getsockopt(zmq.HANDSHAKE_IVL) == 500
    began = time.monotonic()
    made = server.dial()
    made.settimeout(0.05)
    words = iter(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(23, b"\0") + bytes(2000))
    ended = False
    while not ended:
        assert time.monotonic() < began + LIMIT_S
        try:
            if trickles:
                made.send(bytes([next(words)]))
            ended = not made.recv(1024)
        except TimeoutError:
            continue
        except ConnectionError:
            ended = True
    assert time.monotonic() - began >= 0.45
    server.until(lambda: server.connections.count == 0, "it is counted no more")


@pytest.mark.net
def test_the_connection_that_a_frame_came_on_can_be_ended(server_of: Callable[..., Server], zctx: Any) -> None:
    """That one alone, by what the library says of the frame."""
    server, peers = server_of(), []
    for name in (b"a", b"b"):
        peers.append(zctx.socket(zmq.DEALER))
        peers[-1].setsockopt(zmq.RECONNECT_IVL, -1)
        peers[-1].setsockopt(zmq.IDENTITY, name)
        peers[-1].connect(f"tcp://127.0.0.1:{server.net.port}")
    peers[0].send(b"x")
    server.until(lambda: server.connections.count == 2 and bool(server.socket.poll(0)), "both, and a word")
    server.connections.end(server.socket.recv_multipart(copy=False)[1].get(zmq.SRCFD))
    server.until(lambda: server.connections.count == 1, "one is gone")
    peers[1].send(b"y")
    server.until(lambda: bool(server.socket.poll(0)), "the other one's word")
    assert server.socket.recv_multipart() == [b"b", b"y"]
    assert server.connections.hung_up == 1
    for each in peers:
        each.close(0)


@pytest.mark.net
def test_a_socket_that_is_bound_anew_is_counted_anew(server_of: Callable[..., Server], zctx: Any) -> None:
    server = server_of()
    server.dial()
    server.until(lambda: server.connections.count == 1, "one is here")
    server.socket.close(0)
    server.connections.turn()
    assert server.connections.count == 0


@pytest.fixture
def limit_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[tuple[int, int]]]:
    """A process with these soft and hard limits; what they are set to."""

    def make(soft: int, hard: int) -> list[tuple[int, int]]:
        said: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda which, pair: said.append(pair))
        return said

    return make


def test_the_limit_of_descriptors_is_raised_as_far_as_needed(limit_of: Any) -> None:
    said = limit_of(1024, 500_000)
    assert room_for(4096) == 4096
    assert said == [(2 * 4096 + OWN, 500_000)]
    assert limit_of(1024, resource.RLIM_INFINITY) == []
    assert room_for(4096) == 4096


def test_where_it_cannot_be_the_log_has_the_figures(limit_of: Any, caplog: pytest.LogCaptureFixture) -> None:
    said = limit_of(1024, 4096)
    with caplog.at_level(logging.WARNING, "zdiloco.node.connections"):
        assert room_for(4096) == (4096 - OWN) // 2
    assert said == [(4096, 4096)]
    assert "net.most_connections=4096 room_for=1920 why='this process may have 4096 (ulimit -Hn)'" in caplog.text


def test_a_process_with_enough_is_left_alone(limit_of: Any) -> None:
    said = limit_of(100_000, 100_000)
    assert room_for(4096) == 4096
    assert said == []


@pytest.mark.net
def test_a_descriptor_that_is_another_ones_by_now_is_left_alone(
    server_of: Callable[..., Server], tmp_path: Path
) -> None:
    server = server_of()
    followed = server.connections._all[0]
    with (
        (tmp_path / "file").open("w") as file,
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_connection(other.getsockname()) as near,
    ):
        for descriptor in (file.fileno(), near.fileno(), 10**6):
            assert not server.connections._shut(followed, descriptor)
        near.send(b"it still can")
