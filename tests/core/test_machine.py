"""The contract of the machines: a deadline is honoured, an odd moment is survived, whoever has stopped is silent."""

import pytest

from tests.core.chatter import Chatter, LearnerChatter, SyncerChatter
from tests.core.samples import ANN, EPOCH, MESSAGES
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.machine import SYNCER, Boundary, LeaveRequested, Note, Received, Reincarnate, Stop, TimerDue
from zdiloco.core.messages import Donate, Heartbeat
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.core.syncer import SyncerMachine
from zdiloco.errors import MachineError


def new_syncer() -> SyncerMachine:
    return SyncerMachine(SyncParams(), run_id="run", ident=500, now=0.0)


def new_learner() -> LearnerMachine:
    return LearnerMachine(ANN, SyncParams(), LearnerParams(), shares=(1.0,), layout_digest="layout")


@pytest.mark.parametrize("kind", [SyncerChatter, LearnerChatter])
@pytest.mark.parametrize("turns", [10, 50, 150, 300])
def test_left_alone_a_machine_sleeps_from_deadline_to_deadline(kind: type[Chatter], turns: int) -> None:
    """A deadline that does not move on would keep a processor busy for nothing."""
    for seed in range(10):
        chatter = kind(seed)
        for _ in range(turns):
            chatter.turn()
        now, repeated = chatter.now, 0
        for _ in range(100):
            due = chatter.machine.deadline()
            if due is None:
                break
            repeated = repeated + 1 if due <= now else 0
            assert repeated < 6, f"seed {seed}: {chatter.machine.phase} asks for {due} again and again, it is {now}"
            now = max(now, due)
            chatter.machine.handle(TimerDue(), now)


def test_an_empty_syncer_that_hears_of_an_epoch_stops_and_says_why() -> None:
    """The fleet has values that this one cannot know: a run must not begin twice."""
    syncer = new_syncer()
    actions = syncer.handle(Received(key=ANN, message=Heartbeat(step=5, epoch=EPOCH)), 1.0)
    assert [action.level for action in actions if isinstance(action, Note)] == ["error"]
    (stop,) = (action for action in actions if isinstance(action, Stop))
    assert stop.exit_code == 3
    assert stop.reason.startswith("epoch 1 exists and ours is 0")
    assert syncer.deadline() is None


def test_a_donor_whose_former_values_are_refused_only_now_starts_over() -> None:
    learner = new_learner()
    learner.handle(Received(key=SYNCER, message=Donate()), 1.0)
    assert learner.phase is LearnerPhase.DONATING
    learner.reseed = "it holds NaN"
    actions = learner.handle(Boundary(), 2.0)
    assert any(isinstance(action, Reincarnate) for action in actions)
    assert learner.phase is LearnerPhase.HAILING


@pytest.mark.parametrize("machine", [new_syncer(), new_learner()], ids=["syncer", "learner"])
def test_whoever_has_stopped_hears_and_says_nothing(machine: SyncerMachine | LearnerMachine) -> None:
    assert any(isinstance(action, Stop) for action in machine.handle(LeaveRequested(reason="asked to"), 1.0))
    assert machine.deadline() is None
    for message in MESSAGES:
        assert machine.handle(Received(key=ANN, message=message), 2.0) == []


@pytest.mark.parametrize("machine", [new_syncer(), new_learner()], ids=["syncer", "learner"])
def test_an_event_that_nobody_knows_is_our_mistake(machine: SyncerMachine | LearnerMachine) -> None:
    with pytest.raises(MachineError, match="knows no event str"):
        machine.handle("nonsense", 1.0)  # type: ignore[arg-type]
