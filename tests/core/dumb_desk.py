"""The syncer's sums once more, the dumb way: over everybody, at every event. What is kept member by member must agree.

Rule: written for being obviously right. It reads members, held contributions, rounds and what waits for room, and
nothing of what the machine remembers about them.
"""

from zdiloco.core.desk import FragmentDesk
from zdiloco.core.grace import GraceInputs, grace_ends, p90
from zdiloco.core.membership import COUNTED, TABLE, Fleet, Member, MemberEvent, MemberState
from zdiloco.core.pace import Due, NotDue, judge_due, needed_steps
from zdiloco.core.rounds import Attendance
from zdiloco.core.start import SyncerPhase
from zdiloco.core.syncer import SyncerMachine
from zdiloco.units import MemberKey

Keys = set[MemberKey]


def in_state(fleet: Fleet, *states: MemberState) -> list[Member]:
    return [member for member in fleet if member.state in states]


def counted(fleet: Fleet) -> list[Member]:
    """Live and suspect ones; those in quarantine where K cannot be reached without them."""
    members = in_state(fleet, *COUNTED)
    return members + (in_state(fleet, MemberState.QUARANTINED) if len(members) < fleet.params.min_quorum else [])


def waited_for(fleet: Fleet) -> Keys:
    return {member.key for member in counted(fleet) if member.state is not MemberState.SUSPECT}


def barred(fleet: Fleet) -> Keys:
    return {member.key for member in in_state(fleet, MemberState.QUARANTINED)} - {m.key for m in counted(fleet)}


def no_room(machine: SyncerMachine, desk: FragmentDesk) -> Keys:
    incoming = machine.intakes.incoming.items()
    return {key for (key, fragment), one in incoming if fragment == desk.index and not one.granted}


def attendance(machine: SyncerMachine, desk: FragmentDesk) -> Attendance:
    """Who is where for the round of a fragment."""
    fleet, rnd = machine.fleet, desk.round
    assert rnd is not None
    held = set(desk.intake.held) - barred(fleet)
    paces = [member.pace.value for member in counted(fleet) if member.pace.value]
    answers = [member.answer.value for member in counted(fleet) if member.answer.value is not None]
    patience_s = machine.params.park_after_s
    if paces and answers:
        patience_s = min(patience_s, max(machine.params.sync_period * min(paces), max(paces), p90(answers)))
    return Attendance(
        absent=waited_for(fleet) - held - rnd.declined.keys() - no_room(machine, desk),
        live=len(counted(fleet)),
        held=held,
        fresh=rnd.fresh & held,
        quorum=machine.desk.quorum(),
        patience_ends=rnd.called_at + patience_s,
    )


def window(machine: SyncerMachine, desk: FragmentDesk) -> tuple[float, str]:
    """The end of the grace window as it would be found now."""
    members, absent = counted(machine.fleet), attendance(machine, desk).absent
    assert desk.round is not None
    assert desk.round.quorum_at is not None
    inputs = GraceInputs(
        called_at=desk.round.called_at,
        quorum_at=desk.round.quorum_at,
        step_s=min((member.pace.value for member in members if member.pace.value), default=None),
        quorum_s=machine.desk.quorum_s.value,
        sync_s=machine.desk.sync_s.value,
        waiting_steps_s=[member.pace.value for member in members if member.key in absent and member.pace.value],
        answers_s=[member.answer.value for member in members if member.answer.value is not None],
    )
    return grace_ends(inputs, machine.params)


def due(machine: SyncerMachine, desk: FragmentDesk, now: float) -> Due | NotDue:
    """Whether K learners have their steps on a fragment, asked of everybody."""
    needed = needed_steps(desk.index, len(machine.desk.fragments), desk.first_turn, machine.params)
    return judge_due(desk.index, needed, counted(machine.fleet), machine.desk.quorum(), now, machine.params)


