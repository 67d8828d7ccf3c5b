"""Recordings of a busy machine: who could not answer a call when it was recorded answers it later, as real ones do."""

import pytest

from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.lives import parts_of
from zdiloco.whatif.answers import Answers
from zdiloco.whatif.replay import Replay

H = 8
SETTINGS = SyncParams(sync_period=H)
STEPS_S = 10
PERIOD_S = 0.8
ROUNDS = 20


def journal(rounds: list[trace.Record]) -> list[trace.Record]:
    """One fragment, one learner, and its journal: at 1 s it had made 1 step, and from then on 10 a second."""
    began, ended = 1.0, 1.0 + PERIOD_S * (ROUNDS + 1)
    told: list[trace.Record] = [
        trace.Start(t=0.5), trace.Opened(t=0.5, epoch=1, shares=(1.0,), numels=(4,), versions=(0,)),
        trace.Joined(t=0.9, who="a", incarnation="01"), trace.Step(t=began, who="a", step=1, trained=1),
    ]  # fmt: skip
    last = round(STEPS_S * (ended - began)) + 1
    return [*told, *rounds, trace.Step(t=ended, who="a", step=last, trained=last), trace.End(t=ended)]


def replayed(rounds: list[trace.Record]) -> tuple[int, int]:
    """How many rounds are recorded, and how many come of it."""
    told = journal(rounds)
    (part,) = parts_of(told)
    found = Replay(part, SETTINGS, Answers(part), part.ended).run()
    recorded, again = (sum(isinstance(record, trace.Merge) for record in each) for each in (told, found))
    return recorded, again


def merged(at: float, version: int, step: int) -> list[trace.Record]:
    """A contribution that was cut at this step arrives, and its round closes."""
    return [
        trace.Arrived(t=at, who="a", fragment=0, version=version, answer_s=0.1, offer_s=0.05, cut_step=step),
        trace.Merge(t=at, fragment=0, version=version, members=(trace.Part(name="a", seq=version, steps=H),)),
        trace.Published(t=at, fragment=0, version=version),
    ]


@pytest.mark.parametrize("behind", [0, H])
def test_steps_that_came_later_than_at_an_even_pace_hold_up_a_round_and_not_for_ever(behind: int) -> None:
    """The journal tells steps once a second. Where they came in bursts a cut lies behind that pace, here from
    the second one on by a whole period: there is nothing to cut yet, and at the next boundary there is."""
    rounds: list[trace.Record] = []
    for number in range(ROUNDS):
        called_at = 1.8 + PERIOD_S * number
        step = round(STEPS_S * (called_at - 0.9)) - (behind if number else 0)
        rounds += [trace.Call(t=called_at, fragment=0, version=number + 1), *merged(called_at + 0.1, number + 1, step)]
    recorded, again = replayed(rounds)
    assert recorded == ROUNDS
    assert again == pytest.approx(recorded, rel=0.3)


def test_who_only_declined_a_call_answers_it_when_it_did_answer() -> None:
    """Somebody else closed that round; in the replay it may be the only one to do so."""
    rounds: list[trace.Record] = []
    for number in range(ROUNDS):
        called_at, version = 1.8 + PERIOD_S * number, number + 1
        rounds.append(trace.Call(t=called_at, fragment=0, version=version))
        if number % 2:
            rounds.append(trace.Declined(t=called_at + 0.05, who="a", fragment=0, version=version, reason="busy"))
            rounds += merged(called_at + 0.1, version, 1)[1:]
        else:
            rounds += merged(called_at + 0.1, version, round(STEPS_S * (called_at - 0.9)))
    recorded, again = replayed(rounds)
    assert recorded == ROUNDS
    assert again >= ROUNDS // 2
