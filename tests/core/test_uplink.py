"""How many contributions may be under way: as many as the link has room for, one on a link that queues."""

import random

import pytest

from zdiloco.core.uplink import NEARLY, Uplink

H, STEP_S = 24, 0.05
"""The period in steps, and a step in seconds, of the learners that have any."""


class Link:
    """A serial link of `body_s` seconds per contribution behind `way_s` seconds of round trip, always kept busy.

    `step_s`: of the learner, H = 24; 0: unknown.
    """

    def __init__(self, way_s: float, body_s: float, most: int = 8, step_s: float = 0.0) -> None:
        self.uplink, self.way_s, self.body_s = Uplink(most, H), way_s, body_s
        self.uplink.stepped(step_s)
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


@pytest.mark.parametrize("step_s", [0.0, STEP_S])
def test_a_link_that_is_full_with_one_ends_at_one(step_s: float) -> None:
    link = Link(way_s=0.01, body_s=2.0, step_s=step_s)
    link.run(60, tick_s=0.05)
    assert link.uplink.window == 1
    assert len(link.uplink.under_way) <= 2, "the next may follow when the first is nearly through"


@pytest.mark.parametrize("step_s", [0.0, STEP_S])
def test_a_link_that_is_full_with_four_settles_near_four(step_s: float) -> None:
    """0.3 s of round trip and 0.1 s per body: four fill it."""
    link = Link(way_s=0.3, body_s=0.1, step_s=step_s)
    link.run(300)
    assert 3 <= link.uplink.window <= 6


@pytest.mark.parametrize("step_s", [0.0, STEP_S])
def test_a_link_that_becomes_slow_is_left_with_one(step_s: float) -> None:
    link = Link(way_s=0.2, body_s=0.0, step_s=step_s)
    link.run(200)
    link.way_s, link.body_s = 0.01, 2.0
    link.run(120, tick_s=0.05)
    assert link.uplink.window <= 2


def test_near_a_syncer_two_that_are_called_at_once_are_both_cut() -> None:
    """Answers of 10 to 60 ms, as threads and merges have it, and one in thirty of 150 to 250 ms."""
    rng, uplink, answers, together = random.Random(1), near(0.01), [], 0
    for turn in range(1000):
        now = 1.0 + turn * 2 * STEP_S
        for due, seq in sorted(answers):
            uplink.answered(0, seq, due)
        answers.clear()
        for seq in (2 * turn, 2 * turn + 1):
            if uplink.free(now):
                uplink.start(0, seq, now)
                late = rng.random() < 1 / 30
                answers.append((now + (rng.uniform(0.15, 0.25) if late else rng.uniform(0.01, 0.06)), seq))
        together += len(answers) == 2
    assert together >= 950


def near(answer_s: float, most: int = 8, sync_period: int = H) -> Uplink:
    """One whose first contribution was answered after `answer_s`."""
    uplink = Uplink(most, sync_period)
    uplink.stepped(STEP_S)
    uplink.start(9, 1, 0.0)
    uplink.answered(9, 1, answer_s)
    return uplink


@pytest.mark.parametrize(("answer_s", "room"), [(0.006, 8), (0.02, 3), (0.04, 2), (0.2, 1), (4.0, 1)])
def test_so_many_may_be_under_way_as_are_answered_one_after_the_other_within_a_step(answer_s: float, room: int) -> None:
    uplink = near(answer_s)
    uplink.window = 1
    assert uplink.room == room


def test_one_late_answer_does_not_make_a_near_syncer_far() -> None:
    uplink = near(0.02)
    uplink.start(0, 1, 1.0)
    uplink.answered(0, 1, 9.0)
    assert (uplink.window, uplink.room) == (1, 3)


def test_a_near_link_that_becomes_slow_is_noticed() -> None:
    """Answers of 6 ms, then of 1 s for each that is under way: few are left under way, and the new time is learned."""
    uplink, now, seq = near(0.006), 0.0, 1
    for way_s in (0.006,) * 50 + (1.0,) * 200:
        while uplink.free(now):
            seq += 1
            uplink.start(0, seq, now)
        for each in list(uplink.under_way)[:1]:
            now += way_s
            uplink.answered(*each, now)
    assert len(uplink.under_way) <= 2
    assert uplink.shortest_s >= 0.9


@pytest.mark.parametrize(("wait_s", "late"), [(0.14, False), (0.16, True)])
def test_a_wait_of_an_eighth_of_a_period_is_no_queue(wait_s: float, late: bool) -> None:
    """H = 24 steps of 50 ms: 150 ms."""
    uplink = near(0.01)
    window = uplink.window
    uplink.start(0, 1, 1.0)
    uplink.answered(0, 1, 1.01 + wait_s)
    assert (uplink.window < window) is late


def test_in_a_short_period_a_wait_of_a_step_is_no_queue() -> None:
    assert near(0.01, sync_period=2).harmless_s == STEP_S


def test_a_step_is_the_shortest_of_the_recent_ones_so_a_validation_between_them_does_no_harm() -> None:
    uplink = Uplink(4)
    for seconds in (0.0, 9.0, 0.07, 0.06, 60.0):
        uplink.stepped(seconds)
    assert uplink.step_s == 0.06
    for _ in range(8):
        uplink.stepped(0.5)
    assert uplink.step_s == 0.5


def test_soon_is_what_waits_for_less_than_an_eighth_of_a_period() -> None:
    """H = 24 steps of 50 ms: 150 ms. The link takes 300 ms, so the first place is due at 1.3 s, or 0.3 s after that."""
    uplink = near(0.3)
    assert not uplink.soon(1.0, 0), "nothing is under way: what cannot be cut has another reason"
    uplink.window = 1
    uplink.start(0, 2, 1.0)
    assert [uplink.soon(at, 0) for at in (1.10, 1.16, 1.44, 1.46)] == [False, True, True, False]
    assert not uplink.soon(1.16, 1), "another one is ahead of it"


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
    uplink, now, seq = Uplink(rng.randint(1, 6), rng.choice([1, 24])), 0.0, 0
    for _ in range(400):
        now += rng.expovariate(1.0)
        uplink.stepped(rng.choice([0.0, 0.1, 3.0]))
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
        assert 1 <= uplink.window <= uplink.room <= uplink.most
        assert len(uplink.under_way) <= uplink.most + 1
        assert uplink.eta_s(now) >= 0.0
    assert seq > 20
