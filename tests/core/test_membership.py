"""Who is in the fleet: states, silence, incarnations."""

import itertools

import pytest

from tests.core.samples import ANN, BOB, member
from zdiloco.core import membership
from zdiloco.core.membership import (
    CONTRIBUTING,
    COUNTED,
    TABLE,
    Fleet,
    Member,
    MemberEvent,
    MemberState,
)
from zdiloco.core.params import SyncParams
from zdiloco.errors import MachineError
from zdiloco.units import MemberKey

S, E = MemberState, MemberEvent
PARAMS = SyncParams(suspect_after_s=3.0, gone_after_s=6.0, average=0.5)
YOUNG = MemberKey(ANN.name, 99)


def fleet_with(*states: MemberState) -> tuple[Fleet, list[Member]]:
    """A fleet with one member in each of these states, all heard at 0."""
    fleet = Fleet(PARAMS)
    made = []
    for number, state in enumerate(states):
        one, _ = fleet.welcome(MemberKey(f"m{number}", number + 1), state is S.WATCHING, 0.0)
        one.state = state
        assert one.moved
        one.moved(one)
        made.append(one)
    return fleet, made


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_states_move_only_along_the_table(state: MemberState, event: MemberEvent) -> None:
    one = member()
    one.state = state
    if (state, event) in TABLE:
        one.move(event, "because")
        assert (one.state, one.why) == (TABLE[state, event], "because")
        return
    with pytest.raises(MachineError, match=f"member ann: {event} while {state}"):
        one.move(event, "because")
    assert one.state is state


ROADS = {
    "ordinary": [(E.STEPPED, S.LIVE), (E.LEFT, S.FINISHED)],
    "silent, then back": [(E.STEPPED, S.LIVE), (E.SILENT, S.SUSPECT), (E.HEARD, S.LIVE)],
    "silent for good": [(E.STEPPED, S.LIVE), (E.SILENT, S.SUSPECT), (E.LOST, S.GONE)],
    "never began": [(E.LOST, S.GONE)],
    "offended": [(E.STEPPED, S.LIVE), (E.OFFENDED, S.QUARANTINED), (E.CLEAN, S.LIVE)],
    "died in quarantine": [(E.STEPPED, S.LIVE), (E.OFFENDED, S.QUARANTINED), (E.LOST, S.GONE)],
}


@pytest.mark.parametrize("road", ROADS)
def test_the_roads_of_a_member(road: str) -> None:
    one = member()
    one.state = S.JOINING
    for event, state in ROADS[road]:
        one.move(event, road)
        assert one.state is state


def test_who_counts_contributes_and_is_waited_for() -> None:
    fleet, made = fleet_with(*S)
    assert {one.state for one in fleet.counted()} == {S.LIVE, S.SUSPECT} == COUNTED
    assert {one.state for one in made if one.key in fleet.waited_for()} == {S.LIVE}
    assert set(CONTRIBUTING) == {S.LIVE, S.SUSPECT, S.QUARANTINED}


# ---- steps and pace


def test_pace_is_measured_between_reports_of_progress_on_our_clock() -> None:
    one = member()
    one.first_step, one.step_at = None, 0.0
    one.report(100, 10.0)
    assert (one.first_step, one.step, one.step_at, one.pace.value) == (100, 100, 10.0, None)
    one.report(104, 12.0)
    assert (one.first_step, one.step, one.step_at, one.pace.value) == (100, 104, 12.0, 0.5)


def test_a_report_without_progress_or_from_the_past_changes_nothing() -> None:
    one = member(step=104, at=12.0, pace=0.5)
    one.report(104, 20.0)
    one.report(90, 21.0)
    assert (one.step, one.step_at, one.pace.value) == (104, 12.0, 0.5)


def test_steps_are_extrapolated_at_the_average_pace_up_to_a_horizon() -> None:
    one = member(step=100, at=10.0, pace=0.5)
    assert one.steps_at(11.0, 2.0) == 102.0
    assert one.steps_at(99.0, 2.0) == 104.0
    assert member(step=100, at=10.0).steps_at(99.0, 2.0) == 100.0, "no pace is known yet"


def test_reports_that_come_together_tell_nothing_of_the_pace() -> None:
    """What a road or a stopped process had held back is handled at one moment."""
    one = member(step=100, at=10.0, pace=0.5)
    for step in range(101, 110):
        one.report(step, 13.0)
    assert (one.step, one.step_at) == (109, 13.0)
    assert one.pace.value is not None
    assert one.pace.value >= 0.5
    one = member(step=100, at=10.0)
    one.report(101, 10.0)
    assert one.pace.value is None


