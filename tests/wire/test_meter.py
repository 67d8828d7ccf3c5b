"""The meter of a link: bodies behind each other, alone, tiny, and bursts of confirmations."""

import pytest

from zdiloco.wire.meter import MOST_OFFERED, LinkMeter
from zdiloco.wire.transfer import Credit

NBYTES = 1_000_000
TRIP_S = 0.1


def send(meter: LinkMeter, name: str, offered: float, first: float, through: float, nbytes: int = NBYTES) -> None:
    """A body is offered, gets its first credit, and is through."""
    meter.offered(name, nbytes, offered)
    meter.credited(Credit(transfer=name, upto=nbytes, received=0), first)
    meter.credited(Credit(transfer=name, upto=nbytes, received=nbytes), through)


def test_bodies_that_are_alone_are_measured_without_the_way() -> None:
    meter = LinkMeter()
    assert meter.bytes_s == 0.0
    for at in (0.0, 10.0, 20.0):
        send(meter, f"t{at}", at, at + TRIP_S, at + 2 * TRIP_S + 0.5)
    assert meter.bytes_s == pytest.approx(NBYTES / 0.5)


def test_bodies_behind_each_other_share_the_link() -> None:
    meter = LinkMeter()
    for number in range(6):
        meter.offered(f"t{number}", NBYTES, 0.0)
        meter.credited(Credit(transfer=f"t{number}", upto=NBYTES, received=0), TRIP_S)
    for number in range(6):
        through = Credit(transfer=f"t{number}", upto=NBYTES, received=NBYTES)
        meter.credited(through, 2 * TRIP_S + 0.5 * (number + 1))
        meter.credited(through, 100.0)  # said again
    assert meter.bytes_s == pytest.approx(NBYTES / 0.5)


def test_a_slow_answer_to_an_offer_is_no_slow_link() -> None:
    """The syncer had no room at first."""
    meter = LinkMeter()
    send(meter, "a", 0.0, TRIP_S, 2 * TRIP_S + 0.5)
    send(meter, "b", 10.0, 18.0, 18.0 + TRIP_S + 0.5)
    assert meter.bytes_s == pytest.approx(NBYTES / 0.5)


def test_a_link_that_becomes_slow_shows_at_once_and_one_that_becomes_fast_soon() -> None:
    meter = LinkMeter()
    for at in range(10):
        send(meter, f"f{at}", at, at + TRIP_S, at + 2 * TRIP_S + 0.01)
    send(meter, "slow", 20.0, 20.0 + TRIP_S, 20.0 + 2 * TRIP_S + 10.0)
    assert meter.bytes_s < NBYTES
    for at in range(100, 150):
        send(meter, f"f{at}", at, at + TRIP_S, at + 2 * TRIP_S + 0.01)
    assert meter.bytes_s > 50 * NBYTES


def test_odd_bodies_do_no_harm_and_what_is_remembered_is_bounded() -> None:
    meter = LinkMeter()
    meter.credited(Credit(transfer="never offered", upto=1, received=1), 0.0)
    send(meter, "empty", 0.0, 0.1, 0.2, nbytes=0)
    assert meter.bytes_s == 0.0
    send(meter, "tiny", 1.0, 1.1, 1.1, nbytes=1)
    assert meter.bytes_s > 0.0
    for number in range(3 * MOST_OFFERED):
        meter.offered(f"t{number}", 1, 2.0)
        meter.credited(Credit(transfer=f"t{number}", upto=1, received=0), 2.1)
    assert len(meter._offered) == len(meter._begun) == MOST_OFFERED
