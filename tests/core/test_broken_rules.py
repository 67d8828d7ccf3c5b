"""Rules of a learner that no history in virtual time notices when they are broken: each has its own few events here.

Others make up for most of them in the end, later or by a pull; so each story looks at the moment itself.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.samples import EPOCH
from tests.core.test_misfit import come, pulls, tell, trained, update
from tests.sim.mutations import Mutation, mutated
from zdiloco.core.duty import Duty, DutyState
from zdiloco.core.inflow import Inflow
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.learner_words import Boundary, Encoded, Prepare, Prepared, Receive, Snapshot, StepDone, UpdateReady
from zdiloco.core.machine import SYNCER, Received, Send
from zdiloco.core.messages import Beat, Body, Call, Contribution, Message, Welcome
from zdiloco.core.outflow import Outflow
from zdiloco.core.progress import LearnerProgress
from zdiloco.units import Merged

OLDER = EPOCH._replace(counter=0)
STEP = StepDone(tokens=10, seconds=0.1)


def hear(learner: LearnerMachine, message: Message) -> list[Any]:
    return tell(learner, Received(key=SYNCER, message=message))


def of(kind: type, actions: list[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def beat(version: int) -> Beat:
    return Beat(epoch=EPOCH, open_rounds=(), versions=(version,), stable=(0,), progress=0.0)


def contributing() -> LearnerMachine:
    """One whose first contribution is being encoded."""
    learner = trained()
    hear(learner, Call(epoch=EPOCH, fragment=0, version=1))
    assert of(Snapshot, tell(learner, STEP))
    return learner


def encoded(learner: LearnerMachine) -> list[Any]:
    body = Body(transfer="c/1", nbytes=4, chunk_bytes=1024, digest=0)
    said = tell(learner, Encoded(fragment=0, seq=1, codec="bf16", body=body))
    return [send for send in of(Send, said) if isinstance(send.message, Contribution)]


def an_older_epoch_is_not_followed() -> None:
    """A syncer that was taken over still answers a hello of before."""
    learner = trained()
    hear(learner, Welcome(epoch=OLDER, run_id="r", order=2, versions=(7,), progress=0.0))
    assert learner.epoch == EPOCH


def what_was_dropped_is_not_offered() -> None:
    """It was dropped while it was being encoded."""
    assert encoded(contributing())
    learner = contributing()
    learner.drop(learner.duties[0])
    assert not encoded(learner)
    assert learner.duties[0].state is DutyState.IDLE


def what_was_merged_and_is_forgotten_is_given_up() -> None:
    """A state holds work of mine whose bytes are gone: if that stayed in u, it would count twice."""
    learner = trained()
    tell(learner, STEP, STEP)
    mine = (Merged(*learner.key, seq=1, steps=1, tokens=10),)
    hear(learner, update(1))
    (prepare,) = of(Prepare, tell(learner, UpdateReady(update=update(1), records=mine)))
    assert prepare.reset
    tell(learner, Prepared(fragment=0, serial=prepare.serial), Boundary())
    tally = learner.duties[0].progress.tally
    assert (tally.merged, tally.dropped, learner.duties[0].progress.tokens) == (10, 10, 0)


def a_version_that_follows_no_other_is_not_taken() -> None:
    """What the missed one has merged would be unknown."""
    learner = trained()
    said = hear(learner, update(2))
    assert not of(Receive, said)
    assert pulls(said) == 1


def nothing_is_cut_while_an_adoption_is_prepared() -> None:
    """The change was worked out from u as it is: a cut of now would hold what that takes out of it."""
    learner = trained()
    (prepare,) = of(Prepare, come(learner, update(1)))
    hear(learner, Call(epoch=EPOCH, fragment=0, version=2))
    assert not of(Snapshot, tell(learner, STEP))
    said = tell(learner, Prepared(fragment=0, serial=prepare.serial), STEP)
    assert of(Snapshot, said), "once it is adopted, at the same boundary"


def what_two_beats_have_named_is_pulled() -> None:
    """Its announcement was lost, and nothing comes after it."""
    learner = trained()
    assert pulls(hear(learner, beat(1))) == 0, "it may be on its way"
    assert pulls(hear(learner, beat(1))) == 1


STORIES: dict[Callable[[], None], Mutation] = {
    an_older_epoch_is_not_followed: Mutation(
        "epoch: a learner follows an older one", LearnerMachine._welcome,
        "if message.epoch < self.epoch or self.phase", "if self.phase"),
    what_was_dropped_is_not_offered: Mutation(
        "drops: a void cut is offered", Outflow._offer, "cut is None or cut.void:", "cut is None:"),
    what_was_merged_and_is_forgotten_is_given_up: Mutation(
        "û: what is given up counts as carried", LearnerProgress.judge, "else Fate.GIVEN_UP", "else Fate.CARRIED"),
    a_version_that_follows_no_other_is_not_taken: Mutation(
        "adoption: a missed version is passed over", Duty.follows,
        "stamp.version == tip.version + 1", "stamp.version > tip.version"),
    nothing_is_cut_while_an_adoption_is_prepared: Mutation(
        "cut: while an adoption is prepared", Outflow.answer, " and duty.adoption is None", ""),
    what_two_beats_have_named_is_pulled: Mutation(
        "repair: a missed update is not pulled", Inflow.check,
        'self.machine.count("repaired")', 'return []'),
}  # fmt: skip


@pytest.mark.parametrize("story", list(STORIES), ids=lambda story: story.__name__)
def test_the_rule_holds_and_its_break_is_noticed(story: Callable[[], None]) -> None:
    story()
    with mutated(STORIES[story]), pytest.raises(AssertionError):
        story()
