"""How long inner steps take: always alike, jittering, drifting, with stalls, and slowed down by a fault."""

import random
from dataclasses import dataclass

DRIFT_MOST = 3.0
"""A drifting learner is at most so many times slower, or faster, than at its start."""


@dataclass(slots=True)
class Speed:
    """One learner's pace. `jitter`: spread of single steps; `drift`: change of the pace per step; both as a share.

    One step in `1 / stalls` pauses for `stall_s` more (a checkpoint, a slow disk). `slow`: what a fault multiplies by.
    """

    step_s: float = 0.05
    jitter: float = 0.0
    drift: float = 0.0
    stalls: float = 0.0
    stall_s: float = 0.0
    slow: float = 1.0
    drifted: float = 1.0

    def next_s(self, rng: random.Random) -> float:
        """Seconds of the next step."""
        took = self.step_s * self.slow
        if self.drift:
            self.drifted *= 1 + rng.uniform(-self.drift, self.drift)
            self.drifted = min(DRIFT_MOST, max(1 / DRIFT_MOST, self.drifted))
            took *= self.drifted
        if self.jitter:
            took *= max(0.1, 1 + rng.gauss(0.0, self.jitter))
        if self.stalls and rng.random() < self.stalls:
            took += self.stall_s
        return took
