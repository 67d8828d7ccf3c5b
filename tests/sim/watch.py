"""Looks over the shoulder of every syncer machine, in whatever world it runs: rules of time that no count of ids sees.

Rule: what is looked at is what was decided and when, never the machine's own reasons for it. Worlds need not know.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from zdiloco.core import machine as m
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.membership import MemberState
from zdiloco.core.messages import Ack, Call, Heartbeat, Loan, Refused
from zdiloco.core.start import SyncerPhase
from zdiloco.core.syncer import SyncerMachine
from zdiloco.units import MemberKey

NEARLY = 0.999
"""Of a period or a step: paces are averages, and a report is as old as its road is long."""
USUAL = 0.99
"""Of a step: who holds from before waits for a step at the average pace of the one that is missing."""
RUNNING = (SyncerPhase.RUNNING, SyncerPhase.DRAINING)


class Offence(AssertionError):
    """A rule of time does not hold; `rule` is its name."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


@dataclass
class Watch:
    """What was seen so far. `step_s`: how long the shortest step of each process took; `called`: when, by syncer."""

    step_s: dict[MemberKey, float] = field(default_factory=dict)
    called: dict[tuple[int, int], float] = field(default_factory=dict)
    machines: list[Any] = field(default_factory=list)
    loans: dict[int, Loan] = field(default_factory=dict)

    def learner(self, machine: LearnerMachine, event: Any) -> None:
        if isinstance(event, m.StepDone):
            self.step_s[machine.key] = min(event.seconds, self.step_s.get(machine.key, event.seconds))

    def syncer(self, machine: SyncerMachine, event: Any, actions: list[Any], now: float) -> None:
        self._fencing(machine, event)
        for action in actions:
            if isinstance(action, m.Broadcast) and isinstance(action.message, Call):
                self._call(machine, action.message, now)
            elif isinstance(action, m.Merge):
                self._quorum(machine, action)
                self._grace(machine, action, now)
            elif isinstance(action, m.Fetch | m.CancelFetch) and isinstance(action.message, Loan):
                self._loan(machine, action)
        if isinstance(event, m.Screened):
            self._answer(event, actions)
        if machine.phase in RUNNING:
            self._promptness(machine)

    def _fencing(self, machine: SyncerMachine, event: Any) -> None:
        """A syncer that a member has told of a higher epoch has stopped."""
        message = event.message if isinstance(event, m.Received) else None
        if isinstance(message, Heartbeat) and machine.phase in RUNNING and message.epoch > machine.epoch:
            member = machine.fleet.find(event.key)
            known = member is not None and member.state not in (MemberState.GONE, MemberState.FINISHED)
            if known:
                raise Offence("fencing", f"epoch {message.epoch.counter} is told of, {machine.epoch.counter} goes on")

    def _loan(self, machine: SyncerMachine, action: m.Fetch | m.CancelFetch) -> None:
        """The bytes of one loan are let go before those of another are fetched."""
        place, held = id(machine), self.loans.get(id(machine))
        if isinstance(action, m.Fetch):
            if held is not None and held != action.message:
                raise Offence("loans", f"loan {action.message.number} is fetched, and {held.number} not let go")
            self.machines.append(machine)
            self.loans[place] = action.message
        elif held == action.message:
            del self.loans[place]

    def _answer(self, event: m.Screened, actions: list[Any]) -> None:
        """What was looked at is held or refused, and its learner is told; or nobody waits for it any more."""
        told = [a for a in actions if isinstance(a, m.Send) and isinstance(a.message, Ack | Refused)]
        if not any(a.key == event.id.key for a in told) and m.Free(id=event.id) not in actions:
            raise Offence("answer", f"{event.id.key.name} is told nothing of its seq {event.id.seq}")

    def _call(self, machine: SyncerMachine, call: Call, now: float) -> None:
        """Calls of a fragment are H steps of the K-th fastest apart, whoever has come or gone meanwhile."""
        if machine not in self.machines:
            self.machines.append(machine)  # so that its id is not used again
        place = (id(machine), call.fragment)
        before, quorum = self.called.get(place), machine.desk.quorum()
        self.called[place] = now
        steps = sorted(self.step_s[member.key] for member in machine.fleet.counted() if member.key in self.step_s)
        if before is None or len(steps) < quorum:
            return
        gap, least = now - before, machine.params.sync_period * steps[quorum - 1]
        if gap < NEARLY * least:
            raise Offence("due", f"fragment {call.fragment} is called after {gap:.3f} s, H steps take {least:.3f} s")

    def _quorum(self, machine: SyncerMachine, merge: m.Merge) -> None:
        """Nothing is merged of fewer than K."""
        if len(merge.parts) < machine.desk.quorum():
            raise Offence("quorum", f"{len(merge.parts)} are merged, K is {machine.desk.quorum()}")

    def _grace(self, machine: SyncerMachine, merge: m.Merge, now: float) -> None:
        """Whoever lives, and is neither in nor has declined, had a step's time after the quorum."""
        rnd = machine.desk.fragments[merge.fragment].round
        assert rnd is not None
        taken = {part.id.key for part in merge.parts}
        absent = machine.fleet.waited_for() - taken - rnd.declined.keys()
        absent -= machine.desk.no_room.get(merge.fragment, set())
        steps = [self.step_s[key] for key in absent if key in self.step_s and machine.fleet.find(key).pace.value]
        if rnd.quorum_at is not None and steps and now - rnd.quorum_at < NEARLY * max(steps):
            waited = now - rnd.quorum_at
            raise Offence("grace", f"closed {waited:.3f} s after the quorum, a step takes {max(steps):.3f} s")
        if absent and now < rnd.called_at + USUAL * min(self.step_s.values()):
            raise Offence("call", f"closed {now - rnd.called_at:.3f} s after the call, before anybody could answer")

    def _promptness(self, machine: SyncerMachine) -> None:
        """A round that has K, and nobody to wait for, is closed."""
        for desk in machine.desk:
            if desk.round is None or not desk.round.gathering:
                continue
            held = desk.intake.held.keys() - machine.fleet.quarantined()
            declined = desk.round.declined.keys() | machine.desk.no_room.get(desk.index, set())
            if len(held) >= machine.desk.quorum() and not machine.fleet.waited_for() - held - declined:
                raise Offence("held", f"fragment {desk.index} has {len(held)}, waits for nobody, and is open")


@contextmanager
def watched() -> Iterator[Watch]:
    """Every machine that handles an event meanwhile is looked at."""
    watch = Watch()
    of_syncer, of_learner = SyncerMachine.handle, LearnerMachine.handle

    def syncer(self: SyncerMachine, event: Any, now: float) -> list[Any]:
        actions = of_syncer(self, event, now)
        watch.syncer(self, event, actions, now)
        return actions

    def learner(self: LearnerMachine, event: Any, now: float) -> list[Any]:
        watch.learner(self, event)
        return of_learner(self, event, now)

    SyncerMachine.handle, LearnerMachine.handle = syncer, learner
    try:
        yield watch
    finally:
        SyncerMachine.handle, LearnerMachine.handle = of_syncer, of_learner