def silence_due(fleet: Fleet) -> float:
    """When somebody's silence must next be judged; infinity: never."""
    moments = [float("inf")]
    for member in fleet:
        if (member.state, MemberEvent.SILENT) in TABLE:
            moments.append(member.heard_at + fleet.params.suspect_after_s)
        elif (member.state, MemberEvent.LOST) in TABLE:
            moments.append(member.heard_at + fleet.params.gone_after_s)
    return min(moments)


class Beside:
    """Looks at a machine after each event. `seen`: how often what was compared was not empty, by kind."""

    def __init__(self, machine: SyncerMachine) -> None:
        self.machine = machine
        self.seen: dict[str, int] = {}
        self._were_due: set[int] = set()

    def saw(self, what: str, there: object) -> None:
        self.seen[what] = self.seen.get(what, 0) + bool(there)

    def look(self, now: float) -> None:
        """Compare everything."""
        machine, fleet = self.machine, self.machine.fleet
        assert {m.key for m in fleet.counted()} == {m.key for m in counted(fleet)}
        assert fleet.waited_for() == waited_for(fleet)
        assert fleet.quarantined() == barred(fleet)
        assert {state: set(there) for state, there in fleet.in_state.items()} == {
            state: {member.key for member in in_state(fleet, state)} for state in MemberState
        }
        assert fleet.paces.values == sorted(m.pace.value for m in counted(fleet) if m.pace.value)
        assert fleet.answers.values == sorted(m.answer.value for m in counted(fleet) if m.answer.value is not None)
        assert (fleet.silence_due() or float("inf")) <= silence_due(fleet), "early, but never late"
        self.saw("in quarantine", barred(fleet))
        self.saw("in quarantine, and counted", set(fleet.in_state[MemberState.QUARANTINED]) - barred(fleet))
        for desk in machine.desk:
            self._look_at(desk, now)
        self._look_at_room()

    def _look_at(self, desk: FragmentDesk, now: float) -> None:
        machine, rnd = self.machine, desk.round
        if rnd is None:
            self._look_at_due(desk, now)
            return
        self._were_due.discard(desk.index)
        if not rnd.gathering:
            return
        expected = attendance(machine, desk)
        assert machine.desk.attendance(desk) == expected
        for what in ("absent", "held", "fresh"):
            self.saw(what, getattr(expected, what))
        if rnd.quorum_at is not None:
            found = desk.roll.slowest_s()
            paces = [machine.fleet.members[key.name].pace.value or 0.0 for key in expected.absent]
            assert (found or 0.0) == max(paces, default=0.0)
            self.saw("slowest", found)
            again = machine.desk._window(desk, rnd, rnd.quorum_at)
            assert again == window(machine, desk)

    def _look_at_due(self, desk: FragmentDesk, now: float) -> None:
        """Only a syncer that calls says what is due; a moment at which it becomes so is not slept through."""
        if self.machine.phase is not SyncerPhase.RUNNING or not self.machine.desk.started:
            return
        expected, was_due = due(self.machine, desk, now), desk.index in self._were_due
        if isinstance(expected, Due):
            assert desk.due is not None
            assert desk.due.since <= expected.since if was_due else desk.due == expected, "it waits since then"
            self._were_due.add(desk.index)
            self.saw("due, without a slot", True)
            return
        if desk.due is not None:
            assert was_due, "what was due waits for its slot until the fleet changes"
            return
        self._were_due.discard(desk.index)
        assert desk.check_at > now
        if desk.check_at < float("inf"):
            assert isinstance(due(self.machine, desk, desk.check_at), Due)
            self.saw("due later, for sure", True)
        else:
            assert not isinstance(due(self.machine, desk, now + 1e6), Due), "without another report it never is"

    def _look_at_room(self) -> None:
        machine, left = self.machine, self.machine.params.budget_bytes - self.machine.intakes.used_bytes
        waiting = {desk.index: no_room(machine, desk) for desk in machine.desk}
        assert machine.desk.no_room == {fragment: keys for fragment, keys in waiting.items() if keys}
        needs = [one.message.body.nbytes for one in machine.intakes.incoming.values() if not one.granted]
        assert not needs or min(needs) > left, "there was room for one that waits"
        self.saw("no room", needs)
