"""The parts of an explored world: each a production machine with its id body, driven by one event at a time.

Rule: a part is a value. `apply` returns a new part and what it sends; equal parts (`fingerprint`) act equally for ever.
Time is left out: every machine stands at NOW for ever, nothing is ever due by itself, and each timer of a machine is
an event of its own that may come at any moment: its field is set back so far that it is due, `TimerDue` is handled, and
all times are NOW again. So every order of timers and other events is covered, also those that no
clock could bring. Averages of times are left out with them, and so is what is only counted for people.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

from tests.sim.frozen import clone, freeze
from zdiloco.core import machine as m
from zdiloco.core.duty import DutyState
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.messages import Ack, Body, Call, Decline, Handback, Refused, Unwelcome, Update, Welcome
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.sim.bodies import LearnerBody, State
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.work import Parcel
from zdiloco.units import MemberKey, Merged

NOW, LONG_AGO, TOKENS = 1000.0, -1e6, 10
PARAMS = {
    "sync_period": 1, "num_fragments": 1, "report_every_s": 0.0, "clip": 0.0, "beat_every_s": 1.0,
}  # fmt: skip
Out = tuple[str, Any, Any, Any]
"""What a part sends: the road ('up', 'down', 'cast'), to whom, the message, and what its body will be."""


def put(name: str, parcel: Parcel) -> Body:
    """A body under this name; what is in it travels beside the message."""
    return Body(transfer=name, nbytes=parcel.nbytes, chunk_bytes=1 << 20, digest=0)


def params_of(min_quorum: int) -> SyncParams:
    return SyncParams(min_quorum=min_quorum, **PARAMS)


@dataclass
class Part(ABC):
    """What both sides share. `local`: events that the body owes its machine, in the order of their making."""

    machine: Any
    body: Any
    local: list[Any] = field(default_factory=list)

    def fingerprint(self) -> Any:
        return freeze(self, set())

    def apply(self, slow: bool, *op: Any) -> tuple["Part", list[Out]]:
        """One event. `op`: the name of a method of this part, and its arguments.

        Unless bodies are `slow`, what they do in a moment is done with it: see `quick`.
        """
        made, sent = clone(self, {}), list[Out]()
        getattr(made, op[0])(sent, *op[1:])
        while not slow and made.quick(sent):
            pass
        made.settle()
        return made, sent

    def quick(self, sent: list[Out]) -> bool:
        """Do one thing that a body does in a moment; False: there is none."""
        for index, event in enumerate(self.local):
            if isinstance(event, m.Encoded | m.Prepared | m.Screened):
                self.answer(sent, index)
                return True
        return False

    def tell(self, sent: list[Out], event: Any) -> None:
        for action in self.machine.handle(event, NOW):
            self.do(sent, action)

    @abstractmethod
    def do(self, sent: list[Out], action: Any) -> None:
        """Carry one action of the machine out."""

    @abstractmethod
    def settle(self) -> None:
        """Bring times, averages and counters back to where they all are the same."""

    def answer(self, sent: list[Out], index: int) -> None:
        """The body has done what it owed."""
        self.tell(sent, self.local.pop(index))


@dataclass
class LearnerPart(Part):
    """One learner process. `trained`: ids of its steps; `content`: what is in the body of the message that it hears."""

    coming: list[tuple[Update, int, tuple[Merged, ...]]] = field(default_factory=list)
    trained: int = 0
    content: Any = None

    @classmethod
    def start(cls, name: str, incarnation: int, min_quorum: int) -> "LearnerPart":
        key = MemberKey(name, incarnation)
        machine = LearnerMachine(key, params_of(min_quorum), LearnerParams(), shares=(1.0,), layout_digest="layout")
        return cls(machine, LearnerBody(1, put))

    @property
    def duty(self) -> Any:
        return self.machine.duties[0]

    @property
    def dropped(self) -> int:
        """Ids of its steps that were given up by a declared rule."""
        ids: int = self.body.dropped[0]
        return ids

    # ---- events

    def started(self, sent: list[Out]) -> None:
        self.tell(sent, m.Started())

    def hear(self, sent: list[Out], message: Any, content: Any) -> None:
        self.content = content
        self.tell(sent, m.Received(key=m.SYNCER, message=message))
        self.content = None

    def step(self, sent: list[Out], work: int) -> None:
        self.body.train(work)
        self.trained |= 1 << work
        self.tell(sent, m.StepDone(tokens=TOKENS, seconds=1.0))

    def boundary(self, sent: list[Out]) -> None:
        self.tell(sent, m.Boundary())

    def arrive(self, sent: list[Out], index: int) -> None:
        update, value, records = self.coming.pop(index)
        self.body.learn(update, Parcel.of(value, NBYTES, records))
        self.tell(sent, m.UpdateReady(update=update, records=records))

    def miss(self, sent: list[Out], index: int) -> None:
        self.tell(sent, m.UpdateLost(update=self.coming.pop(index)[0]))

    def give_up(self, sent: list[Out]) -> None:
        self.tell(sent, m.ContributionLost(fragment=0, seq=self.duty.way, reason="the link broke"))

    def timer(self, sent: list[Out], what: str) -> None:
        machine = self.machine
        if what == "beat":
            machine.beat_at = LONG_AGO
        elif what == "hello":
            machine.hail.due_at = LONG_AGO
        elif what == "silence":
            machine.heard_at = LONG_AGO
        elif what == "offer":
            self.duty.offered_at = LONG_AGO
        elif what == "pull":
            self.duty.pulled_at = LONG_AGO
        self.tell(sent, m.TimerDue())

    def timers(self) -> tuple[str, ...]:
        """Which timers are running, but for the heartbeat."""
        phase, duty = self.machine.phase, self.duty
        found = []
        if phase in (LearnerPhase.HAILING, LearnerPhase.ADRIFT):
            found.append("hello")
        if phase in (LearnerPhase.TRAINING, LearnerPhase.RESTORING):
            found.append("silence")
        if phase is LearnerPhase.TRAINING and duty.offer and duty.state in (DutyState.SENT, DutyState.HELD):
            found.append("offer")
        if duty.pulled_at is not None:
            found.append("pull")
        return tuple(found)

    def has_business(self) -> bool:
        """Whether a boundary would do anything that one after a step could do."""
        phase, duty = self.machine.phase, self.duty
        if phase is LearnerPhase.RESTORING or (duty.adoption is not None and duty.prepared):
            return True
        return phase is LearnerPhase.TRAINING and duty.state is DutyState.CALLED and duty.progress.steps > 0

    def is_past(self, message: Any) -> bool:
        """Whether this message would change nothing, now and for ever: epochs, stamps and seqs only grow."""
        machine, duty = self.machine, self.duty
        if isinstance(message, Call | Welcome):
            return bool(message.epoch < machine.epoch)
        if isinstance(message, Update):
            old = message.stamp.epoch < machine.epoch or message.stamp <= duty.progress.seen
            return bool(old and not message.full)
        if isinstance(message, Ack | Refused):
            seqs = (message.held, message.merged) if isinstance(message, Ack) else (message.seq,)
            return duty.way not in seqs and max(seqs) <= duty.progress.seq
        return False

    # ---- actions

    def do(self, sent: list[Out], action: Any) -> None:
        if isinstance(action, m.Send):
            message = action.message
            plain = replace(message, eta_s=0.0) if isinstance(message, Decline) else message
            sent.append(("up", self.machine.key, plain, None))
        elif isinstance(action, m.SendHandback):
            value = self.body.reference[0]
            assert self.body.adopted[0].stamp == action.stamp
            body = put(f"handback/{action.stamp}", Parcel(value, NBYTES))
            back = Handback(fragment=0, stamp=action.stamp, codec="fp32", value_bytes=NBYTES, body=body)
            sent.append(("up", self.machine.key, back, State(action.stamp, value, tuple(sorted(action.map_)))))
        elif isinstance(action, m.Receive):
            self.coming.append((action.update, *self.content))
        elif isinstance(action, m.Stop | m.Reincarnate | m.SendLayout | m.SendInitial):
            raise AssertionError(f"{self.machine.key.name}: {action}")
        else:
            self.work(action)

    def work(self, action: Any) -> None:
        if isinstance(action, m.Discard):
            self.coming = [each for each in self.coming if each[0] != action.update]
        self.local += self.body.do(action)

    # ---- what is left out

    def settle(self) -> None:
        machine, duty, uplink = self.machine, self.duty, self.machine.outflow.uplink
        machine.beat_at = machine.heard_at = NOW
        machine.hail.due_at, machine.hail.wait_s, machine.hail.said = NOW + 0.5, 0.5, False
        machine.reported_at, machine.counts = LONG_AGO, {}
        duty.offered_at, duty.pulled_at = NOW, None if duty.pulled_at is None else NOW
        assert len(uplink.under_way) <= 1, "with one fragment one contribution is under way at most"
        uplink.alone.clear()
        uplink.steps.clear()
        uplink.window, uplink.good, uplink.late, uplink.queued_at = 1, 0, 0, uplink.most + 1
        uplink.under_way = {key: (NOW, 1) for key in uplink.under_way}
        if not any(isinstance(event, m.Prepared) for event in self.local):
            duty.serial = 0

    def audit(self) -> None:
        """The counters say what the values hold; the books balance; bytes that may be needed are here."""
        progress, u = self.duty.progress, self.body.progress(0)
        tally = progress.tally
        assert progress.tokens == TOKENS * u.bit_count(), "the counters do not say what u holds"
        assert tally.trained == tally.merged + progress.tokens + tally.dropped + tally.lost, "the books do not balance"
        assert tally.dropped == TOKENS * self.dropped.bit_count(), "dropped is not what was dropped"
        assert not tally.lost, "a state called stable was forgotten"
        for seq, kept in progress.kept.items():
            assert kept.cut.void or (0, seq) in self.body.encoded, "kept without its bytes"

    def remembered(self) -> int:
        """Ids that this process could still give: unmerged, or merged and kept."""
        ids = self.body.progress(0)
        for seq, kept in self.duty.progress.kept.items():
            ids |= 0 if kept.cut.void else self.body.encoded[0, seq]
        return ids


def is_mute(message: Any) -> bool:
    """Whether a message to a learner only makes a line in its log."""
    return isinstance(message, Unwelcome) and not message.fatal and message.reason == "starting"
