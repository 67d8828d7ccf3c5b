"""When chips fail, and how long the failed capacity stays away: seeded, and the same whatever else is simulated.

Rule: failures are one Poisson process over all chips of a learner, those that are away included. A failure of what is
away changes nothing, so the ones that count are exactly as frequent as the chips that are there, and two runs that
differ in a constant meet the same failures at the same moments.
"""

import math
import random
from dataclasses import dataclass

from zdiloco.errors import ConfigError

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReturnTimes:
    """Exponentiated Weibull: P(away <= x) = (1 - exp(-(x / scale)^shape))^power; given by its median, in seconds."""

    median_s: float
    shape: float
    power: float

    def __post_init__(self) -> None:
        for name in ("median_s", "shape", "power"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} of the time to return is {value}; it must be above 0, and finite")

    @property
    def scale_s(self) -> float:
        """The scale that gives the median."""
        return self.median_s / self._standard(0.5)

    def quantile(self, share: float) -> float:
        """The time within which this share of failed capacity is back; `share` lies between 0 and 1, both excluded."""
        return self.scale_s * self._standard(share)

    def _standard(self, share: float) -> float:
        return float((-math.log1p(-(share ** (1 / self.power)))) ** (1 / self.shape))


class Fortune:
    """The random numbers of one learner: failures, what they hit, and times to return, each a stream of its own."""

    def __init__(self, seed: int, learner: int, failures_per_s: float, times: ReturnTimes) -> None:
        self._when = random.Random(f"{seed}/{learner}/failures")
        self._where = random.Random(f"{seed}/{learner}/slices")
        self._back = random.Random(f"{seed}/{learner}/returns")
        self._rate = failures_per_s
        self._scale_s, self._standard = times.scale_s, times._standard

    def until_failure(self) -> float:
        """Seconds from one failure to the next one; infinite where nothing fails."""
        return self._when.expovariate(self._rate) if self._rate > 0 else math.inf

    def where(self) -> float:
        """Which slice a failure hits, as a share of all of them: 0 to 1."""
        return self._where.random()

    def away_s(self) -> float:
        """How long a slice that fails now stays away."""
        return self._scale_s * self._standard(1.0 - self._back.random() or 0.5)
