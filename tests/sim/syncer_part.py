"""The syncer's part of an explored world; what a part is stands in `parts.py`."""

from dataclasses import dataclass, field, replace
from typing import Any

from tests.sim.parts import LONG_AGO, NOW, TOKENS, Out, Part, params_of
from tests.sim.plain_bodies import State, SyncerBody, SyncerDisk
from zdiloco.core import machine as m
from zdiloco.core.membership import MemberState
from zdiloco.core.messages import Contribution, Handback, Welcome
from zdiloco.core.rounds import RoundState
from zdiloco.core.start import SyncerPhase
from zdiloco.core.syncer import SyncerMachine
from zdiloco.units import Merged


@dataclass
class SyncerPart(Part):
    """One syncer process with its disk. `saving`: what a checkpoint that is being written holds."""

    fetching: list[tuple[Any, Any]] = field(default_factory=list)
    saving: tuple[State, ...] = ()
    returned: dict[Any, State] = field(default_factory=dict)
    record: tuple[Merged, ...] = ()

    @classmethod
    def start(cls, disk: SyncerDisk, min_quorum: int, ident: int) -> "SyncerPart":
        machine = SyncerMachine(params_of(min_quorum), run_id="run", ident=ident, now=NOW, known=disk.known())
        part = cls(machine, SyncerBody(disk, 1, "run"))
        part.settle()
        return part

    @property
    def desk(self) -> Any:
        return self.machine.desk.fragments[0]

    # ---- events

    def hear(self, sent: list[Out], key: Any, message: Any, content: Any) -> None:
        if isinstance(message, Handback):
            self.returned[key, 0, message.stamp] = content
        self.tell(sent, m.Received(key=key, message=message))

    def fetched(self, sent: list[Out], index: int, ids: int) -> None:
        key, message = self.fetching.pop(index)
        if isinstance(message, Contribution):
            self.tell(sent, self.body.fetched(key, message, ids))
        else:
            self.tell(sent, m.Fetched(key=key, message=message))

    def fetch_lost(self, sent: list[Out], index: int) -> None:
        key, message = self.fetching.pop(index)
        self.tell(sent, m.FetchLost(key=key, message=message, reason="the link broke"))

    def saved(self, sent: list[Out]) -> None:
        assert all(new.stamp >= old.stamp for new, old in zip(self.saving, self.body.disk.states, strict=False))
        disk = self.body.disk
        disk.run_id, disk.shares, disk.states = self.body.run_id, self.body.shares, list(self.saving)
        stamps, self.saving = tuple(state.stamp for state in self.saving), ()
        self.tell(sent, m.Saved(stamps=stamps))

    def timer(self, sent: list[Out], what: str, name: str = "") -> None:
        machine, desk = self.machine, self.desk
        if what == "beat":
            machine.beat_at = NOW
        elif what == "save":
            machine.save_at = NOW
        elif what == "check":
            desk.check_at = NOW
        elif what == "round":
            rnd = desk.round
            rnd.called_at, machine.desk.ends[0] = LONG_AGO, NOW
            rnd.quorum_at = None if rnd.quorum_at is None else LONG_AGO
        elif what == "recovery":
            machine.reception.recovery.ends_at = LONG_AGO
        elif what == "silence":
            machine.fleet.members[name].heard_at = LONG_AGO
            machine.fleet._changed()
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
        if self.desk.round is None and self.desk.check_at == NOW + 1 and machine.desk.started:
            found.append("check")
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
            sent.append(("cast", None, action.update, (state, self.record)))
        elif isinstance(action, m.Serve):
            state = body.states[0]
            sent.append(("down", action.key, body.update(0, full=True), (state, state.map)))
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
            self.saving = tuple(body.states)
        elif isinstance(action, m.CancelFetch):
            self.fetching = [each for each in self.fetching if each != (action.key, action.message)]
            body.do(action)
        else:
            before = body.states[0].stamp
            self.local += body.do(action, self.returned)
            assert body.states[0].stamp >= before, "an older state"
            if isinstance(action, m.Merge):
                self.record = action.merged
                body.merges.clear()

    # ---- what is left out

    def settle(self) -> None:
        machine = self.machine
        machine.beat_at, machine.save_at = NOW + 1, NOW + 10
        machine.rounds = machine.contributions = 0
        machine.merged_tokens = 0.0
        machine.waiting._said = ""
        machine.reception.turned_away.clear()
        self._settle_desk()
        fleet, intakes = machine.fleet, machine.intakes
        fleet.past_tokens = 0
        fleet._changed()
        intakes.refused, intakes.remarks, intakes.replaced, intakes.late = {}, {}, 0, 0
        for member in fleet:
            member.heard_at = NOW
            member.step_at = NOW if member.step_at else 0.0
            member.pace.value = None if member.pace.value is None else 1.0
            member.answer.value = member.staleness.value = None
            member.trained_tokens = member.rounds = 0
            member.unmerged_tokens = member.dropped_tokens = member.merged_tokens = 0.0
            member.refused, member.why = {}, ""
        if machine.reception.recovery:
            machine.reception.recovery.ends_at = NOW + 5

    def _settle_desk(self) -> None:
        whole = self.machine.desk
        whole.quorum_s.value = whole.sync_s.value = whole.round_s.value = None
        whole.parked = 0
        whole.ends = dict.fromkeys(whole.ends, NOW + 1)
        for desk in whole:
            desk.norms._seen, desk.calls, desk.why, desk.last_merged = {}, {}, "", 0
            desk.check_at = min(desk.check_at, NOW + 1) if desk.check_at < float("inf") else desk.check_at
            desk.check_at = NOW + 1 if desk.check_at < NOW + 1 else desk.check_at
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
