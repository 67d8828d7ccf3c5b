"""Learning rates as pure functions of where the run and the learner stand.

The road of the rate is laid over *global* progress (tokens merged / target tokens), so that learners of different speed
walk it together and a learner that joins late starts in the middle, not at the beginning. A fresh inner optimizer has
no second moments to trust, so each join adds a short local warm-up. The rate is 0 only where the user asked for 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from zdiloco.errors import ConfigError

WARMUP_START = 0.1  # share of `lr` at progress 0: progress moves only with the first merge, and must be able to start


@dataclass(frozen=True, kw_only=True, slots=True)
class InnerSchedule:
    """Linear warm-up, then a cosine from `lr` down to `final_fraction * lr`, times a local warm-up after a join.

    `warmup_fraction` is a share of global progress; `rejoin_warmup_steps` counts this learner's own steps.
    """

    lr: float
    warmup_fraction: float = 0.02
    final_fraction: float = 0.1
    rejoin_warmup_steps: int = 20

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ConfigError(f"lr is {self.lr}, but must be finite and > 0")
        if not 0 <= self.warmup_fraction < 1:
            raise ConfigError(f"warmup_fraction is {self.warmup_fraction}, but allowed is 0 <= warmup_fraction < 1")
        if not 0 <= self.final_fraction <= 1:
            raise ConfigError(f"final_fraction is {self.final_fraction}, but allowed is 0 to 1")
        if self.rejoin_warmup_steps < 0:
            raise ConfigError(f"rejoin_warmup_steps is {self.rejoin_warmup_steps}, but must be >= 0")

    def rate(self, progress: float, local_steps_since_join: int) -> float:
        """Learning rate for the next inner step; `progress` outside 0..1 counts as its nearest end.

        Falls or rises continuously in `progress`; positive everywhere, save at progress 1 with `final_fraction` 0.
        """
        return self.lr * self._road(min(max(progress, 0.0), 1.0)) * self._joining(local_steps_since_join)

    def _road(self, progress: float) -> float:
        """Share of `lr` at global `progress`, 0..1."""
        if progress < self.warmup_fraction:
            return WARMUP_START + (1 - WARMUP_START) * progress / self.warmup_fraction
        done = (progress - self.warmup_fraction) / (1 - self.warmup_fraction)
        return self.final_fraction + (1 - self.final_fraction) * 0.5 * (1 + math.cos(math.pi * done))

    def _joining(self, local_steps: int) -> float:
        """Share left by the local warm-up: 1/(n+1) at the first step after a join, 1 from step n on."""
        return min(1.0, (max(local_steps, 0) + 1) / (self.rejoin_warmup_steps + 1))
