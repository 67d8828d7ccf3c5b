"""Rates of streams, and lines off a socket that brings them in pieces."""

import socket
import time

import pytest

from zdiloco.doctor.lines import MAX_LINE, Ask, line_of
from zdiloco.doctor.streams import Lines, Meter, drain, pour
from zdiloco.errors import MalformedFrame
from zdiloco.node.clock import monotonic

LIMIT_S = 30.0


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def test_a_steady_stream_has_its_rate() -> None:
    meter = Meter()
    for step in range(1, 101):
        meter.note(1000, 5.0 + step / 100)
    assert meter.bytes_s(5.0) == pytest.approx(1e5, rel=0.02)


def test_a_stream_that_begins_slowly_is_judged_by_what_it_has_become() -> None:
    meter = Meter()
    for step in range(1, 101):
        meter.note(10 if step < 34 else 1000, 5.0 + step / 100)
    assert meter.bytes_s(5.0) == pytest.approx(1e5, rel=0.05)


def test_what_is_there_at_once_has_a_rate_too_and_nothing_has_none() -> None:
    meter = Meter()
    assert meter.bytes_s(0.0) == 0.0
    meter.note(10, 5.0)
    assert meter.bytes_s(5.0) == 1e7


def test_a_stream_ends_at_either_bound(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    began = time.monotonic()
    assert 0 < pour(here, 2**40, monotonic() + 0.1) < 2**30
    assert drain(there, 1000, monotonic() + LIMIT_S).nbytes == 1000
    assert time.monotonic() - began < LIMIT_S
    assert drain(here, 1, monotonic()).nbytes == 0
    there.close()
    assert pour(here, 2**40, monotonic() + LIMIT_S) == 0


def test_lines_are_read_one_by_one_and_nothing_beyond(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    line = line_of(Ask(ask="clock"))
    lines = Lines(there)
    here.sendall(line + line[:5])
    assert lines.read(Ask, monotonic() + LIMIT_S) == Ask(ask="clock")
    with pytest.raises(TimeoutError):
        lines.read(Ask, monotonic() + 0.01)
    here.sendall(line + b"rest")
    assert lines.read(Ask, monotonic() + LIMIT_S) == Ask(ask="clock")  # the half line is lost: who times out hangs up
    assert there.recv(10) == b"rest"
    here.close()
    assert lines.read(Ask, monotonic() + LIMIT_S) is None


def test_a_line_without_end_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    here.sendall(b"x" * (MAX_LINE + 1))
    with pytest.raises(MalformedFrame):
        Lines(there).read(Ask, monotonic() + LIMIT_S)
