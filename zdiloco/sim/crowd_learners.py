"""The learners of a crowd: plain ones that only say what a learner would, and real learner machines without values.

Rule: a learner knows virtual time and its own clock of steps; whatever it says goes through the crowd.
"""

from functools import partial
from typing import TYPE_CHECKING

from zdiloco.core import machine as m
from zdiloco.core import messages as w
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.params import LearnerParams
from zdiloco.units import FragmentId, MemberKey, Merged, Stamp

if TYPE_CHECKING:
    from zdiloco.sim.crowd import Crowd

TOKENS = 10
"""Tokens of a step."""
WORK_S = 0.01
"""The body of a machine learner encodes or prepares for so long."""
_PARAMS = LearnerParams()


class PlainLearner:
    """Says hello, reports, beats, and answers each call at its next step boundary."""

    __slots__ = ("_after", "_cut", "_owes", "_seq", "alive", "began_at", "crowd", "key", "step_s")

    def __init__(self, crowd: "Crowd", key: MemberKey, step_s: float) -> None:
        self.crowd, self.key, self.step_s = crowd, key, step_s
        self.alive, self.began_at = True, crowd.now
        self._seq: dict[FragmentId, int] = {}
        self._after: dict[FragmentId, int] = {}
        self._cut: dict[FragmentId, int] = {}
        self._owes: dict[FragmentId, int] = {}

    def start(self) -> None:
        """Introduce itself; then steps follow each other whatever happens."""
        name, digest = self.key.name, self.crowd.machine.layout_digest
        self.crowd.say(self.key, w.Hello(name=name, incarnation=self.key.incarnation, layout_digest=digest))
        self.crowd.at(self.step_s, self._report)
        self.crowd.at(self.crowd.sync.beat_every_s, self._beat)

    def step(self, now: float) -> int:
        """Steps made by `now`."""
        return int((now - self.began_at) / self.step_s + 1e-6)

    def _report(self) -> None:
        step = self.step(self.crowd.now)
        report = w.Report(step=step, trained_tokens=TOKENS * step, unmerged_tokens=0.0, dropped_tokens=0.0)
        self.crowd.say(self.key, report)
        self.crowd.may_leave(self, step)
        if self.alive:
            self.crowd.at(max(self.step_s, self.crowd.sync.report_every_s), self._report)

    def _beat(self) -> None:
        if self.alive:
            beat = w.Heartbeat(epoch=self.crowd.machine.epoch)
            self.crowd.say(self.key, beat)
            self.crowd.at(self.crowd.sync.beat_every_s, self._beat)

    def hear(self, message: w.Message) -> None:
        """Calls are answered; what is merged of its own it looks up; all else does not matter to it."""
        if isinstance(message, w.Update):
            mine = self.crowd.records.get((message.fragment, message.stamp), {}).get(self.key)
            if mine:
                self._after[message.fragment] = mine.seq
        if not isinstance(message, w.Call):
            return
        crowd, fragment = self.crowd, message.fragment
        self._owes[fragment] = message.version
        wait_s = self.step_s - (crowd.now - self.began_at) % self.step_s
        if crowd.rng.random() < crowd.params.declines:
            decline = w.Decline(fragment=fragment, version=message.version, reason=w.UPLINK_BUSY, eta_s=self.step_s)
            crowd.at(wait_s, partial(self.say, decline))
            wait_s += self.step_s
        crowd.at(wait_s, partial(self._contribute, fragment))

    def say(self, message: w.Message) -> None:
        """Say something, if it still lives."""
        if self.alive:
            self.crowd.say(self.key, message)

    def _contribute(self, fragment: FragmentId) -> None:
        version, step = self._owes.pop(fragment, None), self.step(self.crowd.now)
        merged = self._after.get(fragment, 0) == self._seq.get(fragment, 0)
        begins = self._cut.get(fragment, 0) if merged else 0
        if version is None or step <= begins:
            return
        self._seq[fragment] = self._seq.get(fragment, 0) + 1
        self._cut[fragment] = step
        message = w.Contribution(
            fragment=fragment, seq=self._seq[fragment], after=self._after.get(fragment, 0),
            stamp=Stamp(self.crowd.machine.epoch, version - 1), steps=step - begins, tokens=TOKENS * (step - begins),
            cut_step=step, version=version, codec="bf16", body=_body(self.crowd, fragment, self._seq[fragment]),
        )  # fmt: skip
        self.say(message)


