"""A crowd of timed learners around one real syncer machine, to see what an event costs when there are thousands.

Rule: the syncer machine is the one that runs in production and is asked event by event in virtual time; its body
answers as a real one would and holds no values. Chance comes in as a seed: same seed, same events. `listen` hears every
event, so that `sim/costs.py` can play them again and measure.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from zdiloco.agenda import Agenda
from zdiloco.core import machine as m
from zdiloco.core import messages as w
from zdiloco.core.params import SyncParams
from zdiloco.core.progress import add_record
from zdiloco.core.syncer import SyncerMachine
from zdiloco.sim.crowd_learners import MachineLearner, PlainLearner
from zdiloco.units import FragmentId, MemberKey, Merged, Stamp

NUMEL = 500
"""Values of a fragment."""
RUN_ID, DIGEST = "crowd", "layout"
LATENCY_S = 0.005
"""From a learner to the syncer, and back."""
KEPT_RECORDS = 4
"""Versions of a fragment whose records are at hand for learners that are behind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CrowdParams:
    """How many learners there are, and how they behave. Shares are from 0 to 1, times virtual seconds."""

    learners: int
    machines: bool = False
    """Whether they are real learner machines; else they only say what such a one would."""
    fragments: int = 6
    step_s: float = 1.0
    spread: float = 0.2
    """Step times lie within this share of `step_s`, above and below."""
    upload_s: float = 0.3
    body_bytes: tuple[int, ...] = (1000,)
    """Sizes of encoded contributions, drawn for each."""
    declines: float = 0.02
    """Share of calls that a plain learner declines first and answers a step later."""
    leaves: float = 0.002
    """Share of steps after which a learner goes, half of them in order; later a new process of its name comes."""
    away_s: float = 8.0
    offends: float = 0.0
    """Share of contributions that are not finite, all zero, large or absurd."""
    seed: int = 0


