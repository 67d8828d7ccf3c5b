"""What a syncer machine keeps beside its members and desks, only to be fast: checked against them, and made anew.

Rule: none of it says anything that could not be worked out of the fields that it is derived from.
"""

import math
from typing import Any

from zdiloco.core.membership import COUNTED, MemberState
from zdiloco.core.moments import Moments
from zdiloco.core.ordered import Ordered
from zdiloco.core.pace import Standing
from zdiloco.core.syncer import SyncerMachine


def check_derived(machine: SyncerMachine) -> None:
    """Everything derived is what it is derived from. AssertionError where it is not."""
    fleet = machine.fleet
    states = {member.key: member.state for member in fleet}
    for state, members in fleet.in_state.items():
        assert set(members) == {key for key in states if states[key] is state}, f"who is {state}"
    behaving = {key for key, state in states.items() if state in COUNTED}
    quarantined = {key for key, state in states.items() if state is MemberState.QUARANTINED}
    if len(behaving) < machine.params.min_quorum:
        behaving, quarantined = behaving | quarantined, set()
    assert set(fleet._counted) == behaving, "who counts"
    assert fleet.quarantined() == quarantined, "who is in quarantine"
    waited_for = {key for key in behaving if states[key] is not MemberState.SUSPECT}
    assert fleet.waited_for() == waited_for, "who is waited for"
    assert (fleet.paces.values, fleet.answers.values) == _averages(fleet), "averages"
    for member in fleet:
        due = fleet._silence_due(member)
        assert due is None or fleet._silences._at.get(member.key.name, math.inf) <= due, "silence that nobody hears"
    for desk in machine.desk:
        _check_desk(machine, desk)


def _averages(fleet: Any) -> tuple[list[float], list[float]]:
    counted = fleet.counted()
    paces = sorted(member.pace.value for member in counted if member.pace.value)
    return paces, sorted(member.answer.value for member in counted if member.answer.value is not None)


def _check_desk(machine: SyncerMachine, desk: Any) -> None:
    fleet, rnd = machine.fleet, desk.round
    held, fresh, absent = set(desk.intake.held) - fleet.quarantined(), set(), set()
    if rnd is not None and rnd.gathering:
        fresh = held & rnd.fresh
        absent = fleet.waited_for() - held - set(rnd.declined) - machine.desk.no_room.get(desk.index, set())
    assert (desk.roll.held, desk.roll.fresh, desk.roll.absent) == (held, fresh, absent), "who is where"
    if desk.standing is not None:
        anew = _standing(machine, desk)
        for mine, other in ((desk.standing.cuts, anew.cuts), (desk.standing.calls, anew.calls)):
            same = (mine._at, mine._over, mine._ahead.values) == (other._at, other._over, other._ahead.values)
            assert same, "who has its steps"


def _standing(machine: SyncerMachine, desk: Any) -> Standing:
    return Standing(desk.index, desk.standing.needed, machine.fleet.counted(), machine.params)


def rebuild_derived(machine: SyncerMachine) -> None:
    """Make everything derived anew: nothing in it depends any more on the way that has led here."""
    fleet = machine.fleet
    fleet.paces, fleet.answers, fleet._silences = Ordered(), Ordered(), Moments()
    fleet.paces.values, fleet.answers.values = _averages(fleet)
    for name in sorted(fleet.members):
        fleet._silences.expect(name, fleet._silence_due(fleet.members[name]))
    for desk in machine.desk:
        if desk.standing is not None:
            desk.standing = _standing(machine, desk)
            if desk.due is None:
                desk.check_at = desk.standing.due_at(machine.desk.quorum())
        if desk.roll._pace_of is not None:
            desk.roll.begin_grace(fleet.pace_of)
            desk.roll._slow.sort()