class MachineLearner:
    """A real learner machine whose body holds nothing and answers after a moment."""

    __slots__ = ("_stepping", "_timer_at", "alive", "crowd", "key", "machine", "step_s")

    def __init__(self, crowd: "Crowd", key: MemberKey, step_s: float) -> None:
        self.crowd, self.key, self.step_s, self.alive = crowd, key, step_s, True
        shares = (1 / crowd.params.fragments,) * crowd.params.fragments
        digest = crowd.machine.layout_digest
        self.machine = LearnerMachine(key, crowd.sync, _PARAMS, shares=shares, layout_digest=digest)
        self._stepping, self._timer_at = False, float("inf")

    def start(self) -> None:
        """The process is up."""
        self.tell(m.Started())

    def hear(self, message: w.Message) -> None:
        """Something the syncer says has come."""
        self.tell(m.Received(key=m.SYNCER, message=message))

    def tell(self, event: m.LearnerEvent) -> None:
        """Hand the machine one event, and carry out what it says."""
        if not self.alive:
            return
        for action in self.machine.handle(event, self.crowd.now):
            self._do(action)
        due = self.machine.deadline()
        if due is not None and due < self._timer_at:
            self._timer_at = due
            self.crowd.at(max(due - self.crowd.now, 0.0), partial(self._timer, due))

    def _timer(self, due: float) -> None:
        if self._timer_at == due:
            self._timer_at = float("inf")
            self.tell(m.TimerDue())

    def _do(self, action: m.LearnerAction) -> None:
        if isinstance(action, m.Send):
            self.crowd.say(self.key, action.message)
        elif isinstance(action, m.Ready) and not self._stepping:
            self._stepping = True
            self.crowd.at(self.step_s, self._step)
        elif isinstance(action, m.Snapshot):
            body = _body(self.crowd, action.fragment, action.seq)
            self._later(m.Encoded(fragment=action.fragment, seq=action.seq, codec="bf16", body=body))
        elif isinstance(action, m.Prepare):
            self._later(m.Prepared(fragment=action.fragment, serial=action.serial))
            if not self._stepping:
                self._later(m.Boundary())
        elif isinstance(action, m.Receive):
            self._later(self._ready(action.update))
        elif isinstance(action, m.Reincarnate):
            self.key = MemberKey(self.key.name, self.crowd.rng.getrandbits(60) + 1)
            self._later(m.Reborn(incarnation=self.key.incarnation))
        elif isinstance(action, m.Stop):
            self.alive = False

    def _later(self, event: m.LearnerEvent) -> None:
        self.crowd.at(WORK_S, partial(self.tell, event))

    def _ready(self, update: w.Update) -> m.UpdateReady | m.UpdateLost:
        """The body of an update with what is in it of this learner; of the others it has nothing to look for."""
        known = self.crowd.records.get((update.fragment, update.stamp))
        if update.full and update.stamp == self.crowd.machine.desk.fragments[update.fragment].stamp:
            known = self.crowd.maps[update.fragment]
        elif update.full or known is None:
            known = {} if update.stamp.version == 0 else None
        if known is None:
            return m.UpdateLost(update=update)
        mine: Merged | None = known.get(self.key)
        return m.UpdateReady(update=update, records=(mine,) if mine else ())

    def _step(self) -> None:
        if not self.alive:
            return
        self.tell(m.StepDone(tokens=TOKENS, seconds=self.step_s))
        self.crowd.may_leave(self, self.machine.step)
        self.crowd.at(self.step_s, self._step)


def _body(crowd: "Crowd", fragment: FragmentId, seq: int) -> w.Body:
    nbytes = crowd.rng.choice(crowd.params.body_bytes)
    return w.Body(transfer=f"c/{fragment}/{seq}", nbytes=nbytes, chunk_bytes=1 << 20, digest=0)
