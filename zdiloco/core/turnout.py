"""How many take part in the rounds of a fragment, and how far a round of far fewer may go (docs/math.md, 26).

Rule: while a run goes on every round takes its whole step, a lone contribution too; few in it are only noted. At the
end of a run a small rest of the fleet does not: nobody comes after it to put right what one learner's data have done.
Counters of tokens know nothing of it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from zdiloco.core.grace import Average
from zdiloco.core.machine import Note
from zdiloco.core.norms import Passed, Remark

FEW = 0.5
"""Below this share of the usual number a round has few contributions."""


class Turnout:
    """The usual number of contributions in a round of one fragment. `thin`: rounds with few, or with fewer than K;
    `plain`: rounds with fewer than a robust merge takes."""

    def __init__(self, share: float) -> None:
        self.usual = Average(share)
        self.thin = self.plain = 0

    def judge(self, passed: Sequence[Passed], quorum: int, *, ending: bool) -> tuple[list[Passed], str]:
        """Say what of each enters the merge now, and what is worth saying of their number (empty: it is as usual).

        `quorum`: the K of the settings, whatever holds now. `ending`: the run closes its last rounds.
        """
        count = sum(each.clip > 0 for each in passed)
        usual = max(float(quorum), self.usual.value or 0.0)
        few = count < quorum or count < FEW * usual
        if not ending:
            self.usual.add(float(count))
        if not few or not count:
            return list(passed), ""
        self.thin += 1
        why = f"{count} where {usual:.3g} are usual"
        if not ending:
            return list(passed), why
        factor = math.sqrt(count / usual)
        why = f"{why}, at the end of the run: scaled by {factor:.3g}"
        return [_shortened(each, factor, why) for each in passed], why

    def merged(self, fragment: int, plain: str) -> list[Note]:
        """A round is merged. `plain`: why not robustly, though it was to be; said aloud once."""
        if not plain:
            return []
        self.plain += 1
        what, level = f"fragment {fragment} is merged as if nobody were hostile", "info" if self.plain == 1 else "debug"
        return [Note(what=what, why=f"{plain}; sync.min_quorum = 3 waits for them", level=level)]


def _shortened(passed: Passed, factor: float, why: str) -> Passed:
    remark = passed.remark or Remark.TAIL
    return replace(passed, clip=passed.clip * factor, remark=remark, why="; ".join(filter(None, (passed.why, why))))
