"""Whose pulls are answered now: a few at a time, whoever trains first, and no slow or dead peer in anybody's way."""

import pytest

from zdiloco.wire import pulls as p
from zdiloco.wire.pulls import Pulls

BIG = 2**24


class Uplink:
    """A queue of pulls, and what goes out: `rate` bytes a second, shared by those that `limits` does not limit. Who
    waits asks again every 5 s."""

    def __init__(self, rate: float, **limits: float) -> None:
        self.pulls, self.now, self.rate, self.limits = Pulls[str](), 0.0, rate, limits
        self.left: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.waits: dict[str, None] = {}
        self.again_at = 0.0
        self.most = 0

    def ask(self, *peers: str) -> None:
        self.waits.update(dict.fromkeys(peers))

    def tick(self, dt: float = 0.05) -> None:
        for peer in list(self.waits) if self.now >= self.again_at else ():
            self.pulls.ask(peer, 0, BIG, self.now)
        self.again_at = self.now + 5.0 if self.now >= self.again_at else self.again_at
        for peer, _ in self.pulls.due(self.now):
            self.waits.pop(peer)
            self.left[peer] = BIG
            self.pulls.offered(peer, self.now)
        self.most = max(self.most, len(self.left))
        self.now += dt
        share = self.rate / max(1, len(self.left.keys() - self.limits.keys()))
        for peer in list(self.left):
            self.left[peer] = max(0.0, self.left[peer] - dt * self.limits.get(peer, share))
            self.pulls.credited(peer, 0, int(self.left[peer]), self.now)
            if not int(self.left[peer]):
                del self.left[peer]
                self.ended[peer] = self.now

    def until(self, count: int, most_s: float) -> None:
        while len(self.ended) < count:
            self.tick()
            assert self.now < most_s, f"only {sorted(self.ended)} after {most_s} s"


def asks(pulls: Pulls[str], *peers: str, trains: bool = False, now: float = 0.0) -> None:
    for peer in peers:
        pulls.ask(peer, 0, BIG, now, trains=trains)


def test_of_a_crowd_two_move_and_the_first_do_not_wait_for_the_last() -> None:
    uplink, names = Uplink(BIG / 4), [f"{number:02}" for number in range(16)]
    uplink.ask(*names)
    uplink.until(16, 70.0)
    assert uplink.most <= p.AT_ONCE + 1, "one more while the last bytes of two are on their way"
    assert sorted(uplink.ended, key=lambda name: uplink.ended[name]) == names, "first come, first served"
    assert uplink.ended["00"] < 8.5
    assert uplink.ended["15"] < 66.0, "and the uplink was never idle"


def test_a_dead_slow_peer_and_a_dead_one_hold_nobody_up() -> None:
    uplink = Uplink(BIG / 4, slow=BIG / 400, dead=0.0)
    uplink.ask("slow", "dead", *"abcd")
    uplink.until(4, 25.0)
    assert set(uplink.ended) == set("abcd")
    assert "slow" in uplink.left


def test_where_only_slow_ones_move_one_more_is_let_in_and_then_tells_them_apart() -> None:
    slow = dict.fromkeys(("s0", "s1"), BIG / 4000)
    uplink = Uplink(BIG / 4, **slow)
    uplink.ask(*slow, *"abc")
    while not uplink.left.keys() & set("abc"):
        uplink.tick()
    assert uplink.now < p.STUCK_S + 1.0
    uplink.until(3, p.STUCK_S + 16.0)


def test_where_the_uplink_is_what_is_slow_hardly_more_are_let_in() -> None:
    uplink = Uplink(BIG / 200)
    uplink.ask(*"abcdefghijklmnop")
    while uplink.now < 190.0:
        uplink.tick(0.2)
    assert uplink.most <= 6


def test_small_states_wait_for_nothing() -> None:
    pulls = Pulls[int]()
    for peer in range(100):
        pulls.ask(peer, 0, 10_000, 0.0)
    assert len(pulls.due(0.0)) == 100
    assert (pulls.waiting, pulls.deadline()) == (0, None)


def test_a_repeated_pull_is_one_and_all_fragments_of_a_peer_are_one_turn() -> None:
    pulls = Pulls[str]()
    for peer in "abc":
        for fragment in (0, 1, 0, 1, 2):
            pulls.ask(peer, fragment, BIG, 0.0)
    assert pulls.due(0.0) == [(peer, fragment) for peer in "ab" for fragment in range(3)]
    assert (pulls.waiting, pulls.moving(0.0)) == (1, 2)
    pulls.ask("c", 1, BIG, 3.0)
    assert pulls.due(3.0) == [], "what was due is not offered yet: the worker is busy"
    assert pulls.deadline() == 3.0 + p.LOOK_S


