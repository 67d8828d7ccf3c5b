"""A recorded run decided again: the production syncer machine, driven by the recorded learners in virtual time.

Rule: the machine is the one that runs everywhere, its settings may be others. What learners do is taken from the
recording: steps, silences, deaths, answer times; nothing is drawn by chance. What happens is told by the same scribe
that writes real journals, so recorded and replayed figures are computed alike.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from zdiloco import trace
from zdiloco.agenda import Agenda
from zdiloco.core import machine as m
from zdiloco.core.messages import (
    Beat,
    Body,
    Call,
    Contribution,
    Decline,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Report,
    Unwelcome,
    Update,
    Welcome,
)
from zdiloco.core.params import SyncParams
from zdiloco.core.start import KnownState
from zdiloco.core.syncer import SyncerMachine
from zdiloco.lives import Part
from zdiloco.scribe import Scribe
from zdiloco.units import Epoch, MemberKey, Stamp
from zdiloco.whatif.answers import Answer, Answers
from zdiloco.whatif.replica import SAME_S, Replica

RUN_ID = "whatif-run"
AS_RECORDED = "as recorded"
ADOPT_FIRST_S, CUT_NEXT_S = 0.8 * SAME_S, 0.4 * SAME_S
"""At one boundary a learner adopts, then cuts, then reports."""


class Replay:
    """One part of a trace under some settings; `run` plays it to `until` and returns the new trace."""

    def __init__(self, part: Part, params: SyncParams, answers: Answers, until: float) -> None:
        self._params = replace(params, recover_wait_s=0.0)
        self._answers, self._until = answers, until
        self._agenda = Agenda(part.began)
        self._timer_at: float | None = None
        self._merged: dict[tuple[int, int], dict[MemberKey, int]] = {}
        self._over = False
        self._records: list[trace.Record] = [trace.Start(t=part.began)]
        self._scribe = Scribe()
        count = len(part.shares)
        known = KnownState(
            run_id=RUN_ID,
            epoch=Epoch(0, 0),
            layout_digest="",
            numels=part.numels or (1,) * count,
            shares=part.shares,
            stamps=(Stamp(Epoch(0, 0), 0),) * count,
            maps=((),) * count,
        )
        self._sized = bool(part.numels)
        self._machine = SyncerMachine(self._params, run_id=RUN_ID, ident=1, now=part.began, known=known)
        self._replicas: dict[MemberKey, Replica] = {}
        for number, life in enumerate(part.lives, 1):
            key = MemberKey(life.who, number)
            self._replicas[key] = Replica(key, life, count)

    def run(self) -> list[trace.Record]:
        """Play it, and tell it."""
        self._feed(m.TimerDue())
        for replica in self._replicas.values():
            self._at(replica.life.began, partial(self._join, replica))
        while self._agenda.next_at <= self._until and not self._over:
            self._agenda.turn()
        return [*(record for record in self._records if record.t <= self._until), trace.End(t=self._until)]

    # ---- time

    @property
    def _now(self) -> float:
        return self._agenda.now

    def _at(self, moment: float, what: Callable[[], None]) -> None:
        if moment <= self._until:
            self._agenda.at_moment(moment, what)

    def _feed(self, event: m.SyncerEvent) -> None:
        actions = self._machine.handle(event, self._now)
        self._records += self._scribe.look(self._now, event, actions, self._machine)
        for action in actions:
            self._do(action)
        due = self._machine.deadline()
        if due is not None and due != self._timer_at:
            self._timer_at = due
            self._at(due, lambda: self._ring(due))

    def _ring(self, due: float) -> None:
        if due == self._timer_at:
            self._timer_at = None
            self._feed(m.TimerDue())

    def _later(self, delay_s: float, event: m.SyncerEvent) -> None:
        self._at(self._now + delay_s, lambda: self._feed(event))

    # ---- what the machine wants

    def _do(self, action: m.SyncerAction) -> None:
        if isinstance(action, m.Broadcast):
            self._broadcast(action.message)
        elif isinstance(action, m.Send):
            self._hear(self._replicas.get(action.key), action.message)
        elif isinstance(action, m.Fetch):
            self._fetch(action)
        elif isinstance(action, m.Screen):
            self._later(0.0, m.Screened(id=action.id, reason="", norm=0.0))
        elif isinstance(action, m.Merge):
            self._merge(action)
        elif isinstance(action, m.Publish):
            self._publish(action.update)
        elif isinstance(action, m.Save):
            self._later(0.0, m.Saved(stamps=tuple(desk.stamp for desk in self._machine.desk)))
        elif isinstance(action, m.Stop):
            self._over = True

    def _broadcast(self, message: Message) -> None:
        if isinstance(message, Call):
            for replica in self._replicas.values():
                self._call(replica, message.fragment, message.version, self._now)
        elif isinstance(message, Beat):
            for fragment, version in message.open_rounds:
                rnd = self._machine.desk.fragments[fragment].round
                for replica in self._replicas.values() if rnd else ():
                    self._call(replica, fragment, version, rnd.called_at if rnd else self._now)

    def _hear(self, replica: Replica | None, message: Message) -> None:
        if replica is None or not replica.lives(self._now):
            return
        if isinstance(message, Welcome):
            replica.welcome(message.versions)
        elif isinstance(message, Refused):
            replica.settle(message.fragment, message.seq)
        elif isinstance(message, Unwelcome) and message.reason == "unknown":
            self._at(self._now, lambda: self._hello(replica))

    def _fetch(self, action: m.Fetch) -> None:
        message, replica = action.message, self._replicas[action.key]
        if isinstance(message, Contribution):
            arrives_at = replica.tasks[message.fragment].arrives_at
            self._at(max(arrives_at, self._now), lambda: self._deliver(replica, message))

    def _deliver(self, replica: Replica, message: Contribution) -> None:
        if replica.lives(self._now):
            self._feed(m.Fetched(key=replica.key, message=message))

    def _merge(self, action: m.Merge) -> None:
        fragment, version = action.fragment, action.stamp.version
        self._merged[fragment, version] = {entry.key: entry.seq for entry in action.merged}
        body = Body(transfer=f"u/{fragment}/{version}", nbytes=0, chunk_bytes=1, digest=0)
        update = Update(fragment=fragment, stamp=action.stamp, full=False, codec="fp32", value_bytes=0, body=body)
        self._later(self._answers.sync_s(fragment, self._now), m.MergeDone(update=update))

    def _publish(self, update: Update) -> None:
        merged = self._merged.pop((update.fragment, update.stamp.version))
        for replica in self._replicas.values():
            if replica.trains(self._now):
                at = replica.pace.next_boundary(self._now + self._answers.adoption_s(replica.life.who))
                self._at(at - ADOPT_FIRST_S, self._adopting(replica, update, merged.get(replica.key, 0)))

    def _adopting(self, replica: Replica, update: Update, merged: int) -> Callable[[], None]:
        return lambda: replica.adopt(update.fragment, update.stamp.version, merged)

    # ---- what learners do

    def _say(self, replica: Replica, message: Message) -> None:
        self._feed(m.Received(key=replica.key, message=message))

    def _join(self, replica: Replica) -> None:
        self._hello(replica)
        self._beat(replica)
        if replica.pace.times:
            self._at(replica.pace.times[0], lambda: self._report(replica))
        if replica.life.how == "finished":
            self._at(replica.life.ended, lambda: self._leave(replica))

    def _hello(self, replica: Replica) -> None:
        name, incarnation = replica.key
        self._say(replica, Hello(name=name, incarnation=incarnation, run_id=RUN_ID))

    def _beat(self, replica: Replica) -> None:
        heard_at = replica.heard(self._now)
        if not replica.lives(heard_at):
            return
        if heard_at == self._now:
            self._say(replica, Heartbeat(epoch=self._machine.epoch))
        following = self._now + self._params.beat_every_s if heard_at == self._now else heard_at
        self._at(following, lambda: self._beat(replica))

    def _report(self, replica: Replica) -> None:
        """At a step boundary: report, and again at the first boundary after `report_every_s`."""
        heard_at = replica.heard(self._now)
        if not replica.lives(heard_at):
            return
        if heard_at > self._now:
            self._at(replica.pace.boundary_from(heard_at), lambda: self._report(replica))
            return
        every_s = self._params.report_every_s
        if replica.contributed and self._now < replica.reported_at + every_s - SAME_S:  # its first cut came in between
            self._at(replica.pace.boundary_from(replica.reported_at + every_s), lambda: self._report(replica))
            return
        replica.reported_at = self._now
        step = replica.pace.steps_at(self._now)
        tokens = round(replica.pace.tokens_at(step))
        self._say(replica, Report(step=step, trained_tokens=tokens, unmerged_tokens=0.0, dropped_tokens=0.0))
        soonest = self._now + (every_s if replica.contributed else 0.0)
        at = max(replica.pace.boundary_from(soonest), replica.pace.next_boundary(self._now))
        self._at(at, lambda: self._report(replica))

    def _leave(self, replica: Replica) -> None:
        step = replica.pace.steps_at(self._now)
        tokens = round(replica.pace.tokens_at(step))
        self._say(
            replica,
            Goodbye(reason=AS_RECORDED, trained_tokens=tokens, left_tokens=0.0, dropped_tokens=0.0),
        )

    def _call(self, replica: Replica, fragment: int, version: int, called_at: float) -> None:
        """A call reaches a learner, perhaps again: it answers as it is recorded to do."""
        task = replica.tasks[fragment]
        if task.way or task.called == version or not replica.trains(self._now):
            return
        if replica.heard(self._now) != self._now:
            return  # it hears of it by a later beat
        task.called = version
        answer = self._answers.of(replica.life.who, fragment, called_at)
        if answer.declined_s is not None:
            self._at(called_at + answer.declined_s, lambda: self._decline(replica, fragment, version, answer.reason))
        if answer.answer_s is not None:
            task.arrives_at = max(self._now, called_at + answer.answer_s)
            self._plan(replica, fragment, version, called_at, answer)

    def _plan(self, replica: Replica, fragment: int, version: int, called_at: float, answer: Answer) -> None:
        """It cuts as recorded, before its offer; where no offer is told at its next boundary, or, declined, at last."""
        pace, arrives_at = replica.pace, replica.tasks[fragment].arrives_at
        if answer.offer_s is not None:
            offer_at = max(self._now, called_at + answer.offer_s)
            step = replica.cut_step(offer_at, answer.cut_at)
        else:
            boundary = pace.next_boundary(self._now)
            offer_at = arrives_at if answer.declined_s is not None else min(boundary, arrives_at)
            step = pace.steps_at(offer_at)
        cut_at = min(max(self._now, pace.time_of(step)), offer_at)
        self._at(cut_at - CUT_NEXT_S, lambda: self._cut(replica, fragment, version, (step, offer_at)))

    def _decline(self, replica: Replica, fragment: int, version: int, reason: str) -> None:
        if replica.lives(self._now) and not replica.tasks[fragment].way:
            self._say(replica, Decline(fragment=fragment, version=version, reason=reason, eta_s=0.0))

    def _cut(self, replica: Replica, fragment: int, version: int, plan: tuple[int, float]) -> None:
        task, (step, offer_at) = replica.tasks[fragment], plan
        if task.way or task.called != version or not replica.lives(self._now):
            return
        nbytes = self._answers.nbytes(fragment) if self._sized else 0
        contribution = replica.cut(fragment, version, step, self._machine.epoch, nbytes)
        if contribution is None:
            self._decline(replica, fragment, version, "no step since the last contribution")
            at = replica.pace.next_boundary(self._now)  # it is still called
            later = (replica.pace.steps_at(at), max(at, offer_at))
            self._at(at, lambda: self._cut(replica, fragment, version, later))
        else:
            self._at(offer_at, lambda: self._say(replica, contribution))
