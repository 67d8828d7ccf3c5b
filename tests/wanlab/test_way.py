"""What a packet meets on a direction of a link; times are made up."""

import pytest

from zdiloco.wanlab.way import LATE_S, Shape, Way

PACKET = bytes(1250)
"""At 10 Mbit/s it takes a millisecond."""


def way_of(**shape: float) -> Way:
    way = Way(1)
    way.shape = Shape(**{"mbit_s": 10.0, "delay_s": 0.04, **shape})
    return way


def test_a_packet_takes_its_bytes_and_then_travels() -> None:
    way = way_of()
    way.take(PACKET, 5.0)
    assert way.due_at() == pytest.approx(5.041)
    assert way.out(5.0409) == []
    assert way.out(5.0411) == [PACKET]


def test_packets_come_out_at_the_rate_of_the_link_in_order() -> None:
    way, packets = way_of(), [PACKET[:-1] + bytes([number]) for number in range(50)]
    for packet in packets:
        way.take(packet, 0.0)
    assert len(way.out(0.0401 + 0.025)) == 25
    assert way.queue_s(0.01) == pytest.approx(0.04)
    assert way.waiting_bytes == 25 * len(PACKET)
    assert way.out(1.0) == packets[25:]
    assert way.carried.nbytes == 50 * len(PACKET)


def test_what_would_wait_too_long_is_dropped() -> None:
    way = way_of(queue_s=0.1)
    for _ in range(200):
        way.take(PACKET, 0.0)
    assert way.carried.full == pytest.approx(100, abs=2)
    assert len(way.out(1.0)) + way.carried.full == 200


def test_so_many_are_lost_and_the_same_ones_again() -> None:
    lost = []
    for _ in range(2):
        way = way_of(mbit_s=1e6, loss=0.3)
        for number in range(10_000):
            way.take(PACKET, number * 1.0)
        lost.append(way.carried.lost)
    assert lost[0] == lost[1]
    assert lost[0] == pytest.approx(3000, abs=200)


def test_long_packets_vanish_where_only_short_ones_pass() -> None:
    way = way_of(largest=len(PACKET))
    way.take(PACKET + b"x", 0.0)
    way.take(PACKET, 0.0)
    assert way.out(1.0) == [PACKET]
    assert way.carried.lost == 1


def test_a_cut_link_loses_what_comes_and_what_is_under_way() -> None:
    way = way_of()
    way.take(PACKET, 0.0)
    way.shape.open = False
    way.take(PACKET, 0.01)
    assert way.out(1.0) == []
    way.shape.open = True
    way.take(PACKET, 2.0)
    assert way.out(3.0) == [PACKET]
    assert way.carried.lost == 2


def test_who_carries_late_is_told_of() -> None:
    way = way_of()
    for _ in range(2):
        way.take(PACKET, 0.0)
    way.out(0.0411)
    way.out(0.042 + 2 * LATE_S)
    assert (way.carried.late, way.carried.packets) == (1, 2)
    assert way.carried.latest_s == pytest.approx(2 * LATE_S)
