"""The last look of a process that only watches: after the farewell it fetches what it lacks of the final values.

Rule: it has as long as the syncer stays for it (`sync.drain_s`), and asks for nothing more once it holds the versions
that the farewell names. A learner that trains is done at the farewell.
"""

from typing import TYPE_CHECKING

from zdiloco.core.duty import Duty
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.machine import LearnerAction
from zdiloco.units import Stamp

if TYPE_CHECKING:
    from zdiloco.core.learner import LearnerMachine


def takes_updates(learner: "LearnerMachine") -> bool:
    """Whether updates are taken now: while it takes part, and, where it only watches, after the farewell."""
    last = learner.watching and learner.farewell is not None and learner.phase is LearnerPhase.LEAVING
    return last or learner.phase in (LearnerPhase.TRAINING, LearnerPhase.RESTORING)


def lacks(learner: "LearnerMachine", duty: Duty) -> bool:
    """Whether it watches and does not hold the last version of a fragment yet."""
    last = learner.farewell
    if not learner.watching or last is None or last.epoch != learner.epoch or duty.index >= len(last.versions):
        return False
    return duty.progress.seen < Stamp(last.epoch, last.versions[duty.index])


def still_comes(learner: "LearnerMachine", duty: Duty) -> bool:
    """Whether who watches and leaves waits for something of this fragment."""
    return learner.watching and (duty.arriving or lacks(learner, duty))


def fetch_last(learner: "LearnerMachine", now: float) -> list[LearnerAction]:
    """Ask for the last versions that it lacks and that are not on their way."""
    missing = [duty for duty in learner.duties if lacks(learner, duty) and not duty.arriving]
    return [action for duty in missing for action in learner.inflow.pull(duty, now)]
