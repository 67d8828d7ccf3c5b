"""A plan beside what a run measured: the figures that its journal holds, and the same ones planned.

Rule: model, learners, steps and [sync] settings are those of the run; links are whatever was said of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.errors import ConfigError
from zdiloco.goodput import Figures, figures_of
from zdiloco.lives import length, parts_of, without
from zdiloco.plan.flight import rounds_of
from zdiloco.plan.model import Model
from zdiloco.plan.params import Fleet, Region, Settings
from zdiloco.whatif.compare import params_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """One figure. `ratio`: planned ÷ measured; None where the run has none."""

    what: str
    unit: str
    planned: float
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """Planned ÷ measured."""
        return self.planned / self.measured if self.measured else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A run as its journal tells it."""

    model: Model
    learners: int
    step_s: float
    sync: SyncParams
    figures: Figures
    contribution_bytes: float


def measured_of(records: Sequence[trace.Record]) -> Measured:
    """What a run was. Raises: ConfigError where its journal says too little."""
    opened = [r for r in records if isinstance(r, trace.Opened) and r.numels]
    arrived = [r.nbytes for r in records if isinstance(r, trace.Arrived) and r.nbytes]
    found = figures_of(records)
    paces = _paces_s(records)
    if not opened or not arrived or not paces:
        raise ConfigError("the run's journal holds no contribution yet: there is nothing to compare the plan with")
    starts = [r for r in records if isinstance(r, trace.Start) and r.sync]
    return Measured(
        model=Model(numels=opened[-1].numels, tensors=12 * len(opened[-1].numels)),
        learners=len(paces),
        step_s=sum(paces) / len(paces),
        sync=params_of(starts[-1]) if starts else SyncParams(),
        figures=found,
        contribution_bytes=sum(arrived) / len(arrived),
    )


def _paces_s(records: Sequence[trace.Record]) -> list[float]:
    """Seconds of a step of each learner, from the first step that its processes told to the last: what comes before,
    such as reading the data or the values it begins with, is none."""
    seconds: dict[str, float] = {}
    steps: dict[str, int] = {}
    for life in (life for part in parts_of(records) for life in part.lives if life.marks):
        first, last = life.marks[0], life.marks[-1]
        seconds[life.who] = seconds.get(life.who, 0.0) + length(without((first.t, last.t), life.stalls()))
        steps[life.who] = steps.get(life.who, 0) + last.step - first.step
    return [seconds[name] / steps[name] for name in sorted(steps) if steps[name]]


def compare(run: Measured, usual: Region, settings: Settings) -> list[Beside]:
    """The plan of such a run on one link like `usual`, beside the run."""
    fleet = Fleet(regions=(replace(usual, learners=run.learners, step_s=run.step_s),))
    there = replace(settings, sync=run.sync)
    rounds = rounds_of(fleet, run.model, there)
    answers = [each.answer_s.mean for each in run.figures.learners if each.answer_s]
    return [
        Beside(what="bytes of a contribution", unit="bytes", measured=run.contribution_bytes,
               planned=run.model.encoded(there.codec) / len(run.model.numels)),
        Beside(what="from call to call", unit="s", measured=_mean(run.figures.period_s),
               planned=rounds.apart_s),
        Beside(what="answer", unit="s", measured=sum(answers) / len(answers) if answers else None,
               planned=rounds.trips[0].answer_s),
        Beside(what="grace", unit="s", measured=_mean(run.figures.grace_s), planned=rounds.grace_s),
        Beside(what="contributions of a round", unit="", measured=_mean(run.figures.participants),
               planned=float(rounds.participants)),
    ]  # fmt: skip


def _mean(found: object) -> float | None:
    value = getattr(found, "mean", None)
    return float(value) if value is not None else None
