"""The real machines beside the models of chips and rounds: the one place that knows which world plays them.

Rule: a learner makes its steps exactly when its trace says so, each worth the chips that are in use then, and none in a
downtime; everything else (beats, calls, rounds, adoption) is left to the machines. Tests know the two `play` functions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.core.fleet import Actor, Link, World
from zdiloco.core import machine as m
from zdiloco.core.params import SyncParams
from zdiloco.sim.chips import Scenario
from zdiloco.sim.spans import Span, Trace

NUM_FRAGMENTS = 3


@dataclass(frozen=True, kw_only=True)
class Played:
    """What the machines made of it. `merged`: share of the chip-seconds provided whose work is in the merged values.

    `unmerged`: the same of what the learners still hold at the end; `participants`: contributions merged in a round;
    `late`: share of them that came after the round which they answered.
    """

    merged: float
    unmerged: float
    participants: float
    late: float
    rounds: int


def play(scenario: Scenario, trace: Trace, params: SyncParams) -> Played:
    """Run the machines through the trace, to its end."""
    world = TracedWorld(scenario, trace, params)
    actors = [
        world.join(str(number), scenario.step_s, Link(latency_s=0.02, up_s=0.05, down_s=0.05))
        for number in range(scenario.learners)
    ]
    world.run(scenario.seconds)
    provided = scenario.chips * scenario.seconds / scenario.step_s  # a token is one chip at work for one step
    return _played(world, provided, actors)


def play_unequal(params: SyncParams, steps_s: Sequence[float], answer_s: float, seconds: float) -> Played:
    """Run learners of these steps through the machines, without failures; an answer takes about `answer_s` to come."""
    world = World(params, NUM_FRAGMENTS)
    for number, step_s in enumerate(steps_s):
        world.join(str(number), step_s, Link(latency_s=0.01, up_s=answer_s / 4, down_s=0.01))
    world.run(seconds)
    return _played(world, 1.0, ())


def _played(world: World, provided: float, actors: Sequence[Actor]) -> Played:
    assert world.site is not None
    machine = world.site.machine
    return Played(
        merged=machine.merged_tokens / provided,
        unmerged=sum(actor.machine.weighed("unmerged") for actor in actors) / provided,
        participants=machine.contributions / machine.rounds,
        late=machine.intakes.late / machine.contributions,
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
        super().__init__(params, NUM_FRAGMENTS)
        self.todo = {str(number): steps_of(spans, scenario.step_s) for number, spans in enumerate(trace)}

    def step(self, actor: Actor, chips: int = 0) -> None:
        """The step that ends now is done (none, when the loop begins); then the next one of the trace is awaited."""
        if chips:
            actor.body.train(self.next_work)
            self.next_work += 1
            self.tell(actor, m.StepDone(tokens=chips, seconds=actor.step_s))
        following: tuple[float, int] | Any = next((s for s in self.todo[actor.key.name] if s[0] > self.now), None)
        if following is not None:
            at, then = following
            self.at(at - self.now, lambda: self.step(actor, then))
