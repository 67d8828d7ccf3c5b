"""Millions of chips as numbers: each learner is so many slices that fail, stay away and come back (docs/simulate.md).

Rule: a learner knows nothing of the others, as in production; what it does in time is a row of spans. Failures are
drawn all the time, in downtimes too. Whatever fails or comes back in a downtime is settled at its end: the learner goes
on with the slices that are there then, so a downtime is never made longer by a failure in it.
"""

import heapq
import math
from dataclasses import dataclass

from zdiloco.core.params import SyncParams
from zdiloco.errors import ConfigError
from zdiloco.sim import spans as figures
from zdiloco.sim.failures import SECONDS_PER_HOUR, Fortune, ReturnTimes
from zdiloco.sim.spans import Span, Trace

HOURS_PER_YEAR = 8766.0
MOST_FAILURES = 5_000_000
"""Expected failures of one run, beyond which it would take minutes and gigabytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """What was fitted to the published table, once for all of it (zdiloco/sim/paper.py says how); seconds."""

    reconfigure_s: float = 19.0
    """A learner stands still so long to go on with fewer slices, or to take in those that are back."""
    grow_wait_s: float = 100.0
    """Slices that are back wait so long for others, or for a failure, so that one downtime takes them all in."""
    restart_s: float = 66.0
    """Without elasticity everything stands still so long, to start again on spare slices from a checkpoint."""
    return_median_s: float = 300.0
    """Half of the failed slices are back within so long."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0 <= value < math.inf or (name == "return_median_s" and not value):
                raise ConfigError(f"{name} is {value}; it must be positive, and finite")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One fleet under failures. What was not fitted is an assumption; the text of a table says how much hangs on it."""

    chips: int
    learners: int = 8
    mtbi_hours: float = HOURS_PER_YEAR
    """Mean time between interruptions of one chip."""
    hours: float = 24.0
    step_s: float = 1.0
    elastic: bool = True
    """Whether a learner goes on with the slices that are left."""
    min_quorum: int = 1
    """K: with fewer learners at work nothing advances."""
    slice_chips: int = 64
    """A failed chip takes so many out with it."""
    shape: float = 0.7
    power: float = 2.0
    """Of the exponentiated Weibull distribution of the time to return."""
    constants: Constants = Constants()

    def __post_init__(self) -> None:
        for name, low, high in (("chips", 1, 10**9), ("learners", 1, 10**6), ("slice_chips", 1, 10**6)):
            _check(name, getattr(self, name), low, high)
        for name, least, most in (("mtbi_hours", 1e-3, 1e12), ("hours", 1e-3, 1e6), ("step_s", 1e-3, 1e5)):
            _check(name, getattr(self, name), least, most)
        if self.learners > self.chips:
            raise ConfigError(f"--learners is {self.learners}, but there are only {self.chips} chips for them")
        if not 1 <= self.min_quorum <= self.learners:
            raise ConfigError(f"--min-quorum is {self.min_quorum}; allowed is 1 to {self.learners}, the learners")
        if self.step_s > self.seconds:
            raise ConfigError(f"--step-time is {self.step_s:g} s, longer than the {self.hours:g} hours of --hours")
        expected = self.chips / self.mtbi_hours * self.hours
        if expected > MOST_FAILURES:
            raise ConfigError(f"that makes {expected:.3g} failures; allowed are {MOST_FAILURES:,}: fewer --hours?")
        _ = self.return_times  # says what is wrong with it

    @property
    def seconds(self) -> float:
        """How long the run is."""
        return self.hours * SECONDS_PER_HOUR

    @property
    def return_times(self) -> ReturnTimes:
        """How long failed slices stay away."""
        return ReturnTimes(median_s=self.constants.return_median_s, shape=self.shape, power=self.power)

    def chips_of(self, learner: int) -> int:
        """Chips of one learner: N / M, the first ones one more where that leaves a rest."""
        return self.chips // self.learners + (learner < self.chips % self.learners)


FLAGS = {"mtbi_hours": "--mtbi-hours", "step_s": "--step-time", "slice_chips": "--slice-chips"}


def _check(name: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless the value lies in its closed interval; NaN never does."""
    if not low <= value <= high:
        raise ConfigError(f"{FLAGS.get(name, f'--{name}')} is {value:,}; allowed is {low:,g} to {high:,g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run came to. `failures`: those that hit a slice in use; `downtimes`: of all learners together.

    `participants`: learners that answer a call at once; `in_grace`: with those that do within the longest grace window.
    """

    goodput: float
    uptime: float
    participants: float
    in_grace: float
    failures: int
    downtimes: int


def simulate(scenario: Scenario, seed: int) -> tuple[Outcome, Trace]:
    """Run one fleet, with one history of failures. The same seed gives the same trace."""
    learners = [LearnerChips(scenario, number, seed) for number in range(scenario.learners)]
    trace = [learner.run() for learner in learners]
    outcome = Outcome(
        goodput=figures.goodput(trace, scenario.chips, scenario.seconds),
        uptime=figures.uptime(trace, scenario.seconds, scenario.min_quorum),
        participants=figures.participants(trace),
        in_grace=figures.participants(trace, longest_grace_s(scenario.step_s)),
        failures=sum(learner.failures for learner in learners),
        downtimes=sum(learner.downtimes for learner in learners),
    )
    return outcome, trace


def longest_grace_s(step_s: float) -> float:
    """No grace window of the default settings is longer: gamma of the time to the next call (docs/math.md)."""
    return SyncParams().gamma * SyncParams().sync_period * step_s


class LearnerChips:
    """One learner. Its slices are in use, or back and waiting to be taken in, or away."""

    def __init__(self, scenario: Scenario, number: int, seed: int) -> None:
        chips = scenario.chips_of(number)
        self.scenario, self.constants = scenario, scenario.constants
        self.slices = math.ceil(chips / scenario.slice_chips)
        self.slice_chips = chips / self.slices
        rate = chips / (scenario.mtbi_hours * SECONDS_PER_HOUR)
        self.fortune = Fortune(seed, number, rate, scenario.return_times)
        self.in_use, self.waiting = self.slices, 0
        self.back_at: list[float] = []  # a heap: when slices that are away come back
        self.fails_at = self.fortune.until_failure()
        self.grows_at = math.inf
        self.failures = self.downtimes = 0

    def run(self) -> list[Span]:
        """The spans in which it trains, from the start to the end of the run."""
        spans, now = [], 0.0
        while now < self.scenario.seconds:
            chips = self.in_use * self.slice_chips
            ends, broken = self._train(now)
            lost = (ends - now) % self.scenario.step_s if broken else 0.0
            spans.append(Span(start_s=now, end_s=ends, useful_s=ends - now - lost, chips=chips))
            if ends < self.scenario.seconds:
                self.downtimes += 1
                now = self._stand_still(ends)
            else:
                now = ends
        return spans

    def _train(self, start: float) -> tuple[float, bool]:
        """Train until a slice in use fails, or those that are back are taken in. Returns when, and if one failed."""
        while True:
            at = min(self.fails_at, self.grows_at, self.back_at[0] if self.back_at else math.inf)
            if at >= self.scenario.seconds:
                return self.scenario.seconds, False
            if at == self.fails_at:
                if self._fail():
                    return at, True
            elif at == self.grows_at:
                return at, False
            else:
                self._come_back(start)

    def _stand_still(self, since: float) -> float:
        """The downtime that begins at `since`. Returns when it ends, with every slice that is there in use."""
        if not self.scenario.elastic:
            return self._restart(since)
        until = since + self.constants.reconfigure_s
        while True:
            at = min(self.fails_at, self.back_at[0] if self.back_at else math.inf)
            if at > until and self.in_use + self.waiting:
                break
            if at > until:  # nothing is left: it begins again when a slice is back
                until = self.back_at[0] + self.constants.reconfigure_s
            elif at == self.fails_at:
                self._fail()
            else:
                self._come_back(since)
        self.in_use, self.waiting, self.grows_at = self.in_use + self.waiting, 0, math.inf
        return until

    def _restart(self, since: float) -> float:
        """Everything starts again on spare slices; failures meanwhile are settled in the same go."""
        until = since + self.constants.restart_s
        while self.fails_at <= until:
            self.fails_at += self.fortune.until_failure()
        self.in_use, self.back_at = self.slices, []
        return until

    def _fail(self) -> bool:
        """A failure, now. Returns whether it hit a slice in use; the next one is drawn."""
        now, hit = self.fails_at, self.fortune.where() * self.slices
        self.fails_at = now + self.fortune.until_failure()
        if hit >= self.in_use + self.waiting:
            return False  # what is away cannot fail
        heapq.heappush(self.back_at, now + self.fortune.away_s())
        if hit >= self.in_use:
            self.waiting -= 1
            self.grows_at = self.grows_at if self.waiting else math.inf
            return False
        self.in_use -= 1
        self.failures += 1
        return True

    def _come_back(self, start: float) -> None:
        """A slice is back; the first one sets when all that are back are taken in, at the end of a step."""
        at = heapq.heappop(self.back_at)
        self.waiting += 1
        if self.waiting == 1 and self.scenario.elastic:
            step_s = self.scenario.step_s
            self.grows_at = start + math.ceil((at + self.constants.grow_wait_s - start) / step_s) * step_s
