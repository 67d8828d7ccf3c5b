"""The syncer's part of an explored world; what a part is stands in `parts.py`."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from tests.sim.derived import check_derived, rebuild_derived
from tests.sim.parts import LONG_AGO, NOW, TOKENS, Out, Part, params_of, put
from zdiloco.core import machine as m
from zdiloco.core.membership import MemberState
from zdiloco.core.messages import Contribution, Handback, Welcome
from zdiloco.core.rounds import RoundState
from zdiloco.core.start import SyncerPhase
from zdiloco.core.syncer import SyncerMachine
from zdiloco.sim.bodies import State, SyncerBody, SyncerDisk
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.work import Parcel
from zdiloco.units import MemberKey, Merged


@dataclass
class SyncerPart(Part):
    """One syncer process with its disk.

    `saving`: what a checkpoint that is being written holds; `replaced`: those it names; `returned`: what is in the
    states that are handed back; `record`: of the newest merge.
    """

    fetching: list[tuple[Any, Any]] = field(default_factory=list)
    saving: tuple[State, ...] = ()
    replaced: tuple[MemberKey, ...] = ()
    returned: dict[Any, State] = field(default_factory=dict)
    record: tuple[Merged, ...] = ()

    @classmethod
    def start(cls, disk: SyncerDisk, min_quorum: int, ident: int) -> "SyncerPart":
        machine = SyncerMachine(params_of(min_quorum), run_id="run", ident=ident, now=NOW, known=disk.known())
        part = cls(machine, SyncerBody(disk, 1, "run", put))
        part.settle()
        return part

    @property
    def desk(self) -> Any:
        return self.machine.desk.fragments[0]

    # ---- events

    def hear(self, sent: list[Out], key: Any, message: Any, content: Any) -> None:
        if isinstance(message, Handback):
            self.returned[key, message.body.transfer] = content
        self.tell(sent, m.Received(key=key, message=message))

    def fetched(self, sent: list[Out], index: int, ids: int) -> None:
        key, message = self.fetching.pop(index)
        if isinstance(message, Contribution):
            parcel = Parcel(ids, NBYTES)
        else:
            state = self.returned.pop((key, message.body.transfer))
            parcel = Parcel.of(state.value, NBYTES, state.map)
        self.tell(sent, self.body.take(key, message, parcel))

    def fetch_lost(self, sent: list[Out], index: int) -> None:
        key, message = self.fetching.pop(index)
        self.returned.pop((key, message.body.transfer), None)
        self.tell(sent, m.FetchLost(key=key, message=message, reason="the link broke"))

    def saved(self, sent: list[Out]) -> None:
        assert all(new.stamp >= old.stamp for new, old in zip(self.saving, self.body.disk.states, strict=False))
        event = self.body.save(list(self.saving), m.Save(why="", replaced=self.replaced))
        self.saving = self.replaced = ()
        self.tell(sent, event)

    def timer(self, sent: list[Out], what: str, name: str = "") -> None:
        machine, desk = self.machine, self.desk
        if what == "beat":
            machine.beat_at = NOW
        elif what == "save":
            machine.save_at = NOW
        elif what == "round":
            rnd = desk.round
            rnd.called_at, machine.desk.ends[0] = LONG_AGO, NOW
            rnd.quorum_at = None if rnd.quorum_at is None else LONG_AGO
        elif what == "recovery":
            machine.reception.recovery.ends_at = LONG_AGO
        elif what == "silence":
            machine.fleet.members[name].heard_at = LONG_AGO
            machine.fleet._silences.expect(name, LONG_AGO)
        self.tell(sent, m.TimerDue())

    def timers(self) -> tuple[str, ...]:
        """Which timers are running, but for the beat and silence."""
        machine, found = self.machine, []
        if machine.phase is SyncerPhase.RECOVERING:
            found.append("recovery")
        if machine.phase is not SyncerPhase.RUNNING:
            return tuple(found)
        if machine.dirty and not machine.saving:
            found.append("save")
        if machine.desk.ends:
            found.append("round")
        return tuple(found)

    # ---- actions

    def do(self, sent: list[Out], action: Any) -> None:
        body = self.body
        if isinstance(action, m.Send):
            message = action.message
            plain = replace(message, order=0, progress=0.0) if isinstance(message, Welcome) else message
            sent.append(("down", action.key, plain, None))
        elif isinstance(action, m.Broadcast):
            sent.append(("cast", None, action.message, None))
        elif isinstance(action, m.Publish):
            state = body.states[0]
            assert state.stamp == action.update.stamp
            sent.append(("cast", None, action.update, (state.value, self.record)))
        elif isinstance(action, m.Serve):
            state = body.states[0]
            sent.append(("down", action.key, body.update(0), (state.value, state.map)))
        elif isinstance(action, m.Fetch):
            self.fetching += [] if (action.key, action.message) in self.fetching else [(action.key, action.message)]
        elif isinstance(action, m.Stop):
            raise AssertionError(f"the syncer stops: {action.reason}")
        else:
            self.work(action)

    def work(self, action: Any) -> None:
        body = self.body
        if isinstance(action, m.Save):
            assert not self.saving, "two checkpoints at once"
            self.saving, self.replaced = tuple(body.states), action.replaced
        elif isinstance(action, m.CancelFetch):
            self.fetching = [each for each in self.fetching if each != (action.key, action.message)]
            self.returned.pop((action.key, action.message.body.transfer), None)
            body.do(action)
        else:
            before = body.states[0].stamp
            self.local += body.do(action)
            assert body.states[0].stamp >= before, "an older state"
            if isinstance(action, m.Merge):
                self.record = action.merged
                body.merges.clear()

    # ---- what is left out

    def settle(self) -> None:
        machine = self.machine
        check_derived(machine)
        machine.beat_at, machine.save_at = NOW + 1, NOW + 10
        machine.rounds = machine.contributions = 0
        machine.merged_tokens = 0.0
        machine.waiting._said = ""
        machine.reception.turned_away.clear()
        machine.haste = _Unhurried()
        self._settle_desk()
        fleet, intakes = machine.fleet, machine.intakes
        fleet.past_tokens = intakes.offered = 0
        for incoming in intakes.incoming.values():
            incoming.number = 0
        intakes.refused, intakes.remarks, intakes.replaced, intakes.late = {}, {}, 0, 0
        for member in fleet:
            member.heard_at = NOW
            member.step_at = NOW if member.step_at else 0.0
            member.pace.value = None if member.pace.value is None else 1.0
            member.answer.value = member.staleness.value = None
            member.trained_tokens = member.rounds = 0
            member.unmerged_tokens = member.dropped_tokens = member.merged_tokens = 0.0
            member.refused, member.remarks, member.why = {}, {}, ""
        if machine.reception.recovery:
            machine.reception.recovery.ends_at = NOW + 5
        rebuild_derived(machine)

    def _settle_desk(self) -> None:
        whole = self.machine.desk
        whole.quorum_s.value = whole.sync_s.value = whole.round_s.value = None
        whole.parked = 0
        whole.ends = dict.fromkeys(whole.ends, NOW + 1)
        for desk in whole:
            desk.norms._seen, desk.calls, desk.why, desk.last_merged = {}, {}, "", 0
            desk.turnout.usual.value, desk.turnout.thin = None, 0
            desk.check_at = min(desk.check_at, NOW) if desk.check_at < math.inf else desk.check_at
            desk.due = replace(desk.due, since=NOW, why="") if desk.due else None
            if desk.round:
                desk.round.why, desk.round.called_at = "", NOW
                desk.round.closed_at = None if desk.round.closed_at is None else NOW
                desk.round.quorum_at = None if desk.round.quorum_at is None else NOW
                desk.round.declined = dict.fromkeys(desk.round.declined, "")
            if desk.round and desk.round.state is RoundState.PUBLISHED:
                raise AssertionError("a round that is over is still here")

    def audit(self) -> None:
        """What the map says is merged is in the value, to the token, in memory and on disk."""
        for state in (*self.body.states, *self.body.disk.states):
            tokens = sum(entry.tokens for entry in state.map)
            assert tokens == TOKENS * state.value.bit_count(), "the map does not say what the value holds"

    def is_live(self, name: str) -> bool:
        member = self.machine.fleet.members.get(name)
        return member is not None and member.state in (MemberState.LIVE, MemberState.JOINING)


class _Unhurried:
    """Stands for what tells people that somebody is slow: nothing is decided by it."""

    def look(self, now: float) -> list[Any]:
        return []