def test_what_it_had_made_at_a_call_is_set_right_by_its_next_report() -> None:
    one = member(step=100, at=10.0)
    one.call(0, 10.4, 0.2)
    assert one.called == {0: 100}, "no pace is known"
    one.report(110, 10.5)
    assert one.called == {0: pytest.approx(108)}
    one.call(0, 10.6, 0.2)
    one.call(1, 12.5, 0.2)
    one.report(150, 12.5)
    assert one.called == {0: pytest.approx(112), 1: pytest.approx(150)}, "however long nothing was heard of it"
    one.report(151, 12.55)
    assert one.called == {0: pytest.approx(112), 1: pytest.approx(150)}, "once only"


def test_a_call_before_its_first_report_binds_it_from_that_report() -> None:
    one = member()
    one.first_step = None
    one.call(0, 10.0, 0.2)
    one.report(500, 10.1)
    assert (one.called, one.first_step) == ({}, 500)


# ---- coming in


def test_a_process_is_welcomed_as_joining_or_watching() -> None:
    fleet = Fleet(PARAMS)
    one, old = fleet.welcome(ANN, False, 1.0)
    two, _ = fleet.welcome(BOB, True, 1.0)
    assert (one.state, two.state, old) == (S.JOINING, S.WATCHING, None)
    assert (one.order, two.order) == (1, 2)
    assert one.pace.share == one.answer.share == one.staleness.share == PARAMS.average
    assert list(fleet) == [one, two]


def test_the_same_process_says_hello_again_and_stays_the_same_member() -> None:
    fleet = Fleet(PARAMS)
    one, _ = fleet.welcome(ANN, False, 1.0)
    fleet.begin(one)
    again, old = fleet.welcome(ANN, False, 5.0)
    assert again is one
    assert (again.state, again.heard_at, old) == (S.LIVE, 5.0, None)


@pytest.mark.parametrize("state", [S.GONE, S.FINISHED])
def test_a_process_that_was_gone_starts_over_but_its_counts_stay(state: MemberState) -> None:
    fleet = Fleet(PARAMS)
    one, _ = fleet.welcome(ANN, False, 1.0)
    one.state, one.rounds, one.merged_tokens = state, 4, 40.0
    one.refused["epoch"] = 2
    again, old = fleet.welcome(ANN, False, 9.0)
    assert again is not one
    assert (again.state, again.order, old) == (S.JOINING, 2, None)
    assert (again.rounds, again.merged_tokens, again.refused) == (4, 40.0, {"epoch": 2})


def test_a_newer_incarnation_replaces_the_older_one() -> None:
    fleet = Fleet(PARAMS)
    fleet.welcome(ANN, False, 1.0)
    young, old = fleet.welcome(YOUNG, False, 2.0)
    assert (young.key, old) == (YOUNG, ANN)
    assert ANN in fleet.replaced
    assert YOUNG not in fleet.replaced
    assert fleet.find(ANN) is None, "the ghost is no member"
    assert fleet.hear(ANN, 3.0) is None
    assert fleet.find(YOUNG) is young
    assert len(list(fleet)) == 1


def test_the_newer_one_begins_with_nothing_of_the_older() -> None:
    fleet = Fleet(PARAMS)
    one, _ = fleet.welcome(ANN, False, 1.0)
    one.rounds, one.marks[0] = 4, 100
    young, _ = fleet.welcome(YOUNG, False, 2.0)
    assert (young.rounds, young.marks, young.first_step) == (0, {}, None)


# ---- being heard


def test_the_first_step_makes_it_live() -> None:
    fleet, (one,) = fleet_with(S.JOINING)
    fleet.begin(one)
    assert one.state is S.LIVE


def test_an_offender_begins_in_quarantine_under_whatever_incarnation() -> None:
    fleet = Fleet(PARAMS)
    fleet.offend(ANN.name)
    young, _ = fleet.welcome(YOUNG, False, 1.0)
    fleet.begin(young)
    assert young.state is S.QUARANTINED


def test_offenders_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MOST_OFFENDERS", 3)
    fleet = Fleet(PARAMS)
    for number in range(9):
        fleet.offend(f"m{number}")
    assert list(fleet.offenders) == ["m6", "m7", "m8"]


def test_a_suspect_that_is_heard_is_live_again() -> None:
    fleet, (one,) = fleet_with(S.SUSPECT)
    assert fleet.hear(one.key, 7.0) is one
    assert (one.state, one.heard_at) == (S.LIVE, 7.0)


@pytest.mark.parametrize("state", [S.GONE, S.FINISHED])
def test_whoever_is_gone_is_a_stranger_until_it_says_hello(state: MemberState) -> None:
    fleet, (one,) = fleet_with(state)
    assert fleet.hear(one.key, 7.0) is None
    assert one.heard_at == 0.0


def test_a_stranger_is_nobody() -> None:
    assert Fleet(PARAMS).hear(ANN, 1.0) is None


# ---- silence


def test_silence_makes_suspect_and_then_gone() -> None:
    fleet, (one,) = fleet_with(S.LIVE)
    assert fleet.judge_silence(2.9) == []
    assert fleet.judge_silence(3.0) == [one]
    assert (one.state, one.why) == (S.SUSPECT, "silent for 3.0 s")
    assert fleet.judge_silence(5.9) == []
    assert fleet.judge_silence(6.0) == [one]
    assert (one.state, one.why) == (S.GONE, "silent for 6.0 s")
    assert fleet.judge_silence(99.0) == []


