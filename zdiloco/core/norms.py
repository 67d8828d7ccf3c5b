"""How large a contribution may be: what is far above the usual norm is scaled down, what is absurd is refused.

Rule: what is usual is the norm of what the others send, per root of their inner steps, so that nobody sets its own
bound; a long absence makes a contribution large, and that alone never gets it refused (docs/math.md, 24 and 25).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from zdiloco.core.progress import Held

ABSURD = 1000.0
"""A norm so many times the usual one, or that of the published values where nothing is usual, is refused."""
MEMORY = 16
"""Versions of a fragment for which the norm of a learner's newest contribution is remembered."""


class Remark(StrEnum):
    """What was found about a contribution that is merged all the same."""

    CLIPPED = "clipped"
    """Its norm is far above that of what the others send: scaled down to the bound."""
    ZERO = "zero"
    """Nothing but zeros, while others have moved: it takes no part in the mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """What of a contribution enters a merge: `clip` multiplies its values; 0 takes it out. No remark: all of it."""

    clip: float = 1.0
    remark: Remark | None = None
    why: str = ""


WHOLE = Passed()


@dataclass(frozen=True, slots=True)
class _Seen:
    """`rate`: norm per root of steps, as it came; `trusted`: the same, but never above what was usual."""

    version: int
    rate: float
    trusted: float


@dataclass(slots=True)
class Norms:
    """Norms of one fragment's contributions. `values`: that of its values as the syncer took them in; 0: unknown.

    `buffers`: the fragment holds no parameters. Statistics may stand still or move by any distance from where they
    began, so they are bounded by what others send and by nothing else.
    """

    values: float = 0.0
    buffers: bool = False
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def absurd(self, held: Held, beside: Iterable[Held]) -> str:
        """Say why this contribution is refused, whoever else is merged with it; empty: it is not.

        `beside`: what else is held of this fragment.
        """
        if self.buffers:
            return ""
        usual = self._usual(held, beside)
        bound = self.values if usual is None else usual * math.sqrt(held.message.steps)
        if not 0 < bound * ABSURD < held.norm:
            return ""
        of = "the published values" if usual is None else "what the others send"
        return f"its norm is {held.norm:.3g}, {held.norm / bound:.3g} times that of {of}; refused above {ABSURD:g}"

    def judge(self, taken: Sequence[Held], version: int, factor: float) -> list[Passed]:
        """Say what of each enters the merge that makes `version`, and remember their norms.

        `factor`: times the usual norm to which larger ones are scaled down; 0: none is.
        """
        usual = [self._usual(held, taken) for held in taken]
        passed = [self._judge(held, at, taken, factor) for held, at in zip(taken, usual, strict=True)]
        for held, at in zip(taken, usual, strict=True):
            if held.norm > 0:
                rate = _rate(held)
                self._seen[held.id.name] = _Seen(version, rate, rate if at is None else min(rate, at))
        self._seen = {name: seen for name, seen in self._seen.items() if seen.version > version - MEMORY}
        return passed

    def _judge(self, held: Held, usual: float | None, taken: Sequence[Held], factor: float) -> Passed:
        if held.norm == 0 and not self.buffers:
            why = "all its values are zero, while others have moved"
            return Passed(clip=0.0, remark=Remark.ZERO, why=why) if any(h.norm > 0 for h in taken) else WHOLE
        steps = held.message.steps
        values = 0.0 if self.buffers else self.values
        bound = values if usual is None else factor * usual * math.sqrt(steps)
        if not factor or not 0 < bound < held.norm:
            return WHOLE
        clip = bound / held.norm
        of = "the norm of the published values" if usual is None else f"{factor:g} times what the others send"
        why = f"its norm is {held.norm:.3g} after {steps} steps, the bound {bound:.3g} is {of}: scaled by {clip:.3g}"
        return Passed(clip=clip, remark=Remark.CLIPPED, why=why)

    def _usual(self, held: Held, beside: Iterable[Held]) -> float | None:
        """Norm per root of steps that is usual beside this contribution; None: there is nothing to compare with."""
        own = self._seen.get(held.id.name)
        rates = {name: seen.rate for name, seen in self._seen.items()}
        rates.update({other.id.name: _rate(other) for other in beside if other.norm > 0})
        rates.pop(held.id.name, None)
        if not rates:
            return None
        if len(rates) == 1 and own is not None:
            return max(own.trusted, *rates.values())  # of two that differ nobody knows who is right
        return median(rates.values())


def _rate(held: Held) -> float:
    return held.norm / math.sqrt(held.message.steps)
