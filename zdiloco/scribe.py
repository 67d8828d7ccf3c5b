"""What a syncer machine does, as records of a trace: the same for a real syncer, a simulated one, and one that decides
again under other settings.

Rule: it looks on. Each event costs a look at its own member and at the actions; the whole fleet is looked at only when
the machine says that somebody has changed. A learner's steps are told once in `step_every_s` at most, and in a large
fleet so seldom that all together are no more than `STEPS_PER_S`.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from zdiloco import trace
from zdiloco.core.adaptive import AS_SET
from zdiloco.core.machine import (
    Broadcast,
    Fetched,
    Merge,
    MergeDone,
    Note,
    Publish,
    Received,
    Restamp,
    Screened,
    Send,
    SyncerAction,
    SyncerEvent,
    TimerDue,
)
from zdiloco.core.membership import Member, MemberState
from zdiloco.core.messages import Ack, Call, Contribution, Decline, Report
from zdiloco.core.start import SyncerPhase
from zdiloco.core.syncer import SyncerMachine
from zdiloco.units import NO_EPOCH, Epoch, FragmentId, MemberKey

STEP_EVERY_S = 1.0
STEPS_PER_S = 50.0
_ENDED = (MemberState.GONE, MemberState.FINISHED)
"""A word of such a one comes too late, or before it is welcome again: it tells of no life."""
_SEEN = (SyncerPhase.RUNNING, SyncerPhase.DRAINING, SyncerPhase.SAVING)


class Scribe:
    """Follows one syncer machine. `look` is called after each event, with what the machine said."""

    def __init__(self, step_every_s: float = STEP_EVERY_S) -> None:
        self._step_every_s = step_every_s
        self._epoch: Epoch = NO_EPOCH
        self._phase = SyncerPhase.EMPTY
        self._why = ""
        self._adaptive_why = AS_SET
        self._states: dict[str, tuple[MemberKey, MemberState]] = {}
        self._stepped: dict[str, float] = {}
        self._offered: dict[tuple[MemberKey, FragmentId], tuple[int, float]] = {}
        self._coming: dict[tuple[MemberKey, FragmentId], Contribution] = {}
        self._declined: dict[FragmentId, set[MemberKey]] = {}
        self._closed: dict[FragmentId, float] = {}

    def look(
        self, now: float, event: SyncerEvent, actions: Sequence[SyncerAction], machine: SyncerMachine
    ) -> list[trace.Record]:
        """The records of what has just happened, in order."""
        found: list[trace.Record] = []
        if machine.epoch is not self._epoch and machine.phase in _SEEN:
            found += self._begin(now, machine)
        if machine.phase is not self._phase:
            found += self._turn(now, machine.phase)
        handler = self._EVENTS.get(type(event))
        if handler is not None:
            found += handler(self, now, event, actions, machine)
        for action in actions:
            teller = self._ACTIONS.get(type(action))
            if teller is not None:
                found += teller(self, now, action, machine)
        return found

    # ---- events

    def _begin(self, now: float, machine: SyncerMachine) -> list[trace.Record]:
        self._epoch = machine.epoch
        shares = tuple(desk.share for desk in machine.desk)
        numels = tuple(desk.numel for desk in machine.desk)
        versions = tuple(desk.stamp.version for desk in machine.desk)
        opened = trace.Opened(
            t=now, epoch=machine.epoch.counter, shares=shares, numels=numels, versions=versions
        )
        return [opened, *self._everybody(now, machine)]

    def _turn(self, now: float, phase: SyncerPhase) -> list[trace.Record]:
        called = self._phase is SyncerPhase.RUNNING
        self._phase = phase
        return [trace.Ending(t=now, phase=str(phase))] if called else []

    def _received(
        self, now: float, event: Received, actions: Sequence[SyncerAction], machine: SyncerMachine
    ) -> list[trace.Record]:
        member = machine.fleet.members.get(event.key.name)
        if member is None:
            return []
        message = event.message
        found = self._member(now, member)
        if isinstance(message, Report) and member.key == event.key and member.state not in _ENDED:
            found += self._step(now, member, len(machine.fleet.members))
        elif isinstance(message, Contribution) and member.key == event.key:
            place = (event.key, message.fragment)
            if self._offered.get(place, (0, 0.0))[0] != message.seq and message.fragment < len(machine.desk.fragments):
                self._offered[place] = (message.seq, now)
        elif isinstance(message, Decline):
            found += self._decline(now, event.key, message, machine)
        return found

    def _fetched(
        self, now: float, event: Fetched, actions: Sequence[SyncerAction], machine: SyncerMachine
    ) -> list[trace.Record]:
        if isinstance(event.message, Contribution):
            self._coming[event.key, event.message.fragment] = event.message
        return []

    def _screened(
        self, now: float, event: Screened, actions: Sequence[SyncerAction], machine: SyncerMachine
    ) -> list[trace.Record]:
        key, fragment, seq = event.id.key, event.id.fragment, event.id.seq
        if seq < 0:
            return self._bundle(now, fragment, actions, machine)
        message = self._coming.get((key, fragment))
        found: list[trace.Record] = []
        if message is not None and message.seq == seq:
            del self._coming[key, fragment]
            offered, offered_at = self._offered.pop((key, fragment), (0, now))
            if _is_held(actions, key, fragment, seq):
                found.append(_arrived(now, key, message, offered_at if offered == seq else now, machine))
        member = machine.fleet.find(key)
        return found + (self._member(now, member) if member else [])

    def _bundle(
        self, now: float, fragment: FragmentId, actions: Sequence[SyncerAction], machine: SyncerMachine
    ) -> list[trace.Record]:
        """A bundle was looked at: whoever is held now came in it."""
        merging = machine.intakes.in_merge.get(fragment, [])
        found = []
        for held in (*machine.desk.fragments[fragment].intake.held.values(), *(held for held, _ in merging)):
            if _is_held(actions, held.id.key, fragment, held.id.seq):
                offered, offered_at = self._offered.pop((held.id.key, fragment), (0, now))
                at = offered_at if offered == held.id.seq else now
                found.append(_arrived(now, held.id.key, held.message, at, machine))
        return found

    def _timer(
        self, now: float, event: TimerDue, actions: Sequence[SyncerAction], machine: SyncerMachine
    ) -> list[trace.Record]:
        changed = any(isinstance(action, Note) and action.level != "debug" for action in actions)
        return self._everybody(now, machine) if changed else []

    def _merge_done(
        self, now: float, event: MergeDone, actions: Sequence[SyncerAction], machine: SyncerMachine
    ) -> list[trace.Record]:
        waiting = any(state is MemberState.QUARANTINED for _, state in self._states.values())
        return [*self._adapted(now, machine), *(self._everybody(now, machine) if waiting else [])]

    def _adapted(self, now: float, machine: SyncerMachine) -> list[trace.Record]:
        adaptive = machine.desk.adaptive
        if adaptive is None or adaptive.why == self._adaptive_why:
            return []
        self._adaptive_why = adaptive.why
        period, quorum, share = adaptive.sync_period, adaptive.min_quorum, adaptive.grace.share
        return [trace.Adapted(t=now, sync_period=period, min_quorum=quorum, grace_share=share, why=adaptive.why)]

    # ---- members

    def _everybody(self, now: float, machine: SyncerMachine) -> list[trace.Record]:
        members = machine.fleet.members
        for name in self._states.keys() - members.keys():
            del self._states[name]
            self._stepped.pop(name, None)
        for under_way in (self._offered, self._coming):
            for place in [place for place in under_way if machine.fleet.find(place[0]) is None]:
                under_way.pop(place)
        return [record for member in members.values() for record in self._member(now, member)]

    def _member(self, now: float, member: Member) -> list[trace.Record]:
        """What has changed about one member since the last look; of those that only watch nothing is told."""
        name, seen = member.key.name, (member.key, member.state)
        before = self._states.get(name)
        if before == seen or member.watching:
            return []
        self._states[name] = seen
        incarnation = f"{member.key.incarnation:016x}"
        if before is None or before[0] != member.key or (before[1] in _ENDED and member.state not in _ENDED):
            self._stepped.pop(name, None)
            joined = trace.Joined(t=now, who=name, incarnation=incarnation, region=member.region)
            if member.state is MemberState.JOINING:
                return [joined]
            return [joined, self._state(now, member)]
        return [self._state(now, member)]

    def _state(self, now: float, member: Member) -> trace.Record:
        finished = member.state is MemberState.FINISHED
        return trace.Member(
            t=now,
            who=member.key.name,
            incarnation=f"{member.key.incarnation:016x}",
            state=str(member.state),
            why=member.why,
            silent_s=max(0.0, now - member.heard_at),
            step=member.step if finished else None,
            trained=member.trained_tokens if finished else None,
        )

    def _step(self, now: float, member: Member, members: int) -> list[trace.Record]:
        every_s = max(self._step_every_s, members / STEPS_PER_S)
        name = member.key.name
        if now < self._stepped.get(name, float("-inf")) + every_s:
            return []
        self._stepped[name] = now
        return [trace.Step(t=now, who=name, step=member.step, trained=member.trained_tokens)]

    def _decline(self, now: float, key: MemberKey, message: Decline, machine: SyncerMachine) -> list[trace.Record]:
        """A decline of the open round; each learner's first one only."""
        rnd = machine.desk.fragments[message.fragment].round if message.fragment < len(machine.desk.fragments) else None
        declined = self._declined.setdefault(message.fragment, set()) if rnd else set()
        if rnd is None or rnd.version != message.version or key in declined:
            return []
        declined.add(key)
        return [
            trace.Declined(
                t=now, who=key.name, fragment=message.fragment, version=message.version, reason=message.reason
            )
        ]

    # ---- actions

    def _merge(self, now: float, action: Merge, machine: SyncerMachine) -> list[trace.Record]:
        fragment = action.fragment
        rnd = machine.desk.fragments[fragment].round
        self._closed[fragment] = now
        self._declined.pop(fragment, None)
        parts = tuple(
            trace.Part(
                name=held.id.name,
                incarnation=f"{held.id.incarnation:016x}",
                steps=held.message.steps,
                tokens=held.message.tokens,
                seq=held.id.seq,
                staleness=max(0, action.stamp.version - 1 - held.message.stamp.version),
            )
            for held, _ in machine.intakes.in_merge.get(fragment, ())
        )
        called_at = rnd.called_at if rnd else now
        quorum_at = rnd.quorum_at if rnd and rnd.quorum_at is not None else now
        return [
            trace.Merge(
                t=now,
                fragment=fragment,
                version=action.stamp.version,
                epoch=action.stamp.epoch.counter,
                members=parts,
                tokens=sum(part.tokens for part in parts),
                why=rnd.why if rnd else "",
                quorum_s=quorum_at - called_at,
                grace_s=now - quorum_at,
            )
        ]

    def _publish(self, now: float, action: Publish, machine: SyncerMachine) -> list[trace.Record]:
        fragment, stamp = action.update.fragment, action.update.stamp
        sync_s = now - self._closed.get(fragment, now)
        return [trace.Published(t=now, fragment=fragment, version=stamp.version, sync_s=sync_s)]

    def _restamp(self, now: float, action: Restamp, machine: SyncerMachine) -> list[trace.Record]:
        if not action.exact:  # a new epoch, which is told as such
            return []
        versions = tuple(stamp.version for stamp in action.stamps)
        return [trace.Sealed(t=now, epoch=machine.epoch.counter, versions=versions)]

    def _note(self, now: float, action: Note, machine: SyncerMachine) -> list[trace.Record]:
        self._why = action.why  # of what comes next
        return []

    def _broadcast(self, now: float, action: Broadcast, machine: SyncerMachine) -> list[trace.Record]:
        call = action.message
        if not isinstance(call, Call):
            return []
        self._declined.pop(call.fragment, None)
        epoch = call.epoch.counter
        return [trace.Call(t=now, fragment=call.fragment, version=call.version, epoch=epoch, why=self._why)]

    _EVENTS: ClassVar[dict[type, Callable[..., list[trace.Record]]]] = {
        Received: _received, Fetched: _fetched, Screened: _screened, TimerDue: _timer, MergeDone: _merge_done,
    }  # fmt: skip
    _ACTIONS: ClassVar[dict[type, Callable[[Any, float, Any, SyncerMachine], list[trace.Record]]]] = {
        Merge: _merge, Publish: _publish, Broadcast: _broadcast, Restamp: _restamp, Note: _note,
    }  # fmt: skip


def _is_held(actions: Sequence[SyncerAction], key: MemberKey, fragment: FragmentId, seq: int) -> bool:
    for action in actions:
        if isinstance(action, Send) and action.key == key and isinstance(action.message, Ack):
            ack = action.message
            if ack.fragment == fragment and ack.held == seq:
                return True
    return False


def _arrived(
    now: float, key: MemberKey, message: Contribution, offered_at: float, machine: SyncerMachine
) -> trace.Record:
    called_at = machine.desk.fragments[message.fragment].calls.get(message.version)
    return trace.Arrived(
        t=now,
        who=key.name,
        fragment=message.fragment,
        version=message.version,
        seq=message.seq,
        after=message.after,
        base=max(0, message.stamp.version),
        steps=message.steps,
        tokens=message.tokens,
        nbytes=message.body.nbytes,
        cut_step=message.cut_step,
        offer_s=None if called_at is None else max(0.0, offered_at - called_at),
        answer_s=None if called_at is None else now - called_at,
    )