@pytest.mark.parametrize("state", [S.JOINING, S.QUARANTINED, S.WATCHING])
def test_who_is_not_waited_for_anyway_is_only_ever_gone(state: MemberState) -> None:
    fleet, (one,) = fleet_with(state)
    assert fleet.judge_silence(5.9) == []
    fleet.judge_silence(6.0)
    assert one.state is S.GONE


def test_silence_is_judged_again_at_the_next_moment_that_counts() -> None:
    fleet, (one, two) = fleet_with(S.LIVE, S.SUSPECT)
    one.heard_at, two.heard_at = 2.0, 0.5
    assert fleet.silence_due() == 3.0, "heard meanwhile: the moment may come early, and is then found anew"
    assert fleet.judge_silence(3.0) == []
    assert fleet.silence_due() == 5.0
    assert fleet.judge_silence(4.9) == []
    assert fleet.judge_silence(5.0) == [one]
    assert fleet.silence_due() == 6.0
    assert fleet.judge_silence(6.0) == []
    assert fleet.silence_due() == 6.5
    assert fleet_with(S.GONE, S.FINISHED)[0].silence_due() is None


def test_of_thousands_that_are_heard_only_those_whose_moment_comes_are_looked_at() -> None:
    fleet, made = fleet_with(*[S.LIVE] * 1000)
    looks = 0
    for tenth in range(1, 601):
        now = tenth / 10
        for one in made[tenth % 10 :: 10]:
            fleet.hear(one.key, now)
        if now >= (fleet.silence_due() or 0.0):
            looks += 1
            assert fleet.judge_silence(now) == []
    assert looks < 100, "beats of one second over a minute: four looks in three seconds at most"


def test_a_silent_one_is_found_whoever_else_speaks() -> None:
    fleet, made = fleet_with(*[S.LIVE] * 50)
    changed = []
    for tenth in range(1, 100):
        for one in made[1:]:
            fleet.hear(one.key, tenth / 10)
        changed += [(tenth / 10, one.key.name, one.state) for one in fleet.judge_silence(tenth / 10)]
    assert changed == [(3.0, "m0", S.SUSPECT), (6.0, "m0", S.GONE)]


@pytest.mark.parametrize("state", S)
def test_the_moment_named_is_the_moment_that_changes_something(state: MemberState) -> None:
    """Else a loop that sleeps until then would turn on the spot."""
    fleet, (one,) = fleet_with(state)
    while (due := fleet.silence_due()) is not None:
        assert fleet.judge_silence(due) == [one]


def test_a_crowd_that_comes_and_goes_is_forgotten_and_those_that_train_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gone ones first, then those that took leave, then those that only watch; what they had trained stays counted."""
    monkeypatch.setattr(membership, "MOST_MEMBERS", 4)
    fleet = Fleet(SyncParams())
    ann, _ = fleet.welcome(ANN, False, 0.0)
    ann.report(1, 0.0)
    fleet.begin(ann)
    fleet.welcome(MemberKey("eye", 1), True, 0.0)
    left, _ = fleet.welcome(MemberKey("left", 1), False, 0.0)
    left.trained_tokens = 70
    left.move(MemberEvent.LEFT, "over")
    for number in range(50):
        fleet.judge_silence(10.0 * number)
        fleet.hear(ANN, 10.0 * number)
        came, _ = fleet.welcome(MemberKey(f"m-{number}", 1), False, 10.0 * number)
        came.trained_tokens = 1
    assert len(fleet.members) == 4
    assert fleet.find(ANN) is ann
    assert ann.state is MemberState.LIVE
    assert set(fleet.members) == {ANN.name, "left", "m-48", "m-49"}
    assert fleet.past_tokens == 48


def test_names_that_only_say_hello_are_bounded_and_what_was_trained_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "MOST_MEMBERS", 4)
    fleet = Fleet(SyncParams())
    ann, _ = fleet.welcome(ANN, False, 0.0)
    ann.trained_tokens = 1000
    ann.report(1, 0.0)
    fleet.begin(ann)
    ann.move(MemberEvent.SILENT, "silent")
    ann.move(MemberEvent.LOST, "silent")
    for number in range(20):
        fleet.welcome(MemberKey(f"m-{number}", 1), False, 1.0)
        assert len(fleet.members) <= 4
    assert fleet.find(ANN) is ann, "whoever has trained goes last"
    for number in range(3):
        member = fleet.find(MemberKey(f"m-{17 + number}", 1))
        assert member is not None
        fleet.begin(member)
    fleet.welcome(MemberKey("late", 1), False, 2.0)
    assert fleet.find(ANN) is None
    assert (fleet.past_tokens, list(fleet.replaced)) == (1000, [ANN])