class Crowd(Agenda):
    """The learners, virtual time, and one syncer machine with its body."""

    def __init__(
        self, params: CrowdParams, sync: SyncParams, listen: Callable[[float, m.SyncerEvent], None] | None = None
    ) -> None:
        super().__init__()
        self.most_at_once += 10 * params.learners
        self.params, self.sync, self.rng, self.listen = params, sync, random.Random(params.seed), listen
        self.machine = new_machine(sync)
        self.learners: dict[str, PlainLearner | MachineLearner] = {}
        self.maps: list[dict[MemberKey, Merged]] = [{} for _ in range(params.fragments)]
        self.records: dict[tuple[FragmentId, Stamp], dict[MemberKey, Merged]] = {}
        self.rounds = self.parts = 0
        self.timer_at = float("inf")
        self._begin()

    def _begin(self) -> None:
        """A donor gives the layout and the values and goes; then everybody joins at any moment of one step time."""
        donor, fragments = MemberKey("donor", 1), self.params.fragments
        hello = w.Hello(name=donor.name, incarnation=donor.incarnation, layout_digest=DIGEST)
        self.tell(m.Received(key=donor, message=hello))
        self.tell(m.Received(key=donor, message=w.LayoutOffer(digest=DIGEST, body=body_of("layout", NUMEL))))
        shares = (1 / fragments,) * fragments
        self.tell(m.LayoutTaken(key=donor, digest=DIGEST, numels=(NUMEL,) * fragments, shares=shares))
        for fragment in range(fragments):
            self.tell(m.Received(key=donor, message=w.InitialOffer(fragment=fragment, body=body_of("i", NUMEL))))
            self.tell(m.InitialTaken(key=donor, fragment=fragment))
        self.tell(m.Received(key=donor, message=goodbye(0)))
        self.run(1.0)
        for number in range(self.params.learners):
            self.at(self.rng.random() * self.params.step_s, partial(self.join, f"m{number:05d}"))

    def tell(self, event: m.SyncerEvent) -> None:
        """Hand the machine one event, and carry out what it says."""
        if self.listen:
            self.listen(self.now, event)
        for action in self.machine.handle(event, self.now):
            self._do(action)
        due = self.machine.deadline()
        if due is not None and due < self.timer_at:
            self.timer_at = due
            self.at(max(due - self.now, 0.0), partial(self._timer, due))

    def _timer(self, due: float) -> None:
        if self.timer_at == due:
            self.timer_at = float("inf")
            self.tell(m.TimerDue())

    # ---- the syncer's body

    def _do(self, action: m.SyncerAction) -> None:
        if isinstance(action, m.Send):
            self.at(LATENCY_S, partial(self._direct, action.key, action.message))
        elif isinstance(action, m.Broadcast):
            self.at(LATENCY_S, partial(self._everybody, action.message))
        elif isinstance(action, m.Publish):
            self.at(LATENCY_S, partial(self._everybody, action.update))
        elif isinstance(action, m.Serve):
            stamp = self.machine.desk.fragments[action.fragment].stamp
            self.at(LATENCY_S, partial(self._direct, action.key, update_of(action.fragment, stamp, full=True)))
        elif isinstance(action, m.Fetch):
            self.at(self.params.upload_s, partial(self._fetched, action))
        elif isinstance(action, m.Screen):
            self.at(0.001, partial(self.tell, self._look(action)))
        elif isinstance(action, m.Merge):
            self.at(0.05, partial(self._merged, action))
        elif isinstance(action, m.Save):
            stamps = tuple(desk.stamp for desk in self.machine.desk)
            self.at(0.01, partial(self.tell, m.Saved(stamps=stamps)))
        elif isinstance(action, m.Stop):
            raise RuntimeError(f"the syncer stops: {action.reason}")

    def _direct(self, key: MemberKey, message: w.Message) -> None:
        there = self.learners.get(key.name)
        if there and there.alive and there.key == key:
            there.hear(message)

    def _everybody(self, message: w.Message) -> None:
        for there in list(self.learners.values()):
            if there.alive:
                there.hear(message)

    def _fetched(self, action: m.Fetch) -> None:
        there = self.learners.get(action.key.name)
        if there and there.alive and there.key == action.key:
            self.tell(m.Fetched(key=action.key, message=action.message))

    def _look(self, action: m.Screen) -> m.Screened:
        norm, reason = 1.0 + self.rng.random(), ""
        if self.rng.random() < self.params.offends:
            norm, reason = self.rng.choice([(0.0, "non_finite"), (0.0, ""), (30.0, ""), (1e9, "")])
        return m.Screened(id=action.id, reason=reason, norm=norm, values=100.0)

    def _merged(self, merge: m.Merge) -> None:
        self.rounds, self.parts = self.rounds + 1, self.parts + len(merge.parts)
        self.maps[merge.fragment] = add_record(self.maps[merge.fragment], merge.merged)
        self.records[merge.fragment, merge.stamp] = {entry.key: entry for entry in merge.merged}
        self.records.pop((merge.fragment, merge.stamp._replace(version=merge.stamp.version - KEPT_RECORDS)), None)
        self.tell(m.MergeDone(update=update_of(merge.fragment, merge.stamp, full=False)))

    # ---- learners

    def say(self, key: MemberKey, message: w.Message) -> None:
        """A learner's message is on its way."""
        self.at(LATENCY_S, partial(self.tell, m.Received(key=key, message=message)))

    def join(self, name: str) -> None:
        """A new process of this name comes."""
        key = MemberKey(name, self.rng.getrandbits(60) + 1)
        step_s = self.params.step_s * (1 + self.params.spread * (2 * self.rng.random() - 1))
        made = MachineLearner(self, key, step_s) if self.params.machines else PlainLearner(self, key, step_s)
        self.learners[name] = made
        made.start()

    def may_leave(self, learner: PlainLearner | MachineLearner, step: int) -> None:
        """After a step a learner may go, in order or in silence, and come back as another process."""
        if self.rng.random() >= self.params.leaves:
            return
        if self.rng.random() < 0.5:
            self.say(learner.key, goodbye(step))
        learner.alive = False
        self.at(self.params.away_s, partial(self.join, learner.key.name))


def new_machine(sync: SyncParams) -> SyncerMachine:
    """A syncer machine at the beginning of a run, the same every time."""
    return SyncerMachine(sync, run_id=RUN_ID, ident=1, now=0.0)


def body_of(name: str, nbytes: int) -> w.Body:
    """A body of this size."""
    return w.Body(transfer=name, nbytes=nbytes, chunk_bytes=1 << 20, digest=0)


def update_of(fragment: FragmentId, stamp: Stamp, full: bool) -> w.Update:
    """The update that publishes a state."""
    body = body_of(f"u/{fragment}/{stamp.version}", NUMEL)
    return w.Update(fragment=fragment, stamp=stamp, full=full, codec="fp32", value_bytes=NUMEL, body=body)


def goodbye(step: int) -> w.Goodbye:
    """The leave of a learner that loses nothing."""
    return w.Goodbye(reason="over", trained_tokens=10 * step, left_tokens=0.0, dropped_tokens=0.0)
