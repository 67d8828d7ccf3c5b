"""Wall clocks of two sides: how far they are apart, and how sure that is.

Rule: a question is asked and answered within a round trip, so the other clock is known to half of that. The best of
several questions counts. Wall time is read here for people only: nothing of a run depends on it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from zdiloco.doctor.finding import Finding, Measured, Side, Verdict, found, unknown

Wall = Callable[[], float]
wall: Wall = time.time
"""Seconds since 1970, by the clock of this machine."""
APART_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Skew:
    """How far their clock is ahead of ours, give or take `unsure_s`."""

    ahead_s: float
    unsure_s: float


def skew_of(asked: float, theirs: float, took_s: float) -> Skew:
    """What one question tells: our clock when it was asked, theirs in the answer, seconds from question to answer."""
    return Skew(ahead_s=theirs - (asked + took_s / 2), unsure_s=took_s / 2)


def judge_clock(skew: Skew | None) -> Finding:
    """Whether it is surely more than a second."""
    if skew is None:
        return unknown("clock", Side.THERE, "nobody there tells the time")
    apart = abs(skew.ahead_s) - skew.unsure_s > APART_S
    way = "ahead" if skew.ahead_s > 0 else "behind"
    said = f"{abs(skew.ahead_s):.3g} s {way} of ours, give or take {skew.unsure_s:.2g} s"
    measured = Measured(said=said, value=skew.ahead_s, unit="s")
    return found("clock", Side.THERE, Verdict.WARN if apart else Verdict.OK, measured)
