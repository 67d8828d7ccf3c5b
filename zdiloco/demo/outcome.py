"""How good the merged model is: validation loss of the syncer's final values, beside what one learner alone reaches."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zdiloco.demo.checks import Lone
from zdiloco.rundir.archive import Cut
from zdiloco.tensor.layout import Layout
from zdiloco.train.baseline import Baseline, curve
from zdiloco.train.params import TaskParams
from zdiloco.train.tasks import Task

OTHER_TEXT_FACTOR = 2.0
"""How much wider the lone learner's noise is taken where this machine's text is another than the curve's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Validation losses (nats per byte) of the initial and of the final values, and the yardstick.

    `lone` None: the curve does not say what so short a run reaches, and `why_no_lone` says so. `remarks`: in what the
    yardstick was measured otherwise, one line each.
    """

    loss_before: float
    loss_after: float
    lone: Lone | None
    remarks: tuple[str, ...] = ()
    why_no_lone: str = ""


def named_values(cut: Cut, layout: Layout) -> dict[str, Tensor]:
    """Theta of a checkpoint by parameter name, fp32, in the shapes of the model; buffers are left out."""
    values: dict[str, Tensor] = {}
    for fragment, part in zip(layout.fragments, cut.fragments, strict=True):
        if not fragment.is_buffers:
            flat = part.theta.split_with_sizes([tensor.numel for tensor in fragment.tensors])
            values |= {t.name: piece.reshape(t.shape) for t, piece in zip(fragment.tensors, flat, strict=True)}
    return values


def judge(params: TaskParams, values: dict[str, Tensor], steps: int, baseline: Path | None = None) -> Outcome:
    """Evaluate a new model and one with `values`, on the held-out text; read the lone curve at `steps`.

    `baseline`: another curve than the shipped one. Raises ConfigError where `values` are of another model, StoreError
    where the curve cannot be read.
    """
    torch.set_num_threads(1)
    task = Task(params, shard=0)
    yardstick = curve(baseline)
    first = yardstick.points[0].steps
    told = steps >= first
    return Outcome(
        loss_before=task.evaluate(),
        loss_after=task.evaluate_values(values),
        lone=_lone(yardstick, steps, task.corpus.digest) if told else None,
        remarks=_remarks(yardstick, params, task.corpus.digest) if told else (),
        why_no_lone="" if told else f"the lone curve begins at {first} steps, the fastest learner made {steps}",
    )


def _lone(yardstick: Baseline, steps: int, digest: str) -> Lone:
    loss, noise = yardstick.at_step(steps)
    factor = 1.0 if digest == yardstick.corpus_digest else OTHER_TEXT_FACTOR
    return Lone(steps=steps, loss=loss, noise=noise, noise_factor=factor)


def _remarks(yardstick: Baseline, params: TaskParams, digest: str) -> tuple[str, ...]:
    remarks = [f"the lone curve was measured with another task: {text}" for text in yardstick.differences(params)]
    if digest != yardstick.corpus_digest:
        remarks.append(
            f"the text here ({digest}) is not the text of the lone curve ({yardstick.corpus_digest}, "
            f"{yardstick.made_with}): its noise counts {OTHER_TEXT_FACTOR:g} times; measure anew: --measure-baseline"
        )
    return tuple(remarks)
