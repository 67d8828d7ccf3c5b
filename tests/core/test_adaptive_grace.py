"""Grace that follows when contributions come: what it learns, what it leaves, and fleets of many kinds beside gamma."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from zdiloco.core.adaptive_grace import LONGEST, PATIENCE, ROUNDS, AdaptiveGrace, Room
from zdiloco.core.grace import Average, GraceInputs, grace_ends, slack_s
from zdiloco.core.params import SyncParams

PARAMS = SyncParams(adaptive=True)
ROOM = Room(most=LONGEST, why="no room", usual=4.0)


def looks(grace: AdaptiveGrace, shares: dict[float, float], count: int = 1, room: Room = ROOM) -> list[str]:
    """Look so often after ROUNDS rounds each, in which contributions have come at these shares, so many a round."""
    found = []
    for _ in range(count):
        for share, each in shares.items():
            for _ in range(round(each * ROUNDS)):
                grace.came(share)
        for _ in range(ROUNDS):
            grace.closed()
        found += [what for what, why in grace.look(room) if why]
    return found


def test_it_is_the_tenth_by_which_all_are_in_but_a_twentieth_of_those_who_usually_are() -> None:
    grace = AdaptiveGrace(PARAMS)
    assert looks(grace, {0.0: 1.0, 0.05: 2.0, 0.64: 1.0}) == ["grace is at least 70% of the slack, no longer 0%"]
    assert looks(AdaptiveGrace(PARAMS), {0.05: 3.0, 0.64: 0.2}) == ["grace is at least 10% of the slack, no longer 0%"]
    (change,) = AdaptiveGrace(PARAMS).look(ROOM) or [("", "")]
    assert change == ("", ""), "nothing is known yet"


def test_the_reason_says_who_comes_when() -> None:
    grace = AdaptiveGrace(PARAMS)
    for _ in range(ROUNDS):
        grace.closed()
        for share in (0.0, 0.05, 0.64, 1.2):
            grace.came(share)
    assert grace.look(ROOM)[0][1] == "2.00 a round come within so much of the slack, 0.00 later, 1.00 too late"


def test_who_comes_too_late_for_any_window_is_not_waited_for() -> None:
    grace = AdaptiveGrace(PARAMS)
    assert looks(grace, {0.05: 3.0, 0.95: 1.0, 3.0: 1.0}) == ["grace is at least 10% of the slack, no longer 0%"]
    bound = AdaptiveGrace(SyncParams(adaptive=True, adaptive_grace_max=0.6))
    assert bound.longest == 0.6
    assert looks(bound, {0.05: 3.0, 0.64: 1.0}, room=Room(most=0.6, why="", usual=4.0))[0].startswith(
        "grace is at least 10%"
    )


def test_it_falls_by_a_tenth_at_a_time_when_it_was_in_vain_for_long() -> None:
    grace = AdaptiveGrace(PARAMS)
    looks(grace, {0.64: 1.0}, 2)
    assert looks(grace, {0.05: 3.0}, PATIENCE) == [], "the averages are of before"
    after = looks(grace, {0.05: 3.0}, 8 * PATIENCE)
    assert after[0] == "grace is at least 60% of the slack, no longer 70%"
    assert after[-1] == "grace is at least 10% of the slack, no longer 20%"
    assert len(after) == 6


def test_where_rounds_have_no_more_room_it_falls_at_once_and_says_why() -> None:
    grace = AdaptiveGrace(PARAMS)
    looks(grace, {0.64: 1.0})
    found = grace.look(Room(most=0.25, why="no room", usual=4.0))
    assert found == [("grace is at least 25% of the slack, no longer 70%", "no room")]


def test_what_is_allowed_is_not_exceeded_by_rounding_nor_said_at_every_look() -> None:
    grace = AdaptiveGrace(PARAMS)
    looks(grace, {0.64: 1.0})
    tight = Room(most=0.46666, why="no room", usual=4.0)
    assert [what for what, _ in grace.look(tight)] == ["grace is at least 47% of the slack, no longer 70%"]
    assert grace.share <= tight.most
    assert grace.look(tight) == []


def test_off_stays_off() -> None:
    assert looks(AdaptiveGrace(SyncParams(adaptive=True, grace="off")), {0.64: 1.0}, 5) == []


# ---- fleets: one fragment, times in periods; how long an answer takes is drawn


Draw = Callable[[random.Random], float]


@dataclass
class Play:
    """One fragment of three fast learners and one that is not (the last); the rules of rounds in a few lines."""

    draws: list[Draw]
    rng: random.Random
    grace: AdaptiveGrace | None
    leaves_at: float = 1e9
    way: dict[int, tuple[float, float]] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    inside: list[set[int]] = field(default_factory=list)
    answers: list[Average] = field(default_factory=lambda: [Average(0.125) for _ in range(4)])
    quorum_s: Average = field(default_factory=lambda: Average(0.125))

    def run(self, periods: float) -> None:
        """Rounds one after another, none sooner than a period after the last call."""
        called_at = 0.0
        while called_at < periods:
            here = [one for one in range(4) if one < 3 or called_at < self.leaves_at]
            for one in here:
                if one not in self.way and one not in self.held:
                    self.way[one] = (called_at + self.draws[one](self.rng), called_at)
            closed_at, quorum_at = self.gather(called_at, here)
            self.inside.append(set(self.held))
            self.held.clear()
            called_at = max(called_at + 1.0, closed_at + 0.02)
            while self.way and min(self.way.values())[0] < called_at:
                self.arrive(quorum_at)
            if self.grace:
                self.grace.closed()
                self.grace.look(ROOM)

    def gather(self, called_at: float, here: list[int]) -> tuple[float, float]:
        """When the round closes, and when it had its quorum."""
        quorum_at = self.arrive(None) if self.way else called_at
        self.quorum_s.add(quorum_at - called_at)
        answers = [each.value for each in self.answers if each.value is not None]
        inputs = GraceInputs(
            called_at=called_at, quorum_at=quorum_at, step_s=1 / 24, quorum_s=self.quorum_s.value, sync_s=0.02,
            waiting_steps_s=(1 / 24,), answers_s=answers, least_share=self.grace.share if self.grace else 0.0,
        )  # fmt: skip
        ends, now = grace_ends(inputs, PARAMS)[0], quorum_at
        while not self.held.issuperset(here):
            if not self.way or min(self.way.values())[0] > ends:
                return ends, quorum_at
            now = self.arrive(quorum_at)
        return now, quorum_at

    def arrive(self, quorum_at: float | None) -> float:
        """The next contribution is here."""
        one = min(self.way, key=lambda each: self.way[each])
        at, called_at = self.way.pop(one)
        self.held.add(one)
        self.answers[one].add(at - called_at)
        slack = slack_s(1 / 24, self.quorum_s.value, 0.02, 24)
        if self.grace and slack > 0:
            self.grace.came(0.0 if quorum_at is None else (at - quorum_at) / slack)
        return at

    def share(self) -> float:
        """Of the second half of the rounds, in how many the last one is."""
        late = self.inside[len(self.inside) // 2 :]
        return sum(3 in each for each in late) / len(late)


def slow(kind: str, rng: random.Random) -> Draw:
    """How long the last one takes to answer: always alike, by chance, or longer where something was lost."""
    base = rng.uniform(0.15, 1.6 if kind == "steady" else 0.5)
    extra = rng.uniform(0.1, 0.5)
    if kind == "steady":
        return lambda draw: base * draw.uniform(0.98, 1.02)
    if kind == "jitter":
        return lambda draw: base + extra * draw.random()
    return lambda draw: base + extra * (draw.random() < 0.3)


def play(seed: int, kind: str, adaptive: bool) -> Play:
    """120 periods of the fleet of a seed."""
    rng = random.Random(f"{seed}/{kind}")
    fast = rng.uniform(0.03, 0.12)
    draws = [*[lambda draw: fast * draw.uniform(0.9, 1.3)] * 3, slow("steady" if kind == "leaves" else kind, rng)]
    fleet = Play(draws, rng, AdaptiveGrace(PARAMS) if adaptive else None, 90.0 if kind == "leaves" else 1e9)
    fleet.run(120.0)
    return fleet


def compared(kind: str, seeds: range) -> list[tuple[float, float, float]]:
    """Of each seed the shares of rounds that the slow one is in, with and without, and rounds with ÷ without."""
    found = []
    for seed in seeds:
        on, off = play(seed, kind, adaptive=True), play(seed, kind, adaptive=False)
        found.append((on.share(), off.share(), len(on.inside) / len(off.inside)))
    return found


KINDS = {"steady": 0.1, "jitter": 0.1, "lossy": 0.05, "leaves": 0.03}
"""What is gained on average, at least, in the share of rounds that the slow one is in."""


def check(kind: str, seeds: range, say: Callable[[str], None]) -> None:
    found = compared(kind, seeds)
    on, off, rate = (sum(each) / len(found) for each in zip(*found, strict=True))
    worst, rarest = min(a - b for a, b, _ in found), min(each for _, _, each in found)
    say(f"{kind}: in {on:.0%} of rounds, without {off:.0%}, worst {worst:+.0%}; rounds x {rate:.3f} ({rarest:.3f})")
    assert on - off >= KINDS[kind]
    assert worst >= -0.05
    assert rarest >= 0.95


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_slow_one_is_in_more_rounds_and_rounds_stay_as_frequent(kind: str, say: Callable[[str], None]) -> None:
    check(kind, range(8), say)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_so_it_is_for_hundreds_of_fleets(kind: str, say: Callable[[str], None]) -> None:
    check(kind, range(1000, 1150), say)
