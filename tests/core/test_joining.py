"""How a learner stands with the syncer, and how often it says hello."""

import pytest

from tests.core.samples import ANN, BODY, EPOCH, NEXT_EPOCH
from zdiloco.core.joining import HELLO_MOST_S, TABLE, Hail, LearnerPhase, LearnerTurn
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.machine import SYNCER, Received, Send, Started, StepDone, TimerDue
from zdiloco.core.messages import Beat, Pull, Report, Update, Welcome
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.units import Epoch, Stamp

P, T = LearnerPhase, LearnerTurn
ROADS = {
    "the first of a run": [(T.ASKED, P.DONATING), (T.WELCOMED, P.RESTORING), (T.LOADED, P.TRAINING)],
    "a joiner that leaves": [(T.WELCOMED, P.RESTORING), (T.LOADED, P.TRAINING), (T.LEAVE, P.LEAVING)],
    "the syncer dies while it donates": [(T.ASKED, P.DONATING), (T.LOST, P.HAILING)],
    "the syncer dies while it restores": [(T.WELCOMED, P.RESTORING), (T.LOST, P.HAILING)],
    "the syncer is away for a time": [
        (T.WELCOMED, P.RESTORING), (T.LOADED, P.TRAINING), (T.LOST, P.ADRIFT), (T.WELCOMED_BACK, P.TRAINING),
    ],
    "its values cannot be merged": [(T.WELCOMED, P.RESTORING), (T.LOADED, P.TRAINING), (T.OFFENDED, P.HAILING)],
}  # fmt: skip


@pytest.mark.parametrize("road", ROADS)
def test_the_roads_of_a_learner(road: str) -> None:
    phase = P.HAILING
    for turn, then in ROADS[road]:
        phase = TABLE[phase, turn]
        assert phase is then


def test_whoever_has_values_trains_on_when_the_syncer_is_lost() -> None:
    assert TABLE[P.TRAINING, T.LOST] is P.ADRIFT
    assert (P.ADRIFT, T.LOST) not in TABLE


def test_any_phase_but_the_last_can_be_left() -> None:
    assert {phase for phase in P if (phase, T.LEAVE) in TABLE} == set(P) - {P.LEAVING, P.STOPPED}


def test_hellos_come_soon_at_first_then_less_often() -> None:
    hail, now, waits = Hail(), 100.0, []
    for _ in range(7):
        hail.next(now)
        waits.append(hail.due_at - now)
        now = hail.due_at
    assert waits == [0.5, 1.0, 2.0, 4.0, HELLO_MOST_S, HELLO_MOST_S, HELLO_MOST_S]


def test_a_hello_is_due_at_once_and_the_second_is_a_repetition() -> None:
    hail = Hail()
    assert hail.due_at == float("-inf")
    hail.next(0.0)
    assert not hail.said
    hail.next(1.0)
    assert hail.said


def test_after_a_reset_it_is_quick_again() -> None:
    hail = Hail()
    for _ in range(5):
        hail.next(0.0)
    hail.reset()
    assert not hail.said
    hail.next(50.0)
    assert hail.due_at == 50.5


def welcome(epoch: Epoch, version: int) -> Received:
    word = Welcome(epoch=epoch, run_id="run", order=1, versions=(version,), progress=0.0)
    return Received(key=SYNCER, message=word)


def test_a_newcomer_that_is_welcomed_by_a_successor_asks_for_its_state() -> None:
    """What of the former one is still coming is no answer: after it, nobody would ask again."""
    learner = LearnerMachine(ANN, SyncParams(), LearnerParams(), shares=(1.0,), layout_digest="layout")
    learner.handle(Started(), 0.0)
    assert Send(key=SYNCER, message=Pull(fragment=0)) in learner.handle(welcome(EPOCH, 5), 0.1)
    state = Update(fragment=0, stamp=Stamp(EPOCH, 5), full=True, codec="bf16", value_bytes=900, body=BODY)
    learner.handle(Received(key=SYNCER, message=state), 0.2)
    assert Send(key=SYNCER, message=Pull(fragment=0)) not in learner.handle(TimerDue(), 0.3), "it is coming"
    beat = Beat(epoch=NEXT_EPOCH, open_rounds=(), versions=(2,), stable=(2,), progress=0.0)
    learner.handle(Received(key=SYNCER, message=beat), 0.4)
    assert Send(key=SYNCER, message=Pull(fragment=0)) in learner.handle(welcome(NEXT_EPOCH, 2), 0.5)


def test_reports_before_the_first_contribution_are_bounded_however_fast_the_steps_are() -> None:
    """Also where there is no quorum for hours, and so no contribution: at 5000 steps a second it says 100 words."""
    learner = LearnerMachine(ANN, SyncParams(), LearnerParams(), shares=(1.0,), layout_digest="layout")
    learner.handle(Started(), 0.0)
    learner.handle(welcome(EPOCH, 0), 0.1)
    learner.phase = LearnerPhase.TRAINING
    said = 0
    for step in range(5000):
        actions = learner.handle(StepDone(tokens=4, seconds=0.0002), 1.0 + step / 5000)
        said += sum(isinstance(action, Send) and isinstance(action.message, Report) for action in actions)
    assert 90 <= said <= 101
