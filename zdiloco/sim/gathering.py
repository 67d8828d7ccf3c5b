"""Rounds of a healthy fleet with unequal learners: the syncer's real desk decides, learners are numbers.

Rule: when a fragment is called, how long the grace window is and when a round closes are the decisions of `core/`
(`Desk` with pace, grace and rounds). A learner makes steps and never waits; at its next step boundary it answers what
is called, and what comes late is held for the next round of that fragment. No message is lost and nobody dies here.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from zdiloco.core.desk import Closing, Desk, FragmentDesk
from zdiloco.core.membership import Fleet
from zdiloco.core.messages import Body, Contribution
from zdiloco.core.params import SyncParams
from zdiloco.core.progress import Held, Intake
from zdiloco.units import ContributionId, Epoch, MemberKey, Stamp

EPOCH = Epoch(1, 1)
BODY = Body(transfer="c", nbytes=1, chunk_bytes=1, digest=0)
ANSWER_S, OUTER_STEP_S = 0.2, 0.05
"""From a cut to its arrival at the syncer, and from a close to the update at the learners."""


@dataclass(slots=True)
class Pacer:
    """One learner. `step_s`: draws how long its next step takes."""

    key: MemberKey
    step_s: Callable[[], float]
    steps: int = 0
    called: dict[int, int] = field(default_factory=dict)
    under_way: set[int] = field(default_factory=set)
    cut_at: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Per fragment the step and the moment of the newest cut."""
    merged_to_s: dict[int, float] = field(default_factory=dict)
    """Per fragment: all work up to this moment is merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Closed:
    """A round that was merged: who is in it, and how many of them answered an earlier call and came late."""

    fragment: int
    participants: int
    late: int


class Gathering:
    """The fleet in virtual time: one heap of moments, each with what happens then."""

    def __init__(self, params: SyncParams, num_fragments: int, paces: Sequence[Callable[[], float]]) -> None:
        self.fleet = Fleet(params)
        self.desk = Desk(params, self.fleet)
        self.desk.fragments = [
            FragmentDesk(index=index, numel=1, share=1 / num_fragments, intake=Intake(), stamp=Stamp(EPOCH, 0))
            for index in range(num_fragments)
        ]
        self.learners = [Pacer(MemberKey(f"l{number}", number + 1), pace) for number, pace in enumerate(paces)]
        self.closed: list[Closed] = []
        self.now, self._order = 0.0, itertools.count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_at: float | None = None
        for learner in self.learners:
            self.fleet.begin(self.fleet.welcome(learner.key, False, 0.0)[0])
            self._at(learner.step_s(), partial(self._step, learner))
        self.desk.begin_turn(0.0)

    def run(self, until_s: float) -> None:
        """Let everything happen up to this moment."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now, _, what = heapq.heappop(self._heap)
            what()
            self._call()
            self._set_timer()
        self.now = until_s

    def goodput(self, until_s: float) -> float:
        """Share of the learner-seconds up to `until_s` whose work is merged; each fragment counts alike."""
        shares = [
            min(learner.merged_to_s.get(desk.index, 0.0), until_s) / until_s
            for learner in self.learners
            for desk in self.desk
        ]
        return sum(shares) / len(shares)

    def _at(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay_s, next(self._order), what))

    def _set_timer(self) -> None:
        due = self.desk.deadline()
        if due is not None and (self._timer_at is None or due < self._timer_at):
            self._timer_at = due
            self._at(max(0.0, due - self.now), partial(self._ring, due))

    def _ring(self, due: float) -> None:
        if self._timer_at == due:
            self._timer_at = None
        for index in [index for index, at in self.desk.ends.items() if at <= self.now]:
            self._close(self.desk.judge_one(self.desk.fragments[index], self.now))

    def _step(self, learner: Pacer) -> None:
        """A step boundary: it says where it is, and answers what is called, the oldest work first."""
        learner.steps += 1
        member = self.fleet.hear(learner.key, self.now)
        assert member is not None
        member.report(learner.steps, self.now)
        for fragment in sorted(learner.called, key=lambda f: learner.cut_at.get(f, (0, 0.0))):
            message = self._cut(learner, fragment, learner.called[fragment])
            member.marks[fragment] = learner.steps
            self._at(ANSWER_S, partial(self._arrive, learner, message))
        learner.called.clear()
        self._at(learner.step_s(), partial(self._step, learner))

    def _cut(self, learner: Pacer, fragment: int, version: int) -> Contribution:
        before, _ = learner.cut_at.get(fragment, (0, 0.0))
        learner.cut_at[fragment] = (learner.steps, self.now)
        learner.under_way.add(fragment)
        after = self.desk.fragments[fragment].intake.merged_seq(learner.key)
        steps = learner.steps - before
        return Contribution(
            fragment=fragment, seq=after + 1, after=after, stamp=Stamp(EPOCH, 0), steps=steps, tokens=steps,
            cut_step=learner.steps, version=version, codec="bf16", body=BODY,
        )  # fmt: skip

    def _arrive(self, learner: Pacer, message: Contribution) -> None:
        handle = ContributionId(learner.key.name, learner.key.incarnation, message.fragment, message.seq)
        self.desk.arrived(Held(id=handle, message=message, arrived_at=self.now, norm=1.0), self.now)
        self._close(self.desk.judge_one(self.desk.fragments[message.fragment], self.now))

    def _call(self) -> None:
        for rnd in self.desk.call(self.now):
            for learner in self.learners:
                if rnd.fragment not in learner.under_way:
                    learner.called[rnd.fragment] = rnd.version
            self._close(self.desk.judge_one(self.desk.fragments[rnd.fragment], self.now))

    def _close(self, closings: Sequence[Closing]) -> None:
        for closing in closings:
            self._at(OUTER_STEP_S, partial(self._publish, closing))

    def _publish(self, closing: Closing) -> None:
        rnd = self.desk.published(closing.desk, Stamp(EPOCH, closing.desk.stamp.version + 1), self.now)
        late = sum(held.message.version < rnd.version for held in closing.taken)
        self.closed.append(Closed(fragment=rnd.fragment, participants=len(closing.taken), late=late))
        by_key = {learner.key: learner for learner in self.learners}
        for held in closing.taken:
            learner = by_key[held.id.key]
            learner.under_way.discard(rnd.fragment)
            learner.merged_to_s[rnd.fragment] = learner.cut_at[rnd.fragment][1]
