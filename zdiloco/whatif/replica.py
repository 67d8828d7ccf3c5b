"""One recorded learner process, as it answers a syncer that decides otherwise.

Rule: it lives, steps and is silent as recorded; it answers a call after the time that is recorded of it; what it cuts
follows from its steps and from what was merged of it. One contribution of a fragment is under way at a time, as in
`core.duty`: until that is merged and adopted, or refused, nothing else of it is cut.
"""

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass, field
from statistics import median

from zdiloco.core.messages import Body, Contribution
from zdiloco.lives import Life
from zdiloco.units import Epoch, MemberKey, Stamp

SAME_S = 1e-6
"""Moments so close together are one."""
MOST_BEHIND = 8.0
"""Further from the pace that is told a cut is not believed to be, in steps."""


class Pace:
    """The steps of a process over time: even between two that are told, and after the last for as long as it usually
    took until the next was told.
    """

    def __init__(self, life: Life) -> None:
        self.times: list[float] = []
        self.steps: list[int] = []
        self._tokens: list[float] = []
        for mark in life.marks:
            if not self.steps or mark.step > self.steps[-1]:
                self.times.append(mark.t)
                self.steps.append(mark.step)
                self._tokens.append(float(mark.step if mark.trained is None else mark.trained))
        self._go_on(life.ended)

    def _go_on(self, ended: float) -> None:
        if len(self.times) < 2:
            return
        usual_s = median(b - a for a, b in itertools.pairwise(self.times))
        pace_s = (self.times[-1] - self.times[-2]) / (self.steps[-1] - self.steps[-2])
        more = math.floor(min(usual_s, ended - self.times[-1]) / pace_s + SAME_S)
        if more > 0:
            tokens = (self._tokens[-1] - self._tokens[-2]) / (self.steps[-1] - self.steps[-2])
            self.times.append(self.times[-1] + more * pace_s)
            self.steps.append(self.steps[-1] + more)
            self._tokens.append(self._tokens[-1] + more * tokens)

    def at(self, now: float) -> float:
        """Steps made by `now`, with the part of the one that is being made; 0 before the first that is told."""
        index = bisect_right(self.times, now) - 1
        if index < 0:
            return 0.0
        if index + 1 == len(self.times):
            return float(self.steps[-1])
        share = (now - self.times[index]) / (self.times[index + 1] - self.times[index])
        return self.steps[index] + share * (self.steps[index + 1] - self.steps[index])

    def steps_at(self, now: float) -> int:
        """Whole steps made by `now`."""
        return math.floor(self.at(now + SAME_S))

    def time_of(self, step: int) -> float:
        """When it had made so many steps; infinity: never, as far as it is told."""
        if not self.steps or step > self.steps[-1]:
            return math.inf
        index = bisect_right(self.steps, step) - 1
        if index < 0:
            return self.times[0]
        if self.steps[index] == step:
            return self.times[index]
        share = (step - self.steps[index]) / (self.steps[index + 1] - self.steps[index])
        return self.times[index] + share * (self.times[index + 1] - self.times[index])

    def next_boundary(self, now: float) -> float:
        """The first end of a step after `now`; infinity: there is none."""
        return self.time_of(self.steps_at(now) + 1)

    def boundary_from(self, moment: float) -> float:
        """The first end of a step at `moment` or after it; infinity: there is none."""
        at = self.time_of(max(self.steps_at(moment), 1)) if self.steps else math.inf
        return at if at >= moment - SAME_S else self.next_boundary(moment)

    def tokens_at(self, step: int) -> float:
        """Tokens trained in so many steps."""
        if not self.steps:
            return 0.0
        index = max(0, bisect_right(self.steps, step) - 1)
        if index + 1 < len(self.steps) and step > self.steps[index]:
            share = (step - self.steps[index]) / (self.steps[index + 1] - self.steps[index])
            return self._tokens[index] + share * (self._tokens[index + 1] - self._tokens[index])
        return self._tokens[index] * (step / self.steps[index] if self.steps[index] else 1.0)


