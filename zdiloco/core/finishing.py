"""The end of a run at a learner: after the farewell it takes in the last versions, which are the exact Theta in fp32.

Rule: training goes on until the last version of every fragment is adopted; at that boundary its values become exactly
what was published, the work that nobody has merged is left, and it says goodbye. It waits as long as something of them
is on its way (a transfer without progress ends by itself), and `sync.drain_s` for the next sign of them. A slow link
may be busy for long with what was broadcast before: whatever comes counts, and the syncer hears that something does.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from zdiloco.core.duty import Duty
from zdiloco.core.joining import LearnerPhase, LearnerTurn
from zdiloco.core.machine import SYNCER, ChunkArrived, Drop, LearnerAction, Note, Send
from zdiloco.core.messages import Farewell, Receipt
from zdiloco.units import Epoch, Stamp

if TYPE_CHECKING:
    from zdiloco.core.learner import LearnerMachine

_P = LearnerPhase
TAKES_UPDATES = (_P.TRAINING, _P.RESTORING, _P.FINISHING)
"""Phases in which updates are taken in."""
AT_ONCE = 2
"""Last versions that a learner has on their way at once: on a slow link each must move, and the syncer holds few."""
RECEIPTS = 0.25
"""Longest time between two receipts while bytes come, as a share of what a syncer waits without one."""
NO_LAST_VALUES = "the run is over, but its last values did not come: take them from the syncer's checkpoint"


def begin(learner: "LearnerMachine", message: Farewell, now: float) -> list[LearnerAction]:
    """The run is over, says its syncer: take in the last versions. Repeated farewells change nothing."""
    if learner.phase is _P.LEAVING or message.epoch < learner.epoch:
        return []
    if learner.phase is _P.FINISHING:
        return []
    learner.move(LearnerTurn.OVER)
    learner.farewell, learner.epoch, learner.leave_reason = message, message.epoch, message.reason
    learner.global_progress = max(learner.global_progress, float(message.finished))
    came(learner, now)
    note = Note(what="takes in the last values", why=message.reason)
    return [note, *ask(learner, now)]


def ask(learner: "LearnerMachine", now: float) -> list[LearnerAction]:
    """Ask for the last versions that are not on their way, again if need be."""
    for duty in learner.duties:
        duty.pulled_at = None
    return turn(learner, now)


def came(learner: "LearnerMachine", now: float) -> None:
    """Something has come: the next of the last versions has its time."""
    if learner.phase is _P.FINISHING:
        learner.leave_ends = now + learner.sync.drain_s


def chunk_arrived(learner: "LearnerMachine", now: float) -> list[LearnerAction]:
    """Bytes have come: the syncer, which does not see broadcasts arrive, is told so, at most every report_every_s, but
    well before it would go."""
    if learner.phase is not _P.FINISHING:
        return []
    came(learner, now)
    if now < learner.reported_at + min(learner.sync.report_every_s, RECEIPTS * learner.sync.drain_s):
        return []
    learner.reported_at = now  # nothing else is reported in this phase
    return [Send(key=SYNCER, message=Receipt())]


def resumed(learner: "LearnerMachine", epoch: Epoch) -> list[LearnerAction]:
    """A syncer of a higher epoch is there: the run goes on, as far as a learner knows."""
    learner.farewell, learner.leave_ends = None, float("inf")
    learner.move(LearnerTurn.RESUMED if learner.ready else LearnerTurn.LOST)
    return [Note(what="goes on", why=f"a syncer of epoch {epoch.counter} is there after the end of the run")]


def boundary(learner: "LearnerMachine") -> list[LearnerAction]:
    """At a boundary: once the last version of every fragment is adopted, hold exactly that, and go."""
    if any(_lacks(learner, duty) or duty.adoption for duty in learner.duties):
        return []
    exact = [] if learner.watching else [Drop(fragment=duty.index) for duty in learner.duties]
    return [*exact, *learner.goodbye()]


def turn(learner: "LearnerMachine", now: float) -> list[LearnerAction]:
    """Ask for what is missing; go without it where nothing of it comes any more."""
    missing = [duty for duty in learner.duties if _lacks(learner, duty) and not _comes(learner, duty)]
    if not missing or learner.phase is not _P.FINISHING:
        return []
    if now < learner.leave_ends:
        under_way = sum(_is_asked(learner, duty) for duty in learner.duties)
        asked = [duty for duty in missing if duty.pulled_at is None][: max(0, AT_ONCE - under_way)]
        return [action for duty in asked for action in learner.inflow.pull(duty, now)]
    if any(duty.receiving for duty in learner.duties):
        return []
    learner.leave_reason, learner.farewell = NO_LAST_VALUES, None  # the run has reached its target, this one has not
    return learner.goodbye(0 if learner.watching else 3)


def _lacks(learner: "LearnerMachine", duty: Duty) -> bool:
    """Whether it does not hold the last version of a fragment yet."""
    last = learner.farewell
    if last is None or duty.index >= len(last.versions):
        return False
    return duty.progress.seen < Stamp(last.epoch, last.versions[duty.index])


def _comes(learner: "LearnerMachine", duty: Duty) -> bool:
    """Whether the last version itself is on its way in; an older one, or one of a dead epoch, brings it no nearer."""
    last = _last(learner, duty)
    return last in duty.receiving or last in duty.ready


def _is_asked(learner: "LearnerMachine", duty: Duty) -> bool:
    """Whether the last version of a fragment is asked for, and not here yet."""
    return duty.pulled_at is not None or _last(learner, duty) in duty.receiving


def _last(learner: "LearnerMachine", duty: Duty) -> Stamp:
    """The last version of a fragment."""
    assert learner.farewell is not None
    return Stamp(learner.farewell.epoch, learner.farewell.versions[duty.index])


EVENTS: dict[type, Callable[..., list[LearnerAction]]] = {
    ChunkArrived: lambda machine, event, now: chunk_arrived(machine, now),
}
"""What happens on the roads, as far as it matters at the end."""
