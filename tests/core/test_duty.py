"""One fragment at a learner: its states, its tip, and what of mine an update holds."""

import itertools

import pytest

from tests.core.samples import ANN, BOB, BODY, EPOCH, NEXT_EPOCH, contribution
from zdiloco.core.duty import TABLE, Duty, DutyEvent, DutyState
from zdiloco.core.messages import Update
from zdiloco.core.progress import Adoption, Fate
from zdiloco.errors import MachineError
from zdiloco.units import NO_STAMP, Epoch, Merged, Stamp

S, E = DutyState, DutyEvent


def update(version: int, epoch: Epoch = EPOCH, full: bool = False) -> Update:
    return Update(fragment=0, stamp=Stamp(epoch, version), full=full, codec="bf16", value_bytes=900, body=BODY)


def duty_at(version: int) -> Duty:
    duty = Duty(0)
    duty.progress.seen = Stamp(EPOCH, version)
    return duty


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_states_move_only_along_the_table(state: DutyState, event: DutyEvent) -> None:
    duty = Duty(4, state=state)
    if (state, event) in TABLE:
        duty.move(event)
        assert duty.state is TABLE[state, event]
        return
    with pytest.raises(MachineError, match=f"fragment 4: {event} while {state}"):
        duty.move(event)
    assert duty.state is state


ROADS = {
    "ordinary": [(E.CALLED, S.CALLED), (E.CUT, S.SENT), (E.HELD, S.HELD), (E.SETTLED, S.IDLE)],
    "merged before the word that it is held": [(E.CALLED, S.CALLED), (E.CUT, S.SENT), (E.SETTLED, S.IDLE)],
    "pushed at the end without a call": [(E.CUT, S.SENT), (E.HELD, S.HELD)],
    "called again while it answers": [(E.CALLED, S.CALLED), (E.CUT, S.SENT), (E.CALLED, S.SENT)],
    "called again while it is held": [(E.CUT, S.SENT), (E.HELD, S.HELD), (E.CALLED, S.HELD), (E.HELD, S.HELD)],
}


@pytest.mark.parametrize("road", ROADS)
def test_the_roads_of_a_contribution(road: str) -> None:
    duty = Duty(0)
    for event, state in ROADS[road]:
        duty.move(event)
        assert duty.state is state


@pytest.mark.parametrize("state", S)
def test_settling_ends_what_is_under_way_but_not_a_call(state: DutyState) -> None:
    after = S.CALLED if state is S.CALLED else S.IDLE
    duty = Duty(0, state=state, way=3, offer=contribution(3))
    assert duty.settle() == 3
    assert (duty.way, duty.offer, duty.state) == (0, None, after)
    assert duty.settle() == 0, "once"


# ---- what may be adopted next


def test_the_tip_is_the_newest_that_is_adopted_or_coming() -> None:
    duty = duty_at(1)
    assert duty.tip == Stamp(EPOCH, 1)
    duty.receiving[Stamp(EPOCH, 3)] = update(3)
    assert duty.tip == Stamp(EPOCH, 3)
    duty.ready[Stamp(EPOCH, 4)] = (update(4), ())
    assert duty.tip == Stamp(EPOCH, 4)
    duty.adoption = Adoption(fate=Fate.CARRIED, stamp=Stamp(EPOCH, 5))
    assert duty.tip == Stamp(EPOCH, 5)


def test_an_update_follows_only_the_version_right_before_it_in_its_epoch() -> None:
    duty = duty_at(3)
    follows = [version for version in range(8) if duty.follows(update(version))]
    assert follows == [4]
    assert not duty.follows(update(4, NEXT_EPOCH)), "another epoch may hold less of mine: take the whole map"
    duty.receiving[Stamp(EPOCH, 4)] = update(4)
    assert not duty.follows(update(4)), "twice"
    assert duty.follows(update(5))


def test_a_full_update_follows_anything_older() -> None:
    duty = duty_at(3)
    assert [version for version in range(6) if duty.follows(update(version, full=True))] == [4, 5]
    assert duty.follows(update(0, NEXT_EPOCH, full=True))
    assert not duty.follows(update(9, Epoch(0, 1), full=True))
    assert Duty(0).follows(update(0, full=True)), "a process without values takes any"


def test_a_full_update_that_is_here_or_coming_is_not_taken_again() -> None:
    duty = duty_at(3)
    stamp = Stamp(EPOCH, 5)
    duty.receiving[stamp] = update(5)
    assert duty.follows(update(5, full=True)), "only the broadcast one is coming: the whole one replaces it"
    duty.receiving[stamp] = update(5, full=True)
    assert not duty.follows(update(5, full=True))
    duty.receiving.clear()
    duty.ready[stamp] = (update(5, full=True), ())
    assert not duty.follows(update(5, full=True))
    duty.ready.clear()
    duty.adoption = Adoption(fate=Fate.CARRIED, stamp=stamp)
    assert not duty.follows(update(5, full=True))


def test_a_full_update_is_taken_where_the_broadcast_one_is_here_and_stranded() -> None:
    """Of another epoch, or after a gap, it can never be adopted: without the whole state the fragment stands still."""
    duty = duty_at(3)
    other, later, next_ = Stamp(NEXT_EPOCH, 5), Stamp(EPOCH, 5), Stamp(EPOCH, 4)
    duty.ready[other] = (update(5, NEXT_EPOCH), ())
    assert duty.follows(update(5, NEXT_EPOCH, full=True))
    duty.ready.clear()
    duty.ready[later] = (update(5), ())
    assert duty.follows(update(5, full=True))
    duty.ready[next_] = (update(4), ())
    assert not duty.follows(update(5, full=True)), "both are here, and will be adopted one after the other"
    duty.ready.pop(next_)
    duty.receiving[next_] = update(4)
    assert not duty.follows(update(5, full=True)), "the one before it is coming"


# ---- what of mine is in it


def test_a_full_update_names_the_sums() -> None:
    duty = duty_at(3)
    duty.progress.after, duty.progress.tally.merged = 2, 20
    records = (Merged(*BOB, 9, 90, 900), Merged(*ANN, 4, 7, 70))
    assert duty.mine(ANN, update(4, full=True), records) == (4, 70)
    assert duty.mine(ANN, update(4, full=True), records[:1]) == (0, 0), "not in the map: nothing of mine is in it"


def test_a_single_update_adds_to_what_i_know() -> None:
    duty = duty_at(3)
    duty.progress.after, duty.progress.tally.merged = 2, 20
    assert duty.mine(ANN, update(4), (Merged(*ANN, 4, 7, 70),)) == (4, 90)
    assert duty.mine(ANN, update(4), (Merged(*BOB, 9, 90, 900),)) == (2, 20), "not in the record: nothing new"


def test_the_map_follows_what_is_adopted() -> None:
    duty = duty_at(3)
    duty.take_map(update(4, full=True), (Merged(*ANN, 4, 7, 70),))
    duty.take_map(update(5), (Merged(*ANN, 5, 1, 10), Merged(*BOB, 1, 2, 20)))
    assert duty.map == {ANN: Merged(*ANN, 5, 8, 80), BOB: Merged(*BOB, 1, 2, 20)}
    duty.take_map(update(1, NEXT_EPOCH, full=True), (Merged(*BOB, 1, 2, 20),))
    assert duty.map == {BOB: Merged(*BOB, 1, 2, 20)}, "a full one replaces what was known"


def test_a_new_duty_has_no_values() -> None:
    assert (Duty(0).progress.seen, Duty(0).state) == (NO_STAMP, S.IDLE)
