"""How large a contribution may be: what is far above the usual norm is scaled down, what is absurd is refused.

Rule: what is usual is the norm of what the others send, per root of their inner steps, so that nobody sets its own
bound; a long absence makes a contribution large, and that never gets it refused (docs/math.md, 24 and 25).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from zdiloco.core.progress import Held

ABSURD = 1000.0
"""A norm so many times that of the fragment's values, or that of as many ones if that is more, is refused."""
FOLLOWS = 2.0
"""What is believed of a learner's own past grows by so much a version at most."""
MEMORY = 16
"""Versions of a fragment for which the norm of a learner's newest contribution is remembered."""


class Remark(StrEnum):
    """What was found about a contribution that is merged all the same."""

    CLIPPED = "clipped"
    """Its norm is far above that of what the others send: scaled down to the bound."""
    TRIMMED = "trimmed"
    """Its direction is not that of the others: left out where it stands apart (merge.robust)."""
    ZERO = "zero"
    """Nothing but zeros, while others have moved: it takes no part in the mean."""
    TAIL = "tail"
    """The run ends, and far fewer than usual are in this round: its step is scaled down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """What of a contribution enters a merge: `clip` multiplies its values; 0 takes it out. No remark: all of it."""

    clip: float = 1.0
    remark: Remark | None = None
    why: str = ""

    def without(self, share: float) -> "Passed":
        """The same, when the merge has left out this share of its values: that is worse than anything else."""
        if not share:
            return self
        why = f"its direction is not that of the others on {share:.0%} of its values: they are left out"
        return replace(self, remark=Remark.TRIMMED, why="; ".join(filter(None, (self.why, why))))


WHOLE = Passed()


@dataclass(frozen=True, slots=True)
class _Seen:
    """`rate`: norm per root of steps, as it came; `trusted`: the same, but never above what was usual."""

    version: int
    rate: float
    trusted: float


@dataclass(slots=True)
class Norms:
    """Norms of one fragment's contributions (those of buffers are 0).

    Whoever is alone is never scaled down: one learner is as good as without us.
    """

    _seen: dict[str, _Seen] = field(default_factory=dict)

    def judge(self, taken: Sequence[Held], version: int, factor: float, living: Set[str]) -> list[Passed]:
        """Say what of each enters the merge that makes `version`, and remember their norms.

        `factor`: times the usual norm to which larger ones are scaled down; 0: none is. `living`: names of learners
        that still count; of others nothing is remembered.
        """
        self._seen = {name: seen for name, seen in self._seen.items() if name in living}
        rates = {name: seen.rate for name, seen in self._seen.items()}
        rates.update({held.id.name: _rate(held) for held in taken if held.norm > 0})
        ordered, moved = sorted(rates.values()), any(held.norm > 0 for held in taken)
        usual = [self._usual(held.id.name, rates, ordered) for held in taken]
        passed = [_judge(held, at, factor, moved) for held, at in zip(taken, usual, strict=True)]
        for held, at in zip(taken, usual, strict=True):
            if held.norm > 0:
                rate = _rate(held)
                self._seen[held.id.name] = _Seen(version, rate, rate if at is None else min(rate, FOLLOWS * at))
        self._seen = {name: seen for name, seen in self._seen.items() if seen.version > version - MEMORY}
        return passed

    def would(self, taken: Sequence[Held], version: int, factor: float, living: Set[str]) -> list[Passed]:
        """What `judge` would say now; nothing is remembered."""
        return Norms(dict(self._seen)).judge(taken, version, factor, living)

    def _usual(self, name: str, rates: dict[str, float], ordered: Sequence[float]) -> float | None:
        """Norm per root of steps that is usual among all but this one; None: there is nothing to compare with.

        `rates`: of whoever is remembered or has sent now; `ordered`: the same rates in ascending order.
        """
        own, mine = self._seen.get(name), rates.get(name)
        others = len(ordered) - (mine is not None)
        if not others:
            return None
        skip = len(ordered) if mine is None else bisect_left(ordered, mine)
        if others == 1:  # of two that differ nobody knows who is right, unless one was otherwise before
            return None if own is None else max(own.trusted, ordered[0 if skip else 1])
        low, high = (ordered[place + (place >= skip)] for place in ((others - 1) // 2, others // 2))
        return (low + high) / 2 if low != high else low


def _judge(held: Held, usual: float | None, factor: float, moved: bool) -> Passed:
    """Say what of one enters the merge. `moved`: whether anybody's values in it are other than zero."""
    if held.norm == 0:
        why = "all its values are zero, while others have moved"
        return Passed(clip=0.0, remark=Remark.ZERO, why=why) if moved else WHOLE
    steps = held.message.steps
    bound = factor * usual * math.sqrt(steps) if factor and usual is not None else math.inf
    if bound >= held.norm:
        return WHOLE
    clip, of = bound / held.norm, f"{factor:g} times what the others send"
    why = f"its norm is {held.norm:.3g} after {steps} steps, the bound {bound:.3g} is {of}: scaled by {clip:.3g}"
    return Passed(clip=clip, remark=Remark.CLIPPED, why=why)


def absurd(norm: float, values: float, numel: int) -> str:
    """Say why a contribution of this norm cannot be work, whatever the others send; empty: it can.

    `values`: norm of the fragment's own values; `numel`: how many there are. An absolute bound, so that nobody is sent
    away for being unlike the others: whoever is below it is scaled down at most.
    """
    bound = ABSURD * max(values, math.sqrt(numel))
    if norm <= bound:
        return ""
    return f"its norm is {norm:.3g}; that of the values is {values:.3g}, and above {bound:.3g} no work is believed"


def _rate(held: Held) -> float:
    return held.norm / math.sqrt(held.message.steps)
