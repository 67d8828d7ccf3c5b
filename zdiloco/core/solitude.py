"""A learner without any syncer: it says so less and less often, and ends when `learner.give_up_after_s` is over.

Rule: any word of a syncer counts, also that it is only starting. Who gives up has lost nothing but time: what it has
trained is written by its body (`rundir/last_values.py`).
"""

import math
from typing import TYPE_CHECKING

from zdiloco.core.machine import LearnerAction, Note

if TYPE_CHECKING:
    from zdiloco.core.learner import LearnerMachine

WARN_FIRST_S, WARN_MOST_S = 60.0, 3600.0
GAVE_UP = "alone"
"""`Stop.word` of a learner that has given up."""


def alone(learner: "LearnerMachine", now: float) -> list[LearnerAction]:
    """No syncer answers: say so at sensible intervals, and stop when that has been so for too long."""
    alone_s, limit_s = now - learner.heard_at, learner.params.give_up_after_s
    if alone_s == math.inf:
        return []  # it has not even begun
    if alone_s < WARN_FIRST_S:
        learner.hail.warn_after_s = WARN_FIRST_S
    if limit_s and alone_s >= limit_s:
        why = f"no syncer for {alone_s:.0f} s (learner.give_up_after_s is {limit_s:g}): start one, then this learner"
        return learner.stop(why, 3, GAVE_UP)
    if alone_s < learner.hail.warn_after_s:
        return []
    learner.hail.warn_after_s = alone_s + min(alone_s, WARN_MOST_S)
    then = f"; it gives up in {limit_s - alone_s:.0f} s" if limit_s else ""
    return [Note(what="is without a syncer", why=f"for {alone_s:.0f} s{then}", level="warning")]
