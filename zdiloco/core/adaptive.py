"""H and K that follow the fleet (`sync.adaptive`): how often fragments are called, and for whom their rounds wait.

Rule: both start at their settings and never go below them. They are looked at once in as many rounds as there are
fragments, from what the desk measures anyway; every change has its reason in words. What they do to a round is bounded:
one that may close waits on only for those who may still answer, and not beyond a period from its call. How long the
grace window is says `adaptive_grace.py`.
"""

import math
from dataclasses import dataclass

from zdiloco.core.adaptive_grace import AdaptiveGrace, Room
from zdiloco.core.params import MOST_PERIOD, SyncParams
from zdiloco.core.rounds import Attendance, Close, Wait, names

AS_SET = "as set"
STRETCH = 8
"""H grows to so many times the setting, where `adaptive_period_max` does not say otherwise."""
AT_ONCE = 2.0
"""H grows by this factor at most in one step, and falls back by a fifth."""
BACK = 0.8
FULL, ROOM = 1.1, 0.56
"""Shares of a period that carrying all fragments may need: above the first H grows, below the other it may fall."""
BUSY, ANSWERED = 0.6, 0.95
"""Shares of calls that are answered: below the first links are too busy and H grows, above the other it may fall. Who
declines because it has nothing to say, or waits for something, says nothing of its link and is left out."""
SETTLE = 2
"""Looks after a change until H may grow again: the averages are of before."""
PATIENCE, MOST_PATIENCE = 16, 256
"""Looks without need until H falls; twice as many each time that it had to grow right after."""
NEARLY, GONE = 0.1, 0.5
"""K grows where so little is missing to one more in each round, and falls where more than that is missing to K."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What is measured at a look: fragments, how many rounds may be open, seconds of a round, of a step (None: not
    known) and of slack, who takes part in a round on average, who counts now, and the highest K that memory allows."""

    fragments: int
    open_rounds: int
    round_s: float | None
    step_s: float | None
    slack_s: float
    usual: float
    live: int
    most_quorum: int


class Adaptive:
    """The H, K and grace of one syncer, `sync_period`, `min_quorum` and `grace`; `why`: of their last change."""

    def __init__(self, params: SyncParams) -> None:
        self.params = params
        self.grace = AdaptiveGrace(params)
        self.sync_period, self.min_quorum = params.sync_period, params.min_quorum
        self.longest = params.adaptive_period_max or min(MOST_PERIOD, STRETCH * params.sync_period)
        self.why = AS_SET
        self._answers = self._declines = 0.0
        self._rounds = 0
        self._looks = self._quiet = 0
        self._patience, self._fell = PATIENCE, False

    @property
    def answered(self) -> float:
        """The share of calls that were answered lately, of those that were answered or declined by a busy uplink."""
        asked = self._answers + self._declines
        return self._answers / asked if asked else 1.0

    # ---- what a round is told

    def waits_on(self, found: Wait | Close, seen: Attendance, ends: float, now: float) -> Wait | Close:
        """The same decision, unless the round may close and fewer are in than usually: then it waits for these.

        Never for more than may still answer, and not beyond `ends`, a period of the fastest from its call.
        """
        quorum = min(self.min_quorum, len(seen.held) + len(seen.absent))
        if isinstance(found, Wait) or len(seen.held) >= quorum or now >= ends:
            return found
        why = f"{len(seen.held)} in, and {quorum} usually take part; missing {names(seen.absent)}"
        return Wait(until=ends, why=why)

    def closed(self, answers: int, declines: int) -> None:
        """A round closes to which so many have answered, while the uplinks of so many were too busy."""
        self.grace.closed()
        self._answers += answers
        self._declines += declines

    # ---- looking

    def is_due(self, fragments: int) -> bool:
        """One more round is over; whether it is time to look."""
        self._rounds += 1
        if self._rounds < fragments:
            return False
        self._rounds = 0
        return True

    def look(self, seen: Seen) -> list[tuple[str, str]]:
        """Follow what is measured; return what has changed, each with its reason."""
        changes = [*self._look_period(seen), *self._look_quorum(seen), *self.grace.look(self._room(seen))]
        self._answers, self._declines = self._answers / 2, self._declines / 2
        if changes:
            self.why = "; ".join(f"{what}: {why}" for what, why in changes)
        return changes

    def _look_period(self, seen: Seen) -> list[tuple[str, str]]:
        self._looks += 1
        period_s = self.sync_period * (seen.step_s or 0.0)
        if not period_s or seen.round_s is None:
            return []
        needs = seen.fragments * seen.round_s / max(1, seen.open_rounds) / period_s
        answered = self.answered
        wanted = max(needs if needs > FULL else 0.0, 1.0 / max(answered, 1 / AT_ONCE) if answered < BUSY else 0.0)
        if wanted > 1.0:
            self._quiet = 0
            why = f"all fragments need {needs:.2f} periods of {period_s:.3g} s, {answered:.0%} of calls are answered"
            return self._grow(wanted, why) if self._looks > SETTLE else []
        self._quiet = self._quiet + 1 if needs < ROOM and answered >= ANSWERED else 0
        if self.sync_period == self.params.sync_period or self._quiet < self._patience:
            return []
        self._fell = True
        lower = max(self.params.sync_period, min(self.sync_period - 1, math.floor(self.sync_period * BACK)))
        return self._change(lower, f"all fragments need only {needs:.2f} periods of {period_s:.3g} s")

    def _grow(self, wanted: float, why: str) -> list[tuple[str, str]]:
        higher = min(self.longest, math.ceil(self.sync_period * min(wanted, AT_ONCE)))
        if higher <= self.sync_period:
            return []
        if self._fell:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._fell = False
        return self._change(higher, why)

    def _change(self, period: int, why: str) -> list[tuple[str, str]]:
        before, self.sync_period = self.sync_period, period
        self._looks = self._quiet = 0
        self._answers = self._declines = 0.0
        return [(f"H is {period}, no longer {before}", why)]

    def _room(self, seen: Seen) -> Room:
        """How long grace windows may be: such that rounds of all fragments fit into a period, and never make H grow."""
        if self.sync_period > self.params.sync_period:
            return Room(most=0.0, why="H is above its setting, and rounds should get shorter", usual=seen.usual)
        period_s = self.sync_period * (seen.step_s or 0.0)
        fits = 1.0 - period_s * (1.0 - seen.open_rounds / seen.fragments) / seen.slack_s if seen.slack_s > 0.0 else 0.0
        why = f"{seen.open_rounds} rounds at once, {seen.slack_s:.3g} s of slack in a period of {period_s:.3g} s"
        return Room(most=max(0.0, min(self.grace.longest, fits)), why=why, usual=seen.usual)

    def _look_quorum(self, seen: Seen) -> list[tuple[str, str]]:
        most = min(seen.live, seen.most_quorum)
        if self.params.adaptive_quorum_max:
            most = min(most, self.params.adaptive_quorum_max)
        before, least = self.min_quorum, self.params.min_quorum
        if before > max(least, most):
            self.min_quorum, why = max(least, most), f"{seen.live} are live"
        elif before > least and seen.usual < before - GONE:
            self.min_quorum, why = before - 1, f"{seen.usual:.2f} take part in a round"
        elif before < most and seen.usual >= before + 1 - NEARLY:
            self.min_quorum, why = before + 1, f"{seen.usual:.2f} take part in a round"
        else:
            return []
        return [(f"K is {self.min_quorum}, no longer {before}", why)]
