"""The real machines live through the failures of the chips model: the one place that knows which world plays them.

Rule: a learner makes its steps exactly when its trace says so, each worth the chips that are in use then, and none in a
downtime; everything else (beats, calls, rounds, adoption) is left to the machines. `play` is all that tests know.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from zdiloco.core import machine as m
from zdiloco.core.params import SyncParams
from zdiloco.sim.actors import Actor
from zdiloco.sim.chips import Scenario
from zdiloco.sim.links import Link
from zdiloco.sim.spans import Span, Trace
from zdiloco.sim.world import World

NUM_FRAGMENTS = 3


@dataclass(frozen=True, kw_only=True)
class Played:
    """What the machines made of it. `merged`: share of the chip-seconds provided whose work is in the merged values.

    `unmerged`: the same of what the learners still hold at the end; `participants`: contributions merged in a round.
    """

    merged: float
    unmerged: float
    participants: float
    rounds: int


def play(scenario: Scenario, trace: Trace, params: SyncParams) -> Played:
    """Run the machines through the trace, to its end."""
    world = TracedWorld(scenario, trace, params)
    actors = [
        world.join(str(number), scenario.step_s, Link(latency_s=0.02, up_bytes_s=4e5, down_bytes_s=4e5))
        for number in range(scenario.learners)
    ]
    world.run(scenario.seconds)
    assert world.site is not None
    machine = world.site.machine
    provided = scenario.chips * scenario.seconds / scenario.step_s  # a token is one chip at work for one step
    return Played(
        merged=machine.merged_tokens / provided,
        unmerged=sum(actor.machine.weighed("unmerged") for actor in actors) / provided,
        participants=machine.contributions / machine.rounds,
        rounds=machine.rounds,
    )


def steps_of(spans: Sequence[Span], step_s: float) -> Iterator[tuple[float, int]]:
    """When each step of a learner ends, and on how many chips it was made."""
    for span in spans:
        for number in range(1, int(span.useful_s / step_s + 1e-6) + 1):
            yield span.start_s + number * step_s, round(span.chips)


class TracedWorld(World):
    """A world whose learners' loops follow a trace."""

    def __init__(self, scenario: Scenario, trace: Trace, params: SyncParams) -> None:
        super().__init__(params, NUM_FRAGMENTS, exact=False)
        self.todo = {str(number): steps_of(spans, scenario.step_s) for number, spans in enumerate(trace)}
        self.chips: dict[str, int] = {}

    def next_step(self, actor: Actor) -> None:
        """The next step of the trace is awaited; after the last one the loop stands still."""
        name = actor.key.name
        for at, chips in self.todo[name]:
            if at > self.now:
                self.chips[name] = chips
                self.at(at - self.now, partial(self.step_ends, actor, actor.step_s))
                return

    def step(self, actor: Actor, seconds: float) -> None:
        """The step that ends now is done, on the chips that were in use."""
        self.tell(actor, m.StepDone(tokens=self.chips[actor.key.name], seconds=seconds))
