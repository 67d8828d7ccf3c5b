"""The syncer machine: who is in, what is called, what is merged, what is durable.

Rule: it decides and touches nothing. `handle` takes one event, does what that event asks for, then looks at everything
whose time has come. Bytes are handles (`ContributionId`); values, checkpoints and sockets belong to the body.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from zdiloco.core import loans
from zdiloco.core.desk import Closing, Desk, FragmentDesk
from zdiloco.core.ending import Ending
from zdiloco.core.haste import Haste
from zdiloco.core.intake import Intakes
from zdiloco.core.machine import (
    Broadcast,
    CancelFetch,
    Fetched,
    FetchLost,
    HandbackTaken,
    InitialTaken,
    LayoutTaken,
    LeaveRequested,
    Merge,
    MergeDone,
    MergeFailed,
    Note,
    Publish,
    Received,
    Save,
    Saved,
    SaveFailed,
    Screened,
    Serve,
    ServeStatus,
    Stop,
    SyncerAction,
    SyncerEvent,
    TakeHandback,
    TakeInitial,
    TakeLayout,
    TimerDue,
    Unusable,
)
from zdiloco.core.membership import COUNTED, Fleet, Member, MemberState
from zdiloco.core.messages import (
    Beat,
    Bundle,
    Call,
    Contribution,
    Decline,
    Farewell,
    Goodbye,
    Handback,
    Heartbeat,
    Hello,
    InitialOffer,
    LayoutOffer,
    Loan,
    Pull,
    Receipt,
    Report,
    StatusQuery,
)
from zdiloco.core.moves import moved
from zdiloco.core.params import SyncParams
from zdiloco.core.reception import Reception
from zdiloco.core.start import TABLE, KnownState, SyncerPhase, SyncerTurn, expected
from zdiloco.core.waiting import Waiting
from zdiloco.errors import MachineError
from zdiloco.units import NO_EPOCH, Epoch, Stamp

_P = SyncerPhase
SOONER = 4
"""A change of the fleet is saved so many times sooner than merges are."""


class SyncerMachine:
    """One syncer process. `ident`: its random id; `known`: what its disk holds, None for a new run.

    `target_tokens`: share-weighted merged tokens that end the run (0: none).
    """

    def __init__(
        self, params: SyncParams, *, run_id: str, ident: int, now: float, target_tokens: int = 0,
        known: KnownState | None = None,
    ) -> None:  # fmt: skip
        self.params, self.run_id, self.ident, self.target_tokens = params, run_id, ident, target_tokens
        self.phase = _P.EMPTY
        self.epoch: Epoch = NO_EPOCH
        self.layout_digest = ""
        self.fleet = Fleet(params)
        self.desk = Desk(params, self.fleet)
        self.intakes = Intakes(params, self.desk, self.fleet)
        self.reception = Reception(self)
        self.ending = Ending(self)
        self.waiting, self.haste, self.loans = Waiting(self), Haste(self), loans.Loans(self)
        self.progress = self.merged_tokens = 0.0
        self.beat_at = now
        self.save_at = now + params.checkpoint_every_s
        self.saving = self.dirty = False
        self.drain_ends = float("inf")
        self.farewell: Farewell | None = None
        self.opening: list[SyncerAction] = []
        self.rounds = self.contributions = 0
        if known is not None:
            self.reception.start_from(known, now)

    # ---- the contract

    def handle(self, event: SyncerEvent, now: float) -> list[SyncerAction]:
        """Take one event at `now` (monotonic seconds) and say what to do, in order."""
        actions, self.opening = self.opening, []
        if self.phase is _P.STOPPED:
            return actions
        if isinstance(event, Received):
            actions += self._message(event, now)
        else:
            handler = self._EVENTS.get(type(event))
            if handler is None:
                raise MachineError(f"the syncer machine knows no event {type(event).__name__}")
            actions += handler(self, event, now)
        return actions + self._turn(now, isinstance(event, TimerDue))

    def deadline(self) -> float | None:
        """When to send `TimerDue` next."""
        if self.phase is _P.STOPPED:
            return None
        due: list[float | None] = [self.beat_at]
        if self.phase in (_P.RUNNING, _P.DRAINING):
            due += [self.desk.deadline(), self.fleet.silence_due(), self.loans.deadline()]
        if self.phase is _P.RECOVERING and self.reception.recovery:
            due.append(self.reception.recovery.due_at())
        if self.phase in (_P.DRAINING, _P.SAVING):
            due.append(self.drain_ends)
        return min(at for at in due if at is not None)

    # ---- starting

    def count_merged(self) -> None:
        """Sum what is merged, from the maps."""
        self.merged_tokens = sum(
            desk.share * sum(entry.tokens for entry in desk.intake.map.values()) for desk in self.desk
        )
        self.follow_progress()

    def follow_progress(self) -> None:
        """Merged over target tokens; it never falls."""
        if self.target_tokens:
            self.progress = max(self.progress, self.merged_tokens / self.target_tokens)

    # ---- what members say

    def _message(self, event: Received, now: float) -> list[SyncerAction]:
        message, key = event.message, event.key
        if isinstance(message, StatusQuery):
            return [ServeStatus(key=key, layout=message.layout)]
        if isinstance(message, Hello):
            return self.reception.hello(key, message, now)
        if isinstance(message, Bundle):
            return self.intakes.bundles.offer(key, message, now, running=self.phase in (_P.RUNNING, _P.DRAINING))
        if isinstance(message, LayoutOffer | InitialOffer):
            return self.reception.donation.fetch(key, message, now) if self.phase is _P.EMPTY else []
        if isinstance(message, Handback):
            recovery = self.reception.recovery if self.phase is _P.RECOVERING else None
            return recovery.fetch(key, message) if recovery else []
        if self.phase in (_P.EMPTY, _P.RECOVERING, _P.SEALING):
            return self.reception.early(key, isinstance(message, Goodbye), now)
        was = self.fleet.find(key)
        suspect = was is not None and was.state is MemberState.SUSPECT
        member = self.fleet.hear(key, now)
        if member is None:
            return self.reception.stranger(key, message)
        if isinstance(message, Heartbeat) and message.epoch > self.epoch:
            return self.ending.fence(message.epoch)  # a member says so: a stranger is asked for its hello first
        actions: list[SyncerAction] = self.close(self.desk.judge(now)) if suspect else []
        handler = self._MESSAGES.get(type(message))
        return actions + (handler(self, member, message, now) if handler else [])

    def _report(self, member: Member, report: Report, now: float) -> list[SyncerAction]:
        self.fleet.report(member, report.step, now)
        member.trained_tokens = report.trained_tokens
        member.unmerged_tokens, member.dropped_tokens = report.unmerged_tokens, report.dropped_tokens
        return self._begin(member, now)

    def _begin(self, member: Member, now: float) -> list[SyncerAction]:
        if member.state is not MemberState.JOINING:
            return []
        self.fleet.begin(member)
        return self.fleet_changed(now)

    def _contribution(self, member: Member, message: Contribution, now: float) -> list[SyncerAction]:
        if self.phase is _P.SAVING:
            return self.intakes.closed(member, message)
        desk = self._desk_of(message.fragment)
        actions = self._begin(member, now) + self.intakes.offer(member, message, self.epoch)
        return actions + (self.close(self.desk.judge_one(desk, now)) if desk and self.desk.no_room else [])

    def _decline(self, member: Member, message: Decline, now: float) -> list[SyncerAction]:
        desk = self._desk_of(message.fragment)
        if desk is None or desk.round is None or desk.round.version != message.version:
            return []
        ready = f" (perhaps for {message.eta_s:.1f} s)" if message.eta_s else ""
        self.desk.declined(desk, desk.round, member.key, message.reason + ready)
        return self.close(self.desk.judge_one(desk, now))

    def _pull(self, member: Member, message: Pull, now: float) -> list[SyncerAction]:
        serve = Serve(key=member.key, fragment=message.fragment, trains=member.state in COUNTED)
        return [serve] if self._desk_of(message.fragment) else []

    def _goodbye(self, member: Member, message: Goodbye, now: float) -> list[SyncerAction]:
        self.fleet.leave(member, message.reason)
        member.trained_tokens, member.left_tokens = message.trained_tokens, message.left_tokens
        member.unmerged_tokens, member.dropped_tokens = 0.0, message.dropped_tokens
        note = Note(what=f"{member.key.name} leaves", why=message.reason)
        return [note, *self.intakes.break_off(member.key), *self.fleet_changed(now)]

    def _desk_of(self, fragment: int) -> FragmentDesk | None:
        return self.desk.fragments[fragment] if fragment < len(self.desk.fragments) else None

    # ---- what the body reports

    def _fetched(self, event: Fetched, now: float) -> list[SyncerAction]:
        message, key = event.message, event.key
        if isinstance(message, LayoutOffer | InitialOffer):
            if self.phase is not _P.EMPTY or key != self.reception.donation.donor:
                return [CancelFetch(key=key, message=message)]
            if isinstance(message, LayoutOffer):
                return [TakeLayout(key=key, message=message)]
            return [TakeInitial(key=key, message=message)]
        if isinstance(message, Handback):
            recovery = self.reception.recovery if self.phase is _P.RECOVERING else None
            fits = recovery is not None and recovery.take(message)
            return [TakeHandback(key=key, message=message)] if fits else [CancelFetch(key=key, message=message)]
        if isinstance(message, Loan):
            return self.loans.fetched(key, message, now)
        return self.intakes.fetched(key, message, self.epoch)

    def _fetch_lost(self, event: FetchLost, now: float) -> list[SyncerAction]:
        if isinstance(event.message, Contribution | Bundle):
            return self.intakes.lost(event.key, event.message, event.reason)
        if isinstance(event.message, Loan):
            return self.loans.lost(event.key, event.message, event.reason, now)
        lost = Unusable(key=event.key, message=event.message, reason=event.reason)
        return self.reception.unusable(lost, now, at_fault=False)

    def _screened(self, event: Screened, now: float) -> list[SyncerAction]:
        actions = self.intakes.screened(event, self.epoch, now)
        return actions + self.close(self.desk.judge_one(self.desk.fragments[event.id.fragment], now))

    def _merge_done(self, event: MergeDone, now: float) -> list[SyncerAction]:
        update, desk = event.update, self.desk.fragments[event.update.fragment]
        self.desk.published(desk, update.stamp, now)
        self.rounds += 1
        self.dirty = True
        taken = self.intakes.in_merge.get(desk.index, [])
        self.contributions += len(taken)
        self.merged_tokens += desk.share * sum(held.message.tokens for held, _ in taken)
        self.follow_progress()
        merged = self.intakes.merged(desk, dict(event.trimmed))
        return [Publish(update=update), *desk.turnout.merged(desk.index, event.plain), *merged, *self.desk.adapted(now)]

    def _merge_failed(self, event: MergeFailed, now: float) -> list[SyncerAction]:
        desk = self.desk.fragments[event.fragment]
        self.desk.void(desk, now)
        what = f"the merge of fragment {event.fragment} is void; its contributions are refused"
        return [Note(what=what, why=event.reason, level="error"), *self.intakes.void(desk)]

    def _saved(self, event: Saved, now: float) -> list[SyncerAction]:
        self.saving = False
        for desk, stamp in zip(self.desk, event.stamps, strict=True):
            desk.stable = max(desk.stable, stamp)
        if self.phase is _P.SEALING and all(stamp.epoch == self.epoch for stamp in event.stamps):
            return self.reception.sealed(now)
        self.save_at = now + self.params.checkpoint_every_s
        if self.phase is _P.SAVING:
            return self.ending.saved(now)
        return [Note(what="checkpoint", why="saved in the background", level="debug")]

    def _save_failed(self, event: SaveFailed, now: float) -> list[SyncerAction]:
        self.saving, self.dirty = False, True
        self.save_at = now + self.params.checkpoint_every_s
        if event.successor:
            return self.ending.fence(event.successor, event.reason)
        note = Note(what="checkpoint not written", why=event.reason, level="error")
        if self.phase in (_P.SEALING, _P.SAVING):
            return [note, Stop(reason=f"the checkpoint that must be durable is not: {event.reason}", exit_code=1)]
        return [note]

    # ---- turning

    def _turn(self, now: float, is_time: bool) -> list[SyncerAction]:
        actions: list[SyncerAction] = []
        if self.phase is _P.EMPTY:
            actions += [*(self.reception.judge_donor(now) if is_time else ()), *self.waiting.look()]
        if self.phase is _P.RECOVERING and is_time:
            actions += self.reception.judge_recovery(now)
        if self.phase in (_P.RUNNING, _P.DRAINING):
            actions += self._run(now, is_time)
        if self.phase in (_P.DRAINING, _P.SAVING):
            actions += self.ending.drain(now)
        if self.phase in (_P.EMPTY, _P.RECOVERING, _P.SEALING):
            self.beat_at = max(self.beat_at, now + self.params.beat_every_s)
        elif now >= self.beat_at:
            self.beat_at = now + self.params.beat_every_s
            actions += [*self._beat(), *self.haste.look(now)]
        return actions

    def _run(self, now: float, is_time: bool) -> list[SyncerAction]:
        actions = self.ending.judge_target(now)
        changed = self.fleet.judge_silence(now) if is_time else []  # words that wait to be read come before
        for member in changed:
            gone = member.state is MemberState.GONE
            what = f"{member.key.name} is {member.state}"
            actions.append(Note(what=what, why=member.why, level="warning" if gone else "info"))
            actions += self.intakes.break_off(member.key) if gone else []
        if self.desk.stirred:
            actions += self.fleet_changed(now)
        due = [self.desk.fragments[index] for index, at in self.desk.ends.items() if at <= now]
        for desk in due:
            actions += self.close(self.desk.judge_one(desk, now))
        for rnd in self.desk.call(now):
            call = Call(epoch=self.epoch, fragment=rnd.fragment, version=rnd.version)
            actions.append(Note(what=f"calls fragment {rnd.fragment}", why=rnd.why, level="debug"))
            actions.append(Broadcast(message=call))
            actions += self.close(self.desk.judge_one(self.desk.fragments[rnd.fragment], now))
        actions += self.loans.turn(now)
        if self.dirty and not self.saving and now >= self.save_at:
            self.dirty, self.saving = False, True
            actions.append(self.save(f"{self.params.checkpoint_every_s:g} s since the last one"))
        return actions

    def save(self, why: str) -> Save:
        """A checkpoint, with what must outlive this process beside the values."""
        live = expected(self.fleet, self.reception.waiting)
        return Save(why=why, replaced=tuple(self.fleet.replaced), live=live)

    def fleet_changed(self, now: float) -> list[SyncerAction]:
        """Somebody came, went, began, offended or behaves again: judge everything again, and note who is here soon."""
        self.dirty, self.save_at = True, min(self.save_at, now + self.params.checkpoint_every_s / SOONER)
        self.desk.stirred = False
        self.desk.begin_turn(now)
        self.desk.look_again(now)
        return [*self.waiting.look(), *self.close(self.desk.judge(now))]

    def close(self, closings: Sequence[Closing]) -> list[SyncerAction]:
        """Merge what closes."""
        actions: list[SyncerAction] = []
        for closing in closings:
            desk = closing.desk
            parts = self.intakes.close(desk, closing.taken)
            stamp = Stamp(self.epoch, desk.stamp.version + 1)
            actions.append(Note(what=f"closes fragment {desk.index}", why=closing.why, level="debug"))
            merge = Merge(fragment=desk.index, stamp=stamp, parts=parts, merged=closing.record)
            actions.append(merge)
        return actions

    def _beat(self) -> list[SyncerAction]:
        beat = Beat(
            epoch=self.epoch,
            open_rounds=tuple((rnd.fragment, rnd.version) for rnd in self.desk.open_rounds()),
            versions=tuple(desk.stamp.version for desk in self.desk),
            stable=tuple(desk.stable.version if desk.stable.epoch == self.epoch else -1 for desk in self.desk),
            progress=self.progress,
        )
        return [Broadcast(message=beat), *([Broadcast(message=self.farewell)] if self.farewell else [])]

    # ---- ending

    def move(self, turn: SyncerTurn) -> None:
        """Go where TABLE says; anything else is our mistake."""
        self.phase = moved(TABLE, self.phase, turn, "syncer")

    _MESSAGES: ClassVar[dict[type, Callable[..., list[SyncerAction]]]] = {
        Report: _report,
        Heartbeat: lambda self, member, message, now: self.reception.lives(member, message),
        Contribution: _contribution,
        Decline: _decline,
        Pull: _pull,
        Goodbye: _goodbye,
        Receipt: lambda self, member, message, now: self.ending.moved(member.key, now),
        **loans.MESSAGES,
    }
    _EVENTS: ClassVar[dict[type, Callable[[Any, Any, float], list[SyncerAction]]]] = {
        TimerDue: lambda self, event, now: [],
        LeaveRequested: lambda self, event, now: self.ending.leave(event, now),
        Fetched: _fetched,
        FetchLost: _fetch_lost,
        Screened: _screened,
        LayoutTaken: lambda self, event, now: self.reception.layout_taken(event, now),
        InitialTaken: lambda self, event, now: self.reception.initial_taken(event, now),
        HandbackTaken: lambda self, event, now: self.reception.handback_taken(event, now),
        Unusable: lambda self, event, now: self.reception.unusable(event, now),
        MergeDone: _merge_done,
        MergeFailed: _merge_failed,
        Saved: _saved,
        SaveFailed: _save_failed,
    }
