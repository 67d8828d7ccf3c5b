"""One round: its states, and when it may close."""

import itertools
from collections.abc import Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import ANN, BOB, EVE
from zdiloco.core.rounds import (
    TABLE,
    Attendance,
    Close,
    Round,
    RoundEvent,
    RoundState,
    Wait,
    decide,
    has_quorum,
    names,
)
from zdiloco.errors import MachineError
from zdiloco.units import MemberKey

EVERYBODY = {ANN, BOB, EVE}
Keys = Set[MemberKey]


def attendance(
    held: Keys, declined: Keys = frozenset(), waited_for: Keys = EVERYBODY, **other: object
) -> Attendance:
    """Three live learners, K = 2, patience until 30; who is held has answered this call."""
    absent = waited_for - held - declined
    fields = {"absent": absent, "live": 3, "held": held, "fresh": held, "quorum": 2, "patience_ends": 30.0}
    return Attendance(**{**fields, **other})


def new_round(state: RoundState = RoundState.OPEN) -> Round:
    return Round(fragment=3, version=7, called_at=1.0, why="due", state=state)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RoundState, RoundEvent)))
def test_states_move_only_along_the_table(state: RoundState, event: RoundEvent) -> None:
    rnd = new_round(state)
    if (state, event) in TABLE:
        rnd.move(event)
        assert rnd.state is TABLE[state, event]
        return
    with pytest.raises(MachineError, match=f"fragment 3: {event} while {state}"):
        rnd.move(event)
    assert rnd.state is state, "a move that is refused changes nothing"


S, E = RoundState, RoundEvent
ROADS = {
    "ordinary": [(E.QUORUM, S.GRACE), (E.CLOSE, S.MERGING), (E.MERGED, S.PUBLISHED)],
    "everybody at once": [(E.CLOSE, S.MERGING), (E.MERGED, S.PUBLISHED)],
    "parked": [(E.TOO_LONG, S.PARKED), (E.QUORUM, S.GRACE), (E.CLOSE, S.MERGING)],
    "parked, closed by what was held": [(E.TOO_LONG, S.PARKED), (E.CLOSE, S.MERGING)],
    "quorum lost again": [(E.QUORUM, S.GRACE), (E.QUORUM_LOST, S.OPEN), (E.TOO_LONG, S.PARKED)],
}


@pytest.mark.parametrize("road", ROADS)
def test_the_roads_of_a_round(road: str) -> None:
    rnd = new_round()
    for event, state in ROADS[road]:
        rnd.move(event)
        assert rnd.state is state


@pytest.mark.parametrize("state", RoundState)
def test_contributions_enter_until_it_closes(state: RoundState) -> None:
    open_states = {RoundState.OPEN, RoundState.GRACE, RoundState.PARKED}
    assert new_round(state).gathering == (state in open_states)


def test_without_a_quorum_it_waits_for_whatever_happens() -> None:
    assert decide(attendance({ANN}), None, "", 5.0) == Wait(until=None, why="1 of 2 contributions; missing bob, eve")


def test_a_quorum_is_needed_even_if_nobody_else_can_come() -> None:
    found = decide(attendance({ANN}, {BOB, EVE}), 1.0, "", 99.0)
    assert found == Wait(until=None, why="1 of 2 contributions; missing nobody")


def test_a_lost_quorum_is_said() -> None:
    found = decide(attendance({ANN}, waited_for={ANN}, live=1), None, "", 5.0)
    assert found == Wait(until=None, why="1 of 2 contributions; quorum lost, 1 live")


def test_it_closes_at_once_when_everybody_is_in() -> None:
    found = decide(attendance(EVERYBODY), 50.0, "grace", 5.0)
    assert found == Close(why="every live learner is in, held or declined (3 in)")


def test_it_closes_at_once_when_the_others_have_declined() -> None:
    assert isinstance(decide(attendance({ANN, BOB}, {EVE}), 50.0, "grace", 5.0), Close)


def test_held_from_before_and_everybody_in_closes_without_a_grace_window() -> None:
    """Else a fleet whose only live learner has a held contribution stands still for ever."""
    alone = attendance({ANN}, waited_for={ANN}, live=1, quorum=1, fresh=set())
    assert isinstance(decide(alone, None, "", 5.0), Close)


def test_whoever_is_not_waited_for_delays_nothing() -> None:
    assert isinstance(decide(attendance({ANN, BOB}, waited_for={ANN, BOB}), 50.0, "grace", 5.0), Close)


def test_inside_the_grace_window_it_waits_until_its_end() -> None:
    found = decide(attendance({ANN, BOB}), 6.0, "grace window 1.000 s", 5.999)
    assert found == Wait(until=6.0, why="grace window 1.000 s; 2 in, missing eve")


def test_when_the_window_is_over_it_closes_without_the_rest() -> None:
    assert decide(attendance({ANN, BOB}), 6.0, "", 6.0) == Close(why="grace window over (2 in, without eve)")


def test_held_ones_from_before_wait_for_answers_but_not_for_ever() -> None:
    seen = attendance({ANN, BOB}, fresh=set())
    why = "2 held from before, too few answers to this call; missing eve"
    assert decide(seen, None, "", 29.9) == Wait(until=30.0, why=why)
    assert decide(seen, None, "", 30.0) == Close(why=why)


def test_only_answers_to_this_call_start_the_window() -> None:
    assert has_quorum(attendance({ANN, BOB}))
    assert not has_quorum(attendance({ANN, BOB}, fresh={ANN}))


def test_names_are_few_and_sorted() -> None:
    many = {MemberKey(f"m{n}", n) for n in (4, 1, 3, 5, 2, 6)}
    assert names(many) == "m1, m2, m3, m4 and 2 more"
    assert names({MemberKey("x", 1)}) == "x"
    assert names(set()) == "nobody"
    assert names({MemberKey(f"m{n}", n) for n in range(1000)}) == "1000 learners"


some = st.sets(st.sampled_from(sorted(EVERYBODY)))


@given(some, some, some, st.integers(1, 4), st.one_of(st.none(), st.floats(0, 20)), st.floats(0, 40))
def test_whatever_the_attendance(
    waited_for: Keys, held: Keys, declined: Keys, quorum: int, ends: float | None, now: float
) -> None:
    """Never below K; always when nobody is missing or the window is over; and a wait always has an end ahead."""
    seen = attendance(held, declined, waited_for=waited_for, live=len(waited_for), quorum=quorum)
    found = decide(seen, ends, "grace", now)
    over = now >= (30.0 if ends is None else ends)
    assert isinstance(found, Close) == (len(held) >= quorum and (not waited_for - held - declined or over))
    if isinstance(found, Wait) and found.until is not None:
        assert found.until > now
