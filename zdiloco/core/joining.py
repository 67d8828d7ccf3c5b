"""How a learner stands with the syncer, and how often it says hello.

Rule: a learner that has values trains on, whatever happens to the syncer; only one without values waits.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from zdiloco.core.messages import Heartbeat, Hello, Report
from zdiloco.units import NO_EPOCH

if TYPE_CHECKING:
    from zdiloco.core.learner import LearnerMachine

HELLO_FIRST_S = 0.5
HELLO_MOST_S = 5.0


class LearnerPhase(StrEnum):
    """What a learner is doing."""

    HAILING = "hailing"
    """Says hello; has no published values."""
    DONATING = "donating"
    """Sends its own values, with which the run begins."""
    RESTORING = "restoring"
    """Welcome; loads the published values before its first step."""
    TRAINING = "training"
    """Makes steps, contributes and adopts."""
    ADRIFT = "adrift"
    """Trains on without the syncer, and says hello again."""
    FINISHING = "finishing"
    """The run is over: takes in the last values, then says goodbye."""
    LEAVING = "leaving"
    """Pushes what fits, then says goodbye."""
    STOPPED = "stopped"
    """Over: nothing is handled any more."""


class LearnerTurn(StrEnum):
    """What moves a learner on."""

    ASKED = "asked for the initial values"
    WELCOMED = "welcomed"
    WELCOMED_BACK = "welcomed back"
    LOADED = "every fragment loaded"
    LOST = "syncer silent, unknown or new"
    OFFENDED = "its values cannot be merged"
    OVER = "the run is over"
    RESUMED = "the run goes on"
    LEAVE = "asked to leave"


_P, _T = LearnerPhase, LearnerTurn
TABLE: dict[tuple[LearnerPhase, LearnerTurn], LearnerPhase] = {
    (_P.HAILING, _T.ASKED): _P.DONATING,
    (_P.HAILING, _T.WELCOMED): _P.RESTORING,
    (_P.HAILING, _T.LEAVE): _P.LEAVING,
    (_P.DONATING, _T.WELCOMED): _P.RESTORING,
    (_P.DONATING, _T.LOST): _P.HAILING,
    (_P.DONATING, _T.LEAVE): _P.LEAVING,
    (_P.DONATING, _T.OFFENDED): _P.HAILING,
    (_P.RESTORING, _T.WELCOMED): _P.RESTORING,
    (_P.RESTORING, _T.LOADED): _P.TRAINING,
    (_P.RESTORING, _T.LOST): _P.HAILING,
    (_P.RESTORING, _T.LEAVE): _P.LEAVING,
    (_P.RESTORING, _T.OFFENDED): _P.HAILING,
    (_P.TRAINING, _T.WELCOMED): _P.TRAINING,
    (_P.TRAINING, _T.LOST): _P.ADRIFT,
    (_P.TRAINING, _T.OFFENDED): _P.HAILING,
    (_P.TRAINING, _T.LEAVE): _P.LEAVING,
    (_P.ADRIFT, _T.WELCOMED_BACK): _P.TRAINING,
    (_P.ADRIFT, _T.OFFENDED): _P.HAILING,
    (_P.ADRIFT, _T.LEAVE): _P.LEAVING,
    (_P.HAILING, _T.OFFENDED): _P.HAILING,
    (_P.HAILING, _T.OVER): _P.FINISHING,
    (_P.DONATING, _T.OVER): _P.FINISHING,
    (_P.RESTORING, _T.OVER): _P.FINISHING,
    (_P.TRAINING, _T.OVER): _P.FINISHING,
    (_P.ADRIFT, _T.OVER): _P.FINISHING,
    (_P.FINISHING, _T.RESUMED): _P.ADRIFT,
    (_P.FINISHING, _T.LOST): _P.HAILING,
    (_P.FINISHING, _T.LEAVE): _P.LEAVING,
    (_P.LEAVING, _T.OFFENDED): _P.LEAVING,
}


@dataclass(slots=True)
class Hail:
    """When to say hello next: soon at first, then less often, up to a cap."""

    due_at: float = float("-inf")
    wait_s: float = 0.0
    said: bool = False
    warn_after_s: float = 60.0

    def next(self, now: float) -> None:
        """A hello goes out now."""
        self.said = self.wait_s > 0
        self.wait_s = min(HELLO_MOST_S, max(HELLO_FIRST_S, 2 * self.wait_s))
        self.due_at = now + self.wait_s

    def may_repeat(self, now: float) -> bool:
        """Whether the last hello is so old that the next one may be said at once, where a syncer asks for it."""
        return now >= self.due_at - self.wait_s + HELLO_FIRST_S

    def reset(self) -> None:
        """Start again with short waits."""
        self.wait_s, self.said = 0.0, False

    def hold(self) -> None:
        """No hello until the next one is said: this process is about to get another incarnation."""
        self.reset()
        self.due_at = float("inf")


def hello_of(learner: "LearnerMachine") -> Hello:
    """How a learner introduces itself; one that only watches tells no epoch and no states, so it has no say."""
    seen, watching = tuple(duty.progress.seen for duty in learner.duties), learner.watching
    return Hello(
        name=learner.key.name,
        incarnation=learner.key.incarnation,
        run_name=learner.run_name,
        run_id=learner.run_id,
        layout_digest=learner.layout_digest,
        epoch=NO_EPOCH if watching else max([learner.epoch, *(stamp.epoch for stamp in seen)]),
        stamps=seen if learner.ready and not watching else (),
        watching=watching,
        region=learner.params.region,
    )


def heartbeat_of(learner: "LearnerMachine") -> Heartbeat:
    """A learner's sign of life."""
    choice = learner.outflow.codec
    return Heartbeat(
        epoch=NO_EPOCH if learner.watching else learner.epoch, listening=learner.inflow.downlink.listening,
        codec_why=choice.why if choice else "",
    )  # fmt: skip


def report_of(learner: "LearnerMachine") -> Report:
    """Where a learner is now."""
    return Report(
        step=learner.step, trained_tokens=learner.trained_tokens, unmerged_tokens=learner.weighed("unmerged"),
        dropped_tokens=max(0.0, learner.weighed("dropped")),
    )  # fmt: skip
