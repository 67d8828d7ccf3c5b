"""Rounds of a healthy fleet with unequal learners: the production machines in the virtual world, each at its own pace.

Rule: when a fragment is called, how long the grace window is and when a round closes are decided by the machines; no
message is lost and nobody dies here. What is counted is read from the world's records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.sim.actors import Actor
from zdiloco.sim.links import Link
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World

ANSWER_S = 0.2
"""From a cut to its arrival at the syncer, of which half is the bytes on their way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Closed:
    """A round that was merged: who is in it, and how many of them answered an earlier call and came late."""

    fragment: int
    participants: int
    late: int


class Gathering(World):
    """The fleet. `paces`: for each learner, what draws how long its next step takes."""

    def __init__(self, params: SyncParams, num_fragments: int, paces: Sequence[Callable[[], float]]) -> None:
        self.closed: list[Closed] = []
        self.paces = {f"l{number}": pace for number, pace in enumerate(paces)}
        self.boundaries: dict[str, list[float]] = {name: [] for name in self.paces}
        self.answers: dict[tuple[str, int, int], int] = {}
        self.merged: dict[tuple[str, int], int] = {}
        super().__init__(params, num_fragments, exact=False, on_record=self.note_record)
        for name, pace in self.paces.items():
            self.join(name, pace(), Link(latency_s=0.01, up_bytes_s=2 * NBYTES / ANSWER_S, down_bytes_s=100 * NBYTES))

    def next_step(self, actor: Actor) -> None:
        """The next step takes what its learner's pace draws."""
        seconds = self.paces[actor.key.name]()
        self.at(seconds, partial(self.step_ends, actor, seconds))

    def step(self, actor: Actor, seconds: float) -> None:
        """One step is done: when, is remembered."""
        self.boundaries[actor.key.name].append(self.now)
        super().step(actor, seconds)

    def note_record(self, record: trace.Record) -> None:
        """Which call each contribution answered; and what a round merged."""
        if isinstance(record, trace.Arrived):
            self.answers[record.who, record.fragment, record.seq] = record.version
        elif isinstance(record, trace.Merge):
            fragment, parts = record.fragment, record.members
            late = sum(self.answers[part.name, fragment, part.seq] < record.version for part in parts)
            self.closed.append(Closed(fragment=fragment, participants=len(parts), late=late))
            for part in parts:
                self.merged[part.name, fragment] = self.merged.get((part.name, fragment), 0) + part.steps

    def goodput(self, until_s: float) -> float:
        """Share of the learner-seconds up to `until_s` whose work is merged; each fragment counts alike."""
        shares = []
        for name, ends in self.boundaries.items():
            for fragment in range(self.num_fragments):
                steps = self.merged.get((name, fragment), 0)
                shares.append(min(ends[steps - 1] if steps else 0.0, until_s) / until_s)
        return sum(shares) / len(shares)
