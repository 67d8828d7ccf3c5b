"""The contract of the machines: a deadline is honoured, an odd moment is survived, whoever has stopped is silent."""

import pytest

from tests.core.chatter import Chatter, LearnerChatter, SyncerChatter
from tests.core.samples import ANN, EPOCH, MESSAGES
from zdiloco.core.joining import HELLO_FIRST_S, LearnerPhase
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.machine import (
    SYNCER,
    Boundary,
    LeaveRequested,
    Prepare,
    Prepared,
    Reborn,
    Received,
    Reincarnate,
    Send,
    Started,
    StepDone,
    Stop,
    TimerDue,
    UpdateReady,
)
from zdiloco.core.messages import Body, Donate, Heartbeat, Hello, Update, Welcome
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.core.syncer import SyncerMachine
from zdiloco.errors import MachineError
from zdiloco.units import Epoch, Stamp


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


@pytest.mark.parametrize("message", [Heartbeat(epoch=EPOCH), Heartbeat(epoch=Epoch(2**40 - 1, 1))])
def test_a_stranger_cannot_fence_a_syncer(message: Heartbeat) -> None:
    """A leftover learner of another run, or a liar: it is asked for its hello, which names its run."""
    syncer = new_syncer()
    actions = syncer.handle(Received(key=ANN, message=message), 1.0)
    (sent,) = (action.message for action in actions if isinstance(action, Send))
    assert (sent.reason, sent.fatal) == ("unknown", False)
    assert not any(isinstance(action, Stop) for action in actions)
    hello = Hello(name=ANN.name, incarnation=ANN.incarnation, run_id="other", layout_digest="d", epoch=message.epoch)
    (sent,) = (a.message for a in syncer.handle(Received(key=ANN, message=hello), 1.1) if isinstance(a, Send))
    assert (sent.reason, sent.fatal) == ("run", True)


def test_a_donor_whose_former_values_are_refused_only_now_starts_over() -> None:
    learner = new_learner()
    learner.handle(Received(key=SYNCER, message=Donate()), 1.0)
    assert learner.phase is LearnerPhase.DONATING
    learner.reseed = "it holds NaN"
    actions = learner.handle(Boundary(), 2.0)
    assert any(isinstance(action, Reincarnate) for action in actions)
    assert learner.phase is LearnerPhase.HAILING


def test_who_starts_over_says_no_hello_as_the_one_it_was() -> None:
    """It would overtake the new one's while that waits for its connection, and be taken for somebody else's."""
    learner = new_learner()
    learner.handle(Started(), 0.0)
    learner.reseed = "it holds NaN"
    actions = learner.handle(Boundary(), 100.0)
    assert not [a for a in actions if isinstance(a, Send) and isinstance(a.message, Hello)]
    (said,) = (a.message for a in learner.handle(Reborn(incarnation=77), 100.0) if isinstance(a, Send))
    assert (said.name, said.incarnation) == (learner.key.name, 77)
    assert learner.deadline() <= 100.0 + HELLO_FIRST_S, "and it is quick again"


@pytest.mark.parametrize("machine", [new_syncer(), new_learner()], ids=["syncer", "learner"])
def test_whoever_has_stopped_hears_and_says_nothing(machine: SyncerMachine | LearnerMachine) -> None:
    assert any(isinstance(action, Stop) for action in machine.handle(LeaveRequested(reason="asked to"), 1.0))
    assert machine.deadline() is None
    for message in MESSAGES:
        assert machine.handle(Received(key=ANN, message=message), 2.0) == []


@pytest.mark.parametrize("machine", [new_syncer(), new_learner()], ids=["syncer", "learner"])
def test_an_event_that_nobody_knows_is_our_mistake(machine: SyncerMachine | LearnerMachine) -> None:
    with pytest.raises(MachineError, match="knows no event str"):
        machine.handle("nonsense", 1.0)


def test_a_step_right_after_joining_is_not_lost_to_an_update_that_was_waiting() -> None:
    """Its adoption was judged while there was no work; the first step comes before it is added."""

    def update(version: int) -> Update:
        body = Body(transfer=f"s/{version}", nbytes=4, chunk_bytes=1024, digest=0)
        stamp = Stamp(EPOCH, version)
        return Update(fragment=0, stamp=stamp, full=True, codec="fp32", value_bytes=4, body=body)

    learner = new_learner()
    welcome = Welcome(epoch=EPOCH, run_id="r", order=1, versions=(0,), progress=0.0)
    first, second = update(0), update(1)
    said = [Received(key=SYNCER, message=message) for message in (welcome, first)]
    ready = [UpdateReady(update=first, records=()), Received(key=SYNCER, message=second)]
    for event in (Started(), *said, *ready, UpdateReady(update=second, records=()), Prepared(fragment=0, serial=1)):
        learner.handle(event, 0.0)
    again = [action for action in learner.handle(Boundary(), 0.0) if isinstance(action, Prepare)]
    assert [action.reset for action in again] == [True, False]
    for prepare in again:
        learner.handle(Prepared(fragment=0, serial=prepare.serial), 0.0)
    learner.handle(StepDone(tokens=10, seconds=0.1), 0.1)
    progress = learner.duties[0].progress
    assert (progress.seen.version, progress.tokens, progress.tally.dropped) == (1, 10, 0)
