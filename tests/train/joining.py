"""What a newcomer's inner state is worth: a fleet that loses a learner and gets it back, in one process, step by step.

Rule: everybody's steps take equally long, a round merges at once (plain mean, outer rate 1), fragments are due in turn.
All variants of a seed part at the same step, from the same values, data and moments; only what the newcomer remembers
and its local warm-up differ.
"""

import copy
import statistics
from dataclasses import dataclass, replace

import torch

from zdiloco.tensor.binding import Binding
from zdiloco.tensor.device import road_for
from zdiloco.tensor.inner import InnerState
from zdiloco.tensor.layout import layout_of
from zdiloco.train.params import TaskParams
from zdiloco.train.tasks import Task

LEARNERS, FRAGMENTS, PERIOD = 2, 6, 24
SAVED_AT, RETURNS_AT, STEPS, ENDS_AT = 130, 160, 100, 320
"""The newcomer, half of the fleet, saves its state, dies 10 steps later, and is back; then so many steps are looked at,
of a run of so many."""
FIRST = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """What the newcomer starts with: 'cold', 'own', 'peer' (bf16) or 'peer fp32'; and its local warm-up."""

    state: str
    warmup_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Mean training loss of the newcomer's first steps and of all, and validation loss of the run's values, mean over
    the ends of every quarter and at the last; nats/byte."""

    first: float
    all: float
    run: float
    run_end: float


class Rejoining:
    """One seed's fleet, at the moment when the newcomer is back."""

    def __init__(self, seed: int, beta2: float) -> None:
        params = TaskParams(seed=seed, num_shards=LEARNERS, beta2=beta2, validation_batches=4)
        self.tasks = [Task(params, shard=shard) for shard in range(LEARNERS)]
        self.layout = layout_of(self.tasks[0].model, num_fragments=FRAGMENTS)
        self.theta = [self._binding(self.tasks[0]).gather(index) for index in range(FRAGMENTS)]
        self.own: dict[str, object] = {}
        for step in range(RETURNS_AT):
            there = self.tasks if step < SAVED_AT + 10 else self.tasks[:-1]
            self._turn(there, step, {})
            if step + 1 == SAVED_AT:
                self.own = copy.deepcopy(self.tasks[-1].optimizer.state_dict())

    def play(self, variant: Variant) -> Result:
        """The next steps with a newcomer of this kind; the fleet itself stays as it is."""
        other = copy.copy(self)
        other.tasks, other.theta = copy.deepcopy(self.tasks), [each.clone() for each in self.theta]
        return other._rejoin(variant)

    def _rejoin(self, variant: Variant) -> Result:
        task = self.tasks[-1]
        task.schedule = replace(task.schedule, rejoin_warmup_steps=variant.warmup_steps)
        for index, values in enumerate(self.theta):
            self._binding(task).load_(index, values)
        task.optimizer.state.clear()
        if variant.state == "own":
            task.optimizer.load_state_dict(self.own)
        losses, run = [], []
        for done in range(STEPS):
            losses.append(self._turn(self.tasks, RETURNS_AT + done, {LEARNERS - 1: done})[-1])
            if variant.state.startswith("peer") and done < FRAGMENTS:  # one fragment a step, after the first
                self._borrow(done, "fp32" if variant.state.endswith("fp32") else "bf16")
            if (done + 1) % (STEPS // 4) == 0:
                run.append(self._validation())
        return Result(
            first=statistics.fmean(losses[:FIRST]), all=statistics.fmean(losses), run=statistics.fmean(run),
            run_end=run[-1],
        )  # fmt: skip

    def _turn(self, there: list[Task], step: int, joined: dict[int, int]) -> list[float]:
        """Everybody makes a step, then a fragment that is due is merged."""
        losses = []
        for index, task in enumerate(there):
            since = joined.get(index, step)
            losses.append(task.train_step(task.schedule.rate(step / ENDS_AT, since))[0])
        turn, rest = divmod(step + 1, PERIOD // FRAGMENTS)
        if not rest:
            bindings = [self._binding(task) for task in there]
            fragment = (turn - 1) % FRAGMENTS
            mean = torch.stack([binding.gather(fragment) for binding in bindings]).mean(0)
            self.theta[fragment] = mean
            for binding in bindings:
                binding.load_(fragment, mean)
        return losses

    def _borrow(self, fragment: int, codec: str) -> None:
        lender, newcomer = (self._inner(task) for task in (self.tasks[0], self.tasks[-1]))
        assert lender.now_look() == newcomer.now_look()
        copied = lender.now_copy(fragment)
        assert copied is not None
        data = memoryview(lender.later_encode(copied, codec).numpy())
        newcomer.now_load(newcomer.later_decode(fragment, codec, data))

    def _validation(self) -> float:
        """Of the published values; the newcomer's model is set back afterwards."""
        task = self.tasks[0]
        other = copy.deepcopy(task.model)
        binding = Binding(other, self.layout)
        for index, values in enumerate(self.theta):
            binding.load_(index, values)
        return task.evaluate(other)

    def _binding(self, task: Task) -> Binding:
        return Binding(task.model, self.layout)

    def _inner(self, task: Task) -> InnerState:
        binding = self._binding(task)
        return InnerState(task.optimizer, binding, road_for(binding))
