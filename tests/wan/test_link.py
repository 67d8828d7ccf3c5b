"""What links between regions really do, by the sockets of the system: rate, delay, and what one way only loses."""

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.wan.lab import Shaped

pytestmark = [pytest.mark.net, pytest.mark.wan, pytest.mark.slow]
MBIT_S, WAY_S = 50.0, 0.04
PORT, LIMIT_S, PIECE = 5900, 30.0, 65_536
NBYTES = 12_000_000
"""What is sent at that rate: two seconds of it."""


class Talk:
    """A connection from region 1 to region 0."""

    def __init__(self, regions: Shaped) -> None:
        self.near: socket.socket
        with regions.asked(0, lambda: socket.create_server(("0.0.0.0", PORT))) as server:
            server.settimeout(LIMIT_S)
            self.far = regions.asked(1, lambda: socket.create_connection(("10.77.1.1", PORT), LIMIT_S))
            self.near, _ = server.accept()
        for end in (self.near, self.far):
            end.settimeout(LIMIT_S)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def round_trip_s(self) -> float:
        """What a byte takes there and back."""
        began = time.monotonic()
        for here, there in ((self.far, self.near), (self.near, self.far)):
            here.sendall(b"x")
            assert there.recv(1) == b"x"
        return time.monotonic() - began

    def push_s(self) -> float:
        """What NBYTES take from region 1, with the time until TCP has found the rate."""
        sender = threading.Thread(target=self.far.sendall, args=(bytes(NBYTES),), name="push")
        began, left = time.monotonic(), NBYTES
        sender.start()
        while left:
            came = len(self.near.recv(PIECE))
            assert came
            left -= came
        took_s = time.monotonic() - began
        sender.join(LIMIT_S)
        return took_s

    def close(self) -> None:
        for end in (self.near, self.far):
            end.close()


def test_a_link_is_as_fast_and_as_far_as_it_says(
    regions_of: Callable[[int], Shaped], say: Callable[[str], None]
) -> None:  # fmt: skip
    regions = regions_of(2)
    regions.links[0].both(mbit_s=MBIT_S, delay_s=WAY_S)
    talk = Talk(regions)
    try:
        trips = sorted(talk.round_trip_s() for _ in range(10))
        push_s = talk.push_s()
    finally:
        talk.close()
    mbit_s = NBYTES * 8e-6 / push_s
    up = regions.links[0].carried["up"]
    say(
        f"a link of {MBIT_S:g} Mbit/s and {2 * WAY_S * 1e3:g} ms there and back: {mbit_s:.1f} Mbit/s with slow start, "
        f"{trips[0] * 1e3:.1f} ms (median {trips[5] * 1e3:.1f}); late packets {up['late']} of {up['packets']}"
    )
    assert 2 * WAY_S <= trips[0] < 2 * WAY_S + 0.03
    assert 0.6 * MBIT_S < mbit_s < MBIT_S


def test_what_is_closed_one_way_is_open_the_other(regions_of: Callable[[int], Shaped]) -> None:
    """And what was lost comes again when it is open: it is TCP that crosses."""
    regions = regions_of(2)
    link = regions.links[0]
    link.both(delay_s=0.005)
    talk = Talk(regions)
    try:
        talk.round_trip_s()
        before = link.shaped(up={"open": False})
        talk.far.sendall(b"lost")
        talk.near.sendall(b"heard")
        assert talk.far.recv(5) == b"heard"
        after = link.shaped(up={"open": True})
        assert after["up"]["packets"] == before["up"]["packets"]
        assert after["up"]["lost"] > before["up"]["lost"]
        assert talk.near.recv(4) == b"lost"
    finally:
        talk.close()