@dataclass(slots=True)
class Task:
    """One fragment of it. `way`: seq under way or held (0: none), `arrives_at`: when it is at the syncer;
    `base`: the step up to which its work is merged; `cuts`: the step of each contribution that is not settled.
    """

    version: int = 0
    seq: int = 0
    after: int = 0
    way: int = 0
    arrives_at: float = 0.0
    called: int = 0
    base: int = 0
    cuts: dict[int, int] = field(default_factory=dict)


class Replica:
    """One process: what it knows, and what it would send. `key`: of no other process of the recording."""

    def __init__(self, key: MemberKey, life: Life, num_fragments: int) -> None:
        self.key, self.life = key, life
        self.pace = Pace(life)
        self.silent = [span for span in life.silent if span[1] > span[0]]
        first = self.pace.steps[0] if self.pace.steps else 1
        self.tasks = [Task(base=max(0, first - 1)) for _ in range(num_fragments)]
        self.contributed = False
        self.reported_at = -math.inf

    def lives(self, now: float) -> bool:
        """Whether it is there."""
        return self.life.began <= now < self.life.ended

    def heard(self, now: float) -> float:
        """The first moment from `now` on at which it is heard: `now`, or the end of the silence that it falls into."""
        return next((b for a, b in self.silent if a <= now < b), now)

    def trains(self, now: float) -> bool:
        """Whether it has made its first step, and lives."""
        return bool(self.pace.times) and self.pace.times[0] <= now + SAME_S and self.lives(now)

    def welcome(self, versions: tuple[int, ...]) -> None:
        """It loads the published values."""
        for task, version in zip(self.tasks, versions, strict=True):
            task.version = version

    def cut_step(self, offer_at: float, recorded: tuple[float, int] | None) -> int:
        """The step at which it cuts what is offered at `offer_at`.

        Between two moments that are told, steps come a little sooner or later than at an even pace. So what counts is
        how far behind that pace the recorded cut was; where none is told, it is the last boundary.
        """
        if recorded is None or not self.pace.times or not self.pace.times[0] <= recorded[0] <= self.life.ended:
            return self.pace.steps_at(offer_at)
        behind = min(max(self.pace.at(recorded[0]) - recorded[1], -MOST_BEHIND), MOST_BEHIND)
        return round(self.pace.at(offer_at) - behind)

    def cut(self, fragment: int, version: int, step: int, epoch: Epoch, nbytes: int) -> Contribution | None:
        """Cut what is unmerged of a fragment in answer to a call; None: there was no step since then."""
        task = self.tasks[fragment]
        if step <= task.base:
            return None
        task.seq += 1
        task.way = task.seq
        task.cuts[task.seq] = step
        self.contributed = True
        tokens = self.pace.tokens_at(step) - self.pace.tokens_at(task.base)
        body = Body(transfer=f"{fragment}/{task.seq}", nbytes=nbytes, chunk_bytes=2**20, digest=0)
        return Contribution(
            fragment=fragment, seq=task.seq, after=task.after, stamp=Stamp(epoch, task.version),
            steps=step - task.base, tokens=max(1, round(tokens)), cut_step=step, version=version, codec="fp32",
            body=body,
        )  # fmt: skip

    def adopt(self, fragment: int, version: int, merged: int) -> None:
        """It takes a published version into its values. `merged`: its seq in that version; 0: none."""
        task = self.tasks[fragment]
        task.version = max(task.version, version)
        if merged > task.after:
            task.after = merged
            task.base = task.cuts.get(merged, task.base)
            task.cuts = {seq: step for seq, step in task.cuts.items() if seq > merged}
            if task.way <= merged:
                task.way = 0

    def settle(self, fragment: int, seq: int) -> None:
        """This contribution will not be merged: its work is in the next one."""
        task = self.tasks[fragment]
        if task.way == seq:
            task.way = task.called = 0