def test_who_trains_goes_first_but_one_joiner_moves() -> None:
    pulls = Pulls[str]()
    asks(pulls, "j0", "j1")
    asks(pulls, "t0", "t1", "t2", trains=True)
    assert [peer for peer, _ in pulls.due(0.0)] == ["t0", "j0"]
    for peer in ("t0", "j0"):
        pulls.offered(peer, 0.0)
        pulls.credited(peer, 0, BIG, 0.1)
    pulls.credited("t0", 0, BIG // 2, 1.0)
    pulls.credited("j0", 0, 0, 1.0)
    assert [peer for peer, _ in pulls.due(1.0)] == ["j1"]
    pulls.offered("j1", 1.0)
    pulls.credited("j1", 0, BIG, 1.0)
    pulls.credited("t0", 0, 0, 1.1)
    assert [peer for peer, _ in pulls.due(1.1)] == ["t1"]


def test_members_behind_a_relay_give_no_credit_and_its_own_counts() -> None:
    pulls = Pulls[str]()
    asks(pulls, *"abcd")
    for peer, _ in pulls.due(0.0):
        pulls.offered(peer, 0.0)
    pulls.credited("relay", 0, BIG, 0.1)
    assert pulls.due(0.3) == []
    pulls.credited("relay", 0, BIG // 2, 0.4)
    found = pulls.due(0.6)
    assert [peer for peer, _ in found] == ["c"], "one, beside the relay"


def test_at_the_end_of_a_run_nobody_waits() -> None:
    pulls = Pulls[str]()
    asks(pulls, *"abcdef")
    assert len(pulls.due(0.0)) == p.AT_ONCE
    pulls.open()
    assert len(pulls.due(0.0)) == 4
    asks(pulls, "g")
    assert len(pulls.due(0.0)) == 1


def test_what_waits_is_bounded_and_who_does_not_ask_again_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "MOST_PULLS", 5)
    pulls = Pulls[str]()
    asks(pulls, *"abcdefgh")
    assert pulls.waiting == 5
    assert len(pulls.due(0.0)) == p.AT_ONCE
    asks(pulls, "h", now=50.0)
    pulls.due(70.0)
    assert (pulls.waiting, list(pulls._places)) == (0, ["h"])
    pulls.due(200.0)
    assert pulls._places == {}


def test_a_pull_that_crosses_with_its_answer_starts_nothing_anew_and_holds_nobody_up() -> None:
    """Its learner has the state, or takes it already: for the second answer it gives no credit of its own."""
    pulls = Pulls[str]()
    for peer, fragment in (("a", 0), ("a", 1), ("b", 0), ("c", 0)):
        pulls.ask(peer, fragment, BIG, 0.0)
    assert {peer for peer, _ in pulls.due(0.0)} == {"a", "b"}
    for peer, fragment in (("a", 0), ("a", 1), ("b", 0)):
        pulls.offered(peer, 0.0)
        pulls.credited(peer, fragment, BIG, 0.1)
    pulls.credited("b", 0, BIG // 2, 3.0)
    pulls.credited("a", 0, 0, 3.0)
    for fragment in (0, 1):
        pulls.ask("a", fragment, BIG, 3.0)
    assert pulls.due(3.0) == [("a", 0), ("a", 1)], "the first answer may have been lost"
    pulls.credited("b", 0, BIG // 4, 4.0)
    pulls.credited("a", 1, 0, 4.0)
    assert pulls.due(4.0 + p.UNHEARD_S / 2) == []
    assert [peer for peer, _ in pulls.due(4.1 + p.UNHEARD_S)] == ["c"]


def test_a_syncer_that_starts_again_knows_of_nobody_and_serves_who_asks_again() -> None:
    uplink, names = Uplink(BIG / 4), [f"{number:02}" for number in range(6)]
    uplink.ask(*names)
    uplink.until(2, 9.0)
    uplink.pulls, uplink.left = Pulls[str](), {}
    uplink.ask(*(name for name in names if name not in uplink.ended))
    uplink.pulls.credited("02", 0, BIG // 2, uplink.now)  # what it took before
    uplink.until(6, 40.0)
    assert uplink.most <= p.AT_ONCE + 1
