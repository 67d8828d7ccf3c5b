"""What becomes of a run when a region's link, or its relay, fails: one fleet of real processes, a fault at a time.

Meanwhile the others have their rounds and the region trains on; afterwards all that it has done is merged, and the
ledger balances.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S
from tests.wan.fleet import Fare, Fleet
from tests.wan.lab import Lab

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.wan]
WHOLE = {"mbit_s": 20.0, "delay_s": 0.02, "queue_s": 0.1, "loss": 0.0, "open": True}
NARROW_MBIT_S = 1.0
"""So slow that something is half-way when the relay is killed."""
HALF_WAY_BYTES = 15_000
LEAST_ROUNDS = 0.7
"""Rounds of a fragment in H steps of the fastest, during a fault: of one, or of what there were before if they were
fewer; of a dozen rounds in all, one more or less is a tenth."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How long each fault lasts, in seconds, and how soon it is noticed."""

    calm_s: float
    cut_s: float
    half_open_s: float
    lossy_s: float
    without_relay_s: float
    rounds: int
    slowdown: float
    sections: dict[str, dict[str, Any]]


FULL = Lengths(
    calm_s=30, cut_s=60, half_open_s=60, lossy_s=20, without_relay_s=20, rounds=20, slowdown=8.0,
    sections={
        "sync": {"beat_every_s": 1.0, "suspect_after_s": 3.0, "gone_after_s": 6.0, "report_every_s": 0.1},
        "learner": {"silent_after_s": 6.0, "answer_timeout_s": 5.0},
        "net": {"stall_s": 2.0},
    },
)  # fmt: skip
"""Limits as they are by default."""
SHORT = Lengths(
    calm_s=2, cut_s=2, half_open_s=2, lossy_s=2, without_relay_s=1, rounds=12, slowdown=10.0,
    sections={
        "sync": {"sync_period": 4, "suspect_after_s": 0.7, "gone_after_s": 1.4},
        "learner": {"silent_after_s": 0.7, "answer_timeout_s": 0.4},
        "net": {"stall_s": 0.4},
    },
)  # fmt: skip
"""Steps are rare, so that the machine has time for others; a fault outlasts by little what it takes to be gone, since
TCP tries again only after as long as it has lasted."""


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param(SHORT, marks=[pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)], id="short"),
        pytest.param(FULL, marks=[pytest.mark.long, pytest.mark.timeout(1800)], id="full"),
    ],
)
def test_a_region_outlives_what_befalls_its_link_and_its_relay(
    lab_of: Callable[[int], Lab], say: Callable[[str], None], lengths: Lengths
) -> None:
    """A-3, A-8, A-17, A-19."""
    lab = lab_of(2)
    lab.write(**lengths.sections)
    lab.links[0].both(**WHOLE)
    fleet = Fleet(lab, slowdown=lengths.slowdown)
    calm = fleet.fares(lengths.calm_s, lengths.rounds, apart=False)
    trial = Trial(fleet, calm, lengths, say)
    trial.shaped("cut off", lengths.cut_s, {"open": False}, {"open": False})
    trial.shaped("nothing comes down", lengths.half_open_s, {}, {"open": False})
    if lengths is FULL:
        trial.shaped("nothing goes up", lengths.half_open_s, {"open": False}, {})
    trial.shaped("30 % loss", lengths.lossy_s, {"loss": 0.3}, {"loss": 0.3})
    trial.without_relay()
    fleet.end()
    lab.assert_accounted_for("near", "a", "b")


class Trial:
    """One fault after another, each judged by how all fared before the first."""

    def __init__(self, fleet: Fleet, calm: Fare, lengths: Lengths, say: Callable[[str], None]) -> None:
        self.fleet, self.calm, self.lengths, self.say = fleet, calm, lengths, say

    def shaped(self, what: str, seconds: float, up: dict[str, Any], down: dict[str, Any]) -> None:
        """The link is like that for a while, and then whole again."""
        before = self.fleet.link.shaped(up, down)
        fare = self.fleet.fares(seconds, self.lengths.rounds, apart=True)
        after = self.fleet.link.both(**WHOLE)
        for way, shape in (("up", up), ("down", down)):
            assert not shape or after[way]["lost"] > before[way]["lost"], f"nothing was lost {way}"
        self._healed(what, fare)

    def without_relay(self) -> None:
        """The relay is killed while something is half-way, and comes back."""
        lab, link = self.fleet.lab, self.fleet.link
        link.both(mbit_s=NARROW_MBIT_S)
        lab.until(lambda: link.carried["up"]["waiting_bytes"] > HALF_WAY_BYTES, "something half-way", self.fleet.relay)
        self.fleet.relay.kill()
        fare = self.fleet.fares(self.lengths.without_relay_s, self.lengths.rounds, apart=True)
        link.both(**WHOLE)
        self.fleet.relay = lab.relay(1)
        self._healed("the relay is killed", fare)

    def _healed(self, what: str, fare: Fare) -> None:
        began = time.monotonic()
        merged_s = self.fleet.merged_s()
        self.say(f"{what}: {fare.over(self.calm)}; merged {merged_s:.1f} s after healing")
        assert time.monotonic() - began < 120
        assert fare.per_period > LEAST_ROUNDS * min(1.0, self.calm.per_period), what
