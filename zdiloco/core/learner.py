"""The learner machine: when to cut, when to adopt, and what becomes of every step's work.

Rule: the model is touched only at a boundary (`StepDone`, `Boundary`), first adopting, then cutting; nothing here ever
waits. `handle` takes one event, does what it asks for, then looks at what is due.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from zdiloco.core import finishing, lending
from zdiloco.core.borrowing import Borrowing
from zdiloco.core.duty import Duty, DutyEvent, DutyState
from zdiloco.core.inflow import EVENTS as INFLOW_EVENTS
from zdiloco.core.inflow import Inflow
from zdiloco.core.joining import TABLE, Hail, LearnerPhase, LearnerTurn, heartbeat_of, hello_of, report_of
from zdiloco.core.ledger import FragmentRow, row_of
from zdiloco.core.machine import (
    SYNCER,
    Boundary,
    ContributionLost,
    Drop,
    Encoded,
    Finish,
    Forget,
    LearnerAction,
    LearnerEvent,
    LeaveRequested,
    Note,
    Ready,
    Reborn,
    Received,
    Reincarnate,
    Send,
    SendHandback,
    SendInitial,
    SendLayout,
    Started,
    StepDone,
    Stop,
    TimerDue,
)
from zdiloco.core.messages import (
    Ack,
    Beat,
    Call,
    Donate,
    Farewell,
    Goodbye,
    HandbackRequest,
    Message,
    Refused,
    Unwelcome,
    Update,
    Welcome,
)
from zdiloco.core.moves import moved
from zdiloco.core.outflow import Outflow
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.core.solitude import alone
from zdiloco.errors import MachineError
from zdiloco.units import NO_EPOCH, Epoch, MemberKey, Stamp

_P, _T = LearnerPhase, LearnerTurn
LEAVE_S = 4.0
"""How long a learner that leaves goes on pushing."""
FIRST_REPORTS_S = 0.01
"""Reports before the first contribution are at most so frequent: the syncer wants to know the pace soon."""


class LearnerMachine:
    """One learner process. `shares`: parameter share per fragment; `layout_digest`: of its own model.

    One that is `watching` adopts what is published and has no say: it makes no steps, gives no values and no epoch
    away, answers no call, and is content with whatever syncer serves its run.
    """

    def __init__(
        self, key: MemberKey, sync: SyncParams, params: LearnerParams, *, shares: tuple[float, ...], layout_digest: str,
        run_name: str = "", watching: bool = False,
    ) -> None:  # fmt: skip
        self.key, self.sync, self.params = key, sync, params
        self.shares, self.layout_digest, self.run_name, self.watching = shares, layout_digest, run_name, watching
        self.phase = _P.HAILING
        self.run_id = ""
        self.epoch: Epoch = NO_EPOCH
        self.global_progress = 0.0
        self.step = self.trained_tokens = self.steps_since_join = 0
        self.duties = [Duty(index) for index in range(len(shares))]
        self.inflow, self.outflow = Inflow(self), Outflow(self)
        self.borrowing, self.lending = Borrowing(self), lending.Lending(self)
        self.hail = Hail()
        self.reported_at = self.beat_at = self.heard_at = float("-inf")
        self.reseed = self.leave_reason = ""
        self.farewell: Farewell | None = None
        self.leave_ends = float("inf")
        self.counts: dict[str, int] = {}

    # ---- the contract

    def handle(self, event: LearnerEvent, now: float) -> list[LearnerAction]:
        """Take one event at `now` (monotonic seconds) and say what to do, in order."""
        if self.phase is _P.STOPPED:
            return []
        if isinstance(event, Received):
            actions = self._message(event.message, now)
        else:
            handler = self._EVENTS.get(type(event))
            if handler is None:
                raise MachineError(f"the learner machine knows no event {type(event).__name__}")
            actions = handler(self, event, now)
        return actions + self._turn(now)

    def deadline(self) -> float | None:
        """When to send `TimerDue` next."""
        if self.phase is _P.STOPPED:
            return None
        due = [self.beat_at + self.sync.beat_every_s, self.inflow.deadline(), self.outflow.deadline()]
        due.append(self.borrowing.deadline())
        if self.phase in (_P.HAILING, _P.ADRIFT):
            due.append(self.hail.due_at)
        elif self.phase not in (_P.FINISHING, _P.LEAVING):
            due.append(self.heard_at + self.params.silent_after_s)
        if self.phase is _P.LEAVING:
            due.append(self.leave_ends)
        return min(due)

    @property
    def ready(self) -> bool:
        """Whether every fragment holds published values, so that steps count."""
        return all(duty.progress.seen.version >= 0 for duty in self.duties)

    def ledger_rows(self) -> tuple[FragmentRow, ...]:
        """What this process holds of every fragment, for its counter file."""
        return tuple(row_of(duty.progress) for duty in self.duties)

    def weighed(self, field: str) -> float:
        """A count of every fragment, summed by parameter share: 'unmerged', 'dropped' or 'merged' tokens."""
        counts = [d.progress.tokens if field == "unmerged" else getattr(d.progress.tally, field) for d in self.duties]
        return float(sum(share * count for share, count in zip(self.shares, counts, strict=True)))

    def count(self, what: str) -> None:
        """One more of a kind of event, for status and tests."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # ---- boundaries

    def _step_done(self, event: StepDone, now: float) -> list[LearnerAction]:
        self.step += 1
        self.steps_since_join += 1
        self.trained_tokens += event.tokens
        self.outflow.uplink.stepped(event.seconds)
        for duty in self.duties:
            duty.progress.step(event.tokens)
        return self._boundary(event, now) + self._report(now)

    def _boundary(self, event: StepDone | Boundary, now: float) -> list[LearnerAction]:
        if self.reseed and self.phase is not _P.FINISHING:
            return self._start_over()
        actions = self.inflow.adopt(now)
        if self.phase is _P.RESTORING and self.ready and all(d.progress.seen.epoch == self.epoch for d in self.duties):
            self.move(_T.LOADED)
            self.steps_since_join = 0
            for duty in self.duties:
                if duty.reset:  # judged while there was no work yet: from here on a step may come before it
                    actions += self.inflow.prepare_again(duty)
            actions += [Note(what="ready", why="every fragment holds the published values"), Ready()]
        if self.params.max_unmerged_steps:
            actions += self._drop_old()
        if self.phase is _P.TRAINING:
            actions += self.outflow.answer(now)
        elif self.phase is _P.LEAVING:
            actions += self.outflow.push_rest(now)
        elif self.phase is _P.FINISHING:
            actions += finishing.boundary(self)
        return [*actions, *self.borrowing.boundary(now), *self.lending.boundary()]

    def _drop_old(self) -> list[LearnerAction]:
        actions: list[LearnerAction] = []
        for duty in self.duties:
            if duty.progress.steps > self.params.max_unmerged_steps:
                allowed = self.params.max_unmerged_steps
                why = f"{duty.progress.steps} unmerged steps, learner.max_unmerged_steps is {allowed}"
                actions += [Note(what=f"drops fragment {duty.index}", why=why, level="warning"), *self.drop(duty)]
        return actions

    def drop(self, duty: Duty) -> list[LearnerAction]:
        """Give up what is unmerged of a fragment, at this boundary."""
        duty.progress.drop()
        self.count("dropped")
        return [Drop(fragment=duty.index), *self.inflow.prepare_again(duty)]

    def _start_over(self) -> list[LearnerAction]:
        why, self.reseed = self.reseed, ""
        actions: list[LearnerAction] = []
        for duty in self.duties:
            duty.progress.drop()
            self.count("dropped")
            seqs = tuple(sorted({*duty.progress.sent, *duty.progress.kept}))
            actions += [Drop(fragment=duty.index), Forget(fragment=duty.index, seqs=seqs), *self.inflow.clear(duty)]
        self.move(_T.OFFENDED)
        if self.phase is _P.LEAVING:  # nothing of it can be merged any more: it goes, as the incarnation that it is
            return [*actions, Note(what="has nothing left to push", why=why, level="warning"), *self.goodbye()]
        self.outflow.clear()
        self.hail.hold()
        return [*actions, Note(what="starts over", why=why, level="warning"), Reincarnate(reason=why)]

    def _reborn(self, event: Reborn, now: float) -> list[LearnerAction]:
        self.key = MemberKey(self.key.name, event.incarnation)
        self.duties = [Duty(index) for index in range(len(self.shares))]
        self.trained_tokens = self.step = 0
        return self.borrowing.begin() + self.lending.end() + self._say_hello(now)

    def _report(self, now: float) -> list[LearnerAction]:
        every_s = self.sync.report_every_s
        if not self.outflow.contributed:
            every_s = min(FIRST_REPORTS_S, every_s)
        if self.phase is not _P.TRAINING or now < self.reported_at + every_s:
            return []
        self.reported_at = now
        return [Send(key=SYNCER, message=report_of(self))]

    # ---- what the syncer says

    def _message(self, message: Message, now: float) -> list[LearnerAction]:
        if isinstance(message, Beat) and message.epoch < self.epoch:
            return []  # an old syncer that does not know yet that it has been replaced
        self.heard_at = now
        handler = self._MESSAGES.get(type(message))
        return handler(self, message, now) if handler else []

    def duty(self, fragment: int) -> Duty | None:
        """The affairs of a fragment; None: there is no such fragment."""
        return self.duties[fragment] if fragment < len(self.duties) else None

    def _donate(self, message: Donate, now: float) -> list[LearnerAction]:
        if self.phase is not _P.HAILING or self.ready or self.watching:
            return []
        self.move(_T.ASKED)
        note = Note(what="donates the initial values", why="this run has none yet")
        return [note, SendLayout(), *(SendInitial(fragment=duty.index) for duty in self.duties)]

    def _welcome(self, message: Welcome, now: float) -> list[LearnerAction]:
        if message.epoch < self.epoch and self.watching:
            self.epoch, self.reseed = NO_EPOCH, f"the run goes on from epoch {message.epoch.counter}, which is older"
        if message.epoch < self.epoch or self.phase is _P.LEAVING or self.reseed:
            return []
        if self.phase is _P.FINISHING and message.epoch == self.epoch:
            return finishing.ask(self, now)
        if len(message.versions) != len(self.duties):
            counts = f"{len(message.versions)} fragments, this model {len(self.duties)}"
            return self.stop(f"the syncer has {counts}: set sync.num_fragments alike", 2)
        again = message.epoch == self.epoch and self.phase in (_P.TRAINING, _P.RESTORING)
        if again:
            return []
        over = finishing.resumed(self, message.epoch) if self.phase is _P.FINISHING else []
        self.move(_T.WELCOMED_BACK if self.phase is _P.ADRIFT else _T.WELCOMED)
        if message.epoch != self.epoch:
            for duty in self.duties:
                duty.version = duty.declined = 0  # a successor may have gone back: its versions start lower
        self.epoch, self.run_id = message.epoch, message.run_id
        self.global_progress = max(self.global_progress, message.progress)
        note = Note(what=f"welcomed as member {message.order}", why=f"epoch {self.epoch.counter} of {self.run_id}")
        actions: list[LearnerAction] = [*over, note]
        for duty, version in zip(self.duties, message.versions, strict=True):
            if duty.progress.seen.epoch != self.epoch or version > duty.tip.version:
                if duty.way:  # of another epoch: it will not be taken
                    self.outflow.uplink.end(duty.index, duty.settle())
                actions += self.inflow.downlink.welcomed(duty, version, now)
        return actions

    def _unwelcome(self, message: Unwelcome, now: float) -> list[LearnerAction]:
        if message.fatal:
            return self.stop(message.text, 3 if message.reason == "replaced" else 2, message.reason)
        if message.reason == "unknown" and self.phase in (_P.ADRIFT, _P.FINISHING):
            return self._say_hello(now) if self.hail.may_repeat(now) else []
        if message.reason == "unknown" and self.phase in (_P.TRAINING, _P.RESTORING, _P.DONATING):
            self.move(_T.LOST)
            return [Note(what="says hello again", why=message.text), *self._say_hello(now)]
        return [Note(what="waits for the syncer", why=message.text, level="debug" if self.hail.said else "info")]

    def _beat(self, message: Beat, now: float) -> list[LearnerAction]:
        self.global_progress = max(self.global_progress, message.progress)
        if message.epoch > self.epoch and self.phase in (_P.TRAINING, _P.RESTORING, _P.DONATING):
            self.move(_T.LOST)
            why = f"a syncer of epoch {message.epoch.counter} beats, ours was {self.epoch.counter}"
            return [Note(what="says hello again", why=why), *self._say_hello(now)]
        if message.epoch > self.epoch and self.phase is _P.FINISHING:
            return [*finishing.resumed(self, message.epoch), *self._say_hello(now)]
        if message.epoch != self.epoch or self.phase not in (_P.TRAINING, _P.RESTORING):
            return []
        actions: list[LearnerAction] = []
        for fragment, version in message.open_rounds:
            self._called(fragment, version)
        for duty, version, stable in zip(self.duties, message.versions, message.stable, strict=False):
            actions += self.inflow.check(duty, version, now)
            if stable >= 0 and duty.adoption is None:
                actions += self.outflow.forget(duty, duty.progress.on_stable(Stamp(self.epoch, stable)))
        return actions

    def _call(self, message: Call, now: float) -> list[LearnerAction]:
        if message.epoch == self.epoch:
            self._called(message.fragment, message.version)
        return []

    def _called(self, fragment: int, version: int) -> None:
        duty = self.duty(fragment)
        free = duty is not None and duty.state in (DutyState.IDLE, DutyState.CALLED) and not self.watching
        if duty and free and version >= duty.version:
            duty.move(DutyEvent.CALLED)
            duty.version = version

    def _update(self, message: Update, now: float) -> list[LearnerAction]:
        duty = self.duty(message.fragment)
        if duty is None or message.stamp.epoch != self.epoch or self.phase not in finishing.TAKES_UPDATES:
            return []
        return self.inflow.offered(duty, message, now)

    def _handback_request(self, message: HandbackRequest, now: float) -> list[LearnerAction]:
        duty = self.duty(message.fragment)
        if duty is None or duty.adopted is None or self.watching:
            return []
        return [SendHandback(fragment=duty.index, stamp=duty.progress.seen, map_=tuple(duty.map.values()))]

    # ---- arriving, leaving, time

    def _started(self, event: Started, now: float) -> list[LearnerAction]:
        self.heard_at = now
        return self._say_hello(now)

    def _say_hello(self, now: float) -> list[LearnerAction]:
        self.hail.next(now)
        return [Send(key=SYNCER, message=hello_of(self))]

    def _leave(self, event: LeaveRequested, now: float) -> list[LearnerAction]:
        if self.phase is _P.LEAVING:
            return self.goodbye()
        if self.phase not in (_P.TRAINING, _P.ADRIFT, _P.FINISHING):
            return self.stop(event.reason, 0)
        pushes = self.phase is _P.TRAINING
        self.move(_T.LEAVE)
        self.leave_reason, self.leave_ends = event.reason, now + LEAVE_S if pushes else now
        return [Note(what="leaves", why=event.reason), Finish(reason=event.reason, finished=False)]

    def goodbye(self, code: int = 0) -> list[LearnerAction]:
        """Say goodbye and stop, with this exit code."""
        goodbye = Goodbye(
            reason=self.leave_reason, trained_tokens=self.trained_tokens,
            left_tokens=self.weighed("unmerged"), dropped_tokens=max(0.0, self.weighed("dropped")),
        )  # fmt: skip
        last = [] if self.watching else [Send(key=SYNCER, message=report_of(self))]  # the last one is perhaps old
        return [*last, Send(key=SYNCER, message=goodbye), *self.stop(self.leave_reason, code)]

    def stop(self, reason: str, code: int, word: str = "") -> list[LearnerAction]:
        """Stop at once, with this exit code."""
        self.phase = _P.STOPPED
        finish = Finish(reason=reason, finished=bool(self.farewell and self.farewell.finished))
        return [finish, Stop(reason=reason, exit_code=code, word=word)]

    def _turn(self, now: float) -> list[LearnerAction]:
        if self.phase is _P.STOPPED:
            return []
        actions: list[LearnerAction] = []
        if self.phase in (_P.TRAINING, _P.RESTORING, _P.DONATING) and now >= self.heard_at + self.params.silent_after_s:
            self.move(_T.LOST)
            self.hail.reset()
            why = f"nothing heard for {now - self.heard_at:.1f} s"
            note = Note(what="the syncer is silent", why=why, level="warning")
            actions += [note, *self._say_hello(now)]
        elif self.phase in (_P.HAILING, _P.ADRIFT) and now >= self.hail.due_at:
            actions += [*self._say_hello(now), *alone(self, now)]
        if now >= self.beat_at + self.sync.beat_every_s:
            self.beat_at = now
            actions.append(Send(key=SYNCER, message=heartbeat_of(self)))
        actions += self.outflow.turn(now) + self.inflow.turn(now) + self.borrowing.turn(now)
        if self.phase is _P.FINISHING:
            actions += finishing.turn(self, now)
        elif self.phase is _P.LEAVING:
            waiting = any(duty.state is DutyState.SENT for duty in self.duties)
            if now >= self.leave_ends or (not waiting and self.outflow.is_pushed()):
                actions += self.goodbye()
        return actions

    def move(self, turn: LearnerTurn) -> None:
        """Go where TABLE says; anything else is our mistake."""
        self.phase = moved(TABLE, self.phase, turn, "learner")

    _MESSAGES: ClassVar[dict[type, Callable[..., list[LearnerAction]]]] = {
        Donate: _donate, Welcome: _welcome, Unwelcome: _unwelcome, Beat: _beat, Call: _call, Update: _update,
        HandbackRequest: _handback_request, Farewell: finishing.begin, **lending.MESSAGES,
        Ack: lambda self, message, now: self.outflow.ack(message, now),
        Refused: lambda self, message, now: self.outflow.refused(message, now),
    }  # fmt: skip
    _EVENTS: ClassVar[dict[type, Callable[[Any, Any, float], list[LearnerAction]]]] = {
        TimerDue: lambda self, event, now: [], Started: _started, StepDone: _step_done, Boundary: _boundary,
        Reborn: _reborn, LeaveRequested: _leave, **lending.EVENTS, **finishing.EVENTS,
        Encoded: lambda self, event, now: self.outflow.encoded(event, now),
        ContributionLost: lambda self, event, now: self.outflow.lost(event, now),
        **INFLOW_EVENTS,
    }  # fmt: skip
