"""How many contributions may be under way: as many as the link has room for, one on a link that queues."""

import random

import pytest

from zdiloco.core.uplink import NEARLY, Uplink


class Link:
    """A serial link of `body_s` seconds per contribution behind `way_s` seconds of round trip, always kept busy."""

    def __init__(self, way_s: float, body_s: float, most: int = 8) -> None:
        self.uplink, self.way_s, self.body_s = Uplink(most), way_s, body_s
        self.now = self.idle_at = 0.0
        self.seq = self.most_seen = 0
        self.answers: list[tuple[float, int]] = []

    def run(self, answers: int, tick_s: float = 0.01) -> None:
        done = 0
        while done < answers:
            while self.answers and self.answers[0][0] <= self.now:
                self.uplink.answered(0, self.answers.pop(0)[1], self.now)
                done += 1
            while self.uplink.free(self.now):
                self.cut()
            self.now += tick_s

    def cut(self) -> None:
        self.seq += 1
        self.uplink.start(0, self.seq, self.now)
        self.idle_at = max(self.idle_at, self.now) + self.body_s
        self.answers.append((self.idle_at + self.way_s, self.seq))
        self.most_seen = max(self.most_seen, len(self.uplink.under_way))


def test_a_link_with_room_carries_as_many_as_are_allowed() -> None:
    link = Link(way_s=0.2, body_s=0.0)
    link.run(200)
    assert link.uplink.window == link.uplink.most
    assert link.most_seen <= link.uplink.most + 1


def test_a_link_that_is_full_with_one_ends_at_one() -> None:
    link = Link(way_s=0.01, body_s=2.0)
    link.run(60, tick_s=0.05)
    assert link.uplink.window == 1
    assert len(link.uplink.under_way) <= 2, "the next may follow when the first is nearly through"


def test_a_link_that_is_full_with_four_settles_near_four() -> None:
    """0.3 s of round trip and 0.1 s per body: four fill it."""
    link = Link(way_s=0.3, body_s=0.1)
    link.run(300)
    assert 3 <= link.uplink.window <= 6


def test_a_link_that_becomes_slow_is_left_with_one() -> None:
    link = Link(way_s=0.2, body_s=0.0)
    link.run(200)
    link.way_s, link.body_s = 0.01, 2.0
    link.run(120, tick_s=0.05)
    assert link.uplink.window <= 2


def test_one_more_may_be_cut_while_the_window_is_not_full() -> None:
    uplink = Uplink(4)
    uplink.window = 2
    assert uplink.free(0.0)
    uplink.start(0, 1, 0.0)
    assert uplink.free(0.0)
    uplink.start(1, 1, 0.0)
    assert not uplink.free(0.0)
    assert not uplink.free(99.0), "nothing was ever answered: nobody knows when it will be through"


def test_the_next_follows_when_the_oldest_is_nearly_through() -> None:
    uplink = Uplink(4)
    uplink.start(0, 1, 0.0)
    uplink.answered(0, 1, 10.0)
    uplink.window = 1
    uplink.start(0, 2, 20.0)
    assert not uplink.free(20.0 + 10.0 * NEARLY - 0.1)
    assert uplink.free(20.0 + 10.0 * NEARLY + 0.1)
    uplink.start(0, 3, 29.5)
    assert not uplink.free(99.0), "one ahead, no more"


def test_eta_is_when_those_under_way_are_usually_through() -> None:
    uplink = Uplink(4)
    assert uplink.eta_s(5.0) == 0.0
    uplink.start(0, 1, 0.0)
    uplink.answered(0, 1, 10.0)
    uplink.start(0, 2, 20.0)
    assert uplink.eta_s(24.0) == 6.0
    assert uplink.eta_s(99.0) == 0.0


def test_what_is_given_up_says_nothing_and_takes_no_room() -> None:
    uplink = Uplink(4)
    window = uplink.window
    uplink.start(0, 1, 0.0)
    uplink.end(0, 1)
    assert uplink.under_way == {}
    uplink.answered(0, 1, 50.0)
    uplink.end(3, 9)
    assert (uplink.window, uplink.shortest_s) == (window, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_link_does_the_window_keeps_its_bounds(seed: int) -> None:
    rng = random.Random(seed)
    uplink, now, seq = Uplink(rng.randint(1, 6)), 0.0, 0
    for _ in range(400):
        now += rng.expovariate(1.0)
        what = rng.random()
        if what < 0.5 and uplink.free(now):
            seq += 1
            uplink.start(0, seq, now)
        elif uplink.under_way:
            place = rng.choice(list(uplink.under_way))
            if what < 0.95:
                uplink.answered(*place, now)
            else:
                uplink.end(*place)
        assert 1 <= uplink.window <= uplink.most
        assert uplink.eta_s(now) >= 0.0
    assert seq > 20
