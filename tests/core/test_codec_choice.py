"""`learner.codec = "auto"` in virtual time: what suits a link is found, kept, and followed when it changes (E-87).

Contributions go up one behind the other on a link with a rate and a delay, and are measured by the production's meter.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from zdiloco.core.codec_choice import BYTES, LADDER, MOST_REST_PERIODS, REST_PERIODS, SAMPLES, CodecChoice
from zdiloco.wire.meter import LinkMeter
from zdiloco.wire.transfer import Credit

H, P, STEP_S = 24, 8, 0.05
PERIOD_S = H * STEP_S
VALUES = 2_500_000
DELAY_S = 0.04
MOST_UNDER_WAY = 3


@dataclass
class Line:
    """A learner and its link. `rate`: bits per second at a time; `noise`: by which share that of each body differs."""

    rate: Callable[[float], float]
    noise: float = 0.0
    encode_s: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    choice: CodecChoice = field(default_factory=CodecChoice)
    meter: LinkMeter = field(default_factory=LinkMeter)
    changes: list[tuple[int, str, str]] = field(default_factory=list)
    credits: list[tuple[float, int, Credit]] = field(default_factory=list)

    def play(self, periods: int) -> "Line":
        free_at, under_way, ticket = 0.0, 0, itertools.count()
        for slot in range(periods * P):
            now = slot * PERIOD_S / P
            while self.credits and self.credits[0][0] <= now:
                at, _, credit = heapq.heappop(self.credits)
                self.meter.credited(credit, at)
                under_way -= credit.received > 0
            if under_way < MOST_UNDER_WAY:
                number, under_way = next(ticket), under_way + 1
                nbytes = round(VALUES / P * BYTES[self.choice.codec])
                self.meter.offered(f"c/{number}", nbytes, now)
                rate = self.rate(now) / 8 * self.rng.uniform(1 - self.noise, 1 + self.noise)
                free_at = max(free_at, now + 1.5 * DELAY_S * 2) + nbytes / rate
                for at, received in ((now + 2 * DELAY_S, 0), (free_at + DELAY_S, nbytes)):
                    credit = Credit(transfer=f"c/{number}", upto=nbytes, received=received)
                    heapq.heappush(self.credits, (at, 2 * number + (received > 0), credit))
                self.judge(slot * H // P, nbytes)
        return self

    def judge(self, step: int, nbytes: int) -> None:
        before = self.choice.codec
        self.choice.encoded(before, nbytes, 1 / P, self.encode_s / P)
        why = self.choice.judge(self.meter.bytes_s, step, H, STEP_S)
        assert bool(why) == (before != self.choice.codec)
        if why:
            assert abs(LADDER.index(before) - LADDER.index(self.choice.codec)) == 1, "one step at a time"
            assert before in why
            assert "Mbit/s" in why
            self.changes.append((step, self.choice.codec, why))


@pytest.mark.parametrize(("mbit_s", "codec"), [(1, "4bit"), (10, "4bit"), (40, "int8"), (100, "bf16"), (1000, "bf16")])
def test_every_link_gets_what_suits_it_and_keeps_it(mbit_s: float, codec: str) -> None:
    """E-87: fewer bytes only where the link needs them."""
    line = Line(lambda now: 1e6 * mbit_s).play(100)
    assert line.choice.codec == codec
    assert len(line.changes) == (codec != "int8")
    assert all(step < 60 * H for step, _, _ in line.changes), "found within a minute of steps or so"


def test_a_distant_link_is_not_taken_for_a_slow_one() -> None:
    """A round trip takes longer than the bytes do: what is measured is the link, not the way."""
    line = Line(lambda now: 1e9).play(100)
    assert line.meter.bytes_s > 1e8
    assert line.choice.codec == "bf16"


def sweep(tenths: range, noise: float, periods: int) -> int:
    """Play rates from end to end, those included at which two codecs are equally good; the most changes of one."""
    most = 0
    for tenth in tenths:
        line = Line(lambda now, mbit_s=10 ** (tenth / 10): 1e6 * mbit_s, noise=noise, rng=random.Random(tenth))
        steps = [step for step, _, _ in line.play(periods).changes]
        assert all(b - a >= REST_PERIODS * H for a, b in itertools.pairwise(steps))
        most = max(most, len(steps))
    return most


def test_it_never_flaps() -> None:
    assert sweep(range(0, 31, 3), 0.3, 100) == 1


@pytest.mark.slow
def test_it_never_flaps_on_any_link_nor_on_a_very_uneven_one() -> None:
    """Where each body's rate differs by 60 % it may err, and less and less often."""
    assert sweep(range(31), 0.0, 400) == 1
    assert sweep(range(31), 0.3, 400) == 1
    assert sweep(range(31), 0.6, 400) <= 8


def test_a_link_that_changes_is_followed_down_and_up() -> None:
    line = Line(lambda now: 1e9 if not 60 < now < 400 else 1e7, noise=0.2).play(450)
    assert [codec for _, codec, _ in line.changes] == ["bf16", "int8", "4bit", "int8", "bf16"]
    down = [step * STEP_S for step, codec, _ in line.changes[1:3]]
    assert down[-1] < 60 + 60, "within a minute"
    up = [step * STEP_S for step, _, _ in line.changes[3:]]
    assert 400 < up[0] < up[1] < 400 + 120


def test_a_link_that_swings_is_followed_more_and_more_slowly() -> None:
    line = Line(lambda now: 1e9 if int(now / 30) % 2 else 2e7).play(1000)
    steps = [step for step, _, _ in line.changes]
    assert 3 < len(steps) < 20
    assert max(b - a for a, b in itertools.pairwise(steps)) >= MOST_REST_PERIODS * H / 4


def test_a_codec_that_costs_more_than_it_saves_is_not_taken() -> None:
    """The link would want fewer bytes, but the worker cannot encode them in time."""
    fast = Line(lambda now: 2e7).play(100)
    slow = Line(lambda now: 2e7, encode_s=3.0).play(100)
    assert (fast.choice.codec, slow.choice.codec) == ("4bit", "int8")


def test_nothing_is_changed_on_what_is_not_known() -> None:
    choice = CodecChoice()
    for _ in range(2 * SAMPLES):
        choice.encoded("int8", 1000, 0.5, 0.0)
    assert choice.judge(0.0, 10**6, H, STEP_S) == "", "no speed yet"
    assert choice.judge(1.0, 10**6, H, 0.0) == "", "no step yet"
    assert choice.judge(1.0, 0, H, STEP_S) == "", "too early"
    choice.encoded("fp32", 10**9, 0.0, 9.0)  # statistics always travel whole
    assert choice.judge(1e9, 10**6, H, STEP_S)
    assert choice.codec == "bf16"
    assert choice.judge(1.0, 2 * 10**6, H, STEP_S) == "", "nothing was encoded in it yet"


def test_a_learner_that_starts_over_still_changes_its_codec() -> None:
    """Its steps count from 0 again: the last change lies a thousand periods ahead."""
    line = Line(lambda now: 1e7).play(20)
    assert line.choice.codec == "4bit"
    line.choice._changed_at = 1000 * H
    again = Line(lambda now: 1e9, choice=line.choice).play(60)
    assert again.choice.codec == "bf16"
