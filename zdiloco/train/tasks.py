"""Ready-made tasks: what a learner trains, on which data, how fast, and how it is judged.

A task knows nothing of rounds or peers. It takes one inner step when told the rate, evaluates itself or any set of
named values on the same fixed batches, and hands out its data cursor to be saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from zdiloco.errors import ConfigError
from zdiloco.train.data import MIN_CORPUS_BYTES, ShardCursor, load_corpus, validation_batches
from zdiloco.train.models import PRESETS, ByteGPT, preset
from zdiloco.train.schedule import InnerSchedule

TASKS = ("stdlib-bytes",)


def _key(default: Any, doc: str, unit: str = "") -> Any:
    """Make a field that explains itself: `doc` and `unit` are read by the config reference."""
    return field(default=default, metadata={"doc": doc, "unit": unit})


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskParams:
    """The [task] section; the defaults are the demo's, found by measurement (`baseline.json` holds its curve)."""

    name: str = _key("stdlib-bytes", "which task: bytes of the Python standard library's own sources")
    preset: str = _key("tiny", f"model size: {', '.join(PRESETS)}")
    batch_size: int = _key(8, "sequences in one inner step", "sequences")
    context: int = _key(96, "bytes that the model sees at once", "bytes")
    lr: float = _key(4e-3, "highest inner learning rate; tuned for 'tiny', larger models need less")
    weight_decay: float = _key(0.1, "AdamW's decoupled decay, on matrices only")
    beta1: float = _key(0.9, "AdamW's decay of the first moment")
    beta2: float = _key(0.95, "AdamW's decay of the second moment")
    grad_clip: float = _key(1.0, "largest norm of the whole gradient; 0 never clips")
    warmup_fraction: float = _key(0.02, "share of the run in which the rate rises", "of global progress")
    final_fraction: float = _key(0.1, "share of lr left at the end of the run", "of lr")
    rejoin_warmup_steps: int = _key(20, "inner steps in which the rate rises after each start or join", "steps")
    seed: int = _key(0, "decides initial values and data order")
    num_shards: int = _key(3, "disjoint parts of the training bytes, one a learner", "shards")
    data_dir: str = _key("", "folder of text files to use instead of the standard library; empty: the latter")
    min_data_bytes: int = _key(MIN_CORPUS_BYTES, "refuse to start on less text than this", "bytes")
    validation_batches: int = _key(8, "batches in one evaluation", "batches")
    validation_batch_size: int = _key(32, "sequences in one batch of an evaluation", "sequences")
    device: str = _key("cpu", "torch device of model and batches, such as cpu or cuda:0")

    def __post_init__(self) -> None:
        if self.name not in TASKS:
            raise ConfigError(f"task.name is '{self.name}', but known are {', '.join(TASKS)}")
        preset(self.preset)
        for key in ("batch_size", "context", "num_shards", "validation_batches", "validation_batch_size"):
            self._require(key, getattr(self, key) >= 1, "at least 1")
        for key in ("seed", "min_data_bytes"):
            self._require(key, getattr(self, key) >= 0, "at least 0")
        for key in ("weight_decay", "grad_clip"):
            self._require(key, 0 <= getattr(self, key) < math.inf, "finite and at least 0")
        for key in ("beta1", "beta2"):
            self._require(key, 0 <= getattr(self, key) < 1, "at least 0 and below 1")
        _ = self.schedule  # checks its own four keys

    @property
    def schedule(self) -> InnerSchedule:
        """The road of the inner learning rate."""
        return InnerSchedule(
            lr=self.lr,
            warmup_fraction=self.warmup_fraction,
            final_fraction=self.final_fraction,
            rejoin_warmup_steps=self.rejoin_warmup_steps,
        )

    @property
    def tokens_per_step(self) -> int:
        """Bytes predicted in one inner step."""
        return self.batch_size * self.context

    def _require(self, key: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ConfigError(f"task.{key} is {getattr(self, key)}, but must be {allowed}")


class Task:
    """One learner's model, AdamW, stretch of data and yardstick; everything follows from `params` and `shard`.

    All learners of one `params` start from the same bits; their data differ. `optimizer` state is the caller's to save.
    Raises ConfigError for data that cannot be read or do not suffice, an unknown device, or a shard out of range.
    """

    def __init__(self, params: TaskParams, *, shard: int) -> None:
        corpus = load_corpus(params.data_dir, params.min_data_bytes)
        self.params = params
        self.schedule = params.schedule
        self.corpus = corpus
        self.device = _device(params.device)
        self.model = ByteGPT(preset(params.preset), seed=params.seed).to(self.device)
        self.optimizer = _adamw(self.model, params)
        self.cursor = ShardCursor(
            corpus.shard(shard, params.num_shards),
            index=shard,
            batch_size=params.batch_size,
            context=params.context,
            seed=params.seed,
        )
        self.validation = validation_batches(
            corpus.held_out, params.validation_batches, params.validation_batch_size, params.context
        )

    def train_step(self, lr_rate: float) -> tuple[float, int]:
        """Take one inner step at rate `lr_rate` on the next batch; return its loss in nats/byte and its tokens."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr_rate
        batch = self.cursor.next_batch().to(self.device)
        loss = self.model.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves this one untyped
        if self.params.grad_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.params.grad_clip)
        self.optimizer.step()
        return loss.item(), self.params.tokens_per_step

    @torch.no_grad()
    def evaluate(self, model: ByteGPT | None = None, *, batches: Sequence[Tensor] | None = None) -> float:
        """Mean nats/byte of `model` (its own when None) over `batches` (the fixed held-out ones when None)."""
        judged = self.model if model is None else model
        chosen = self.validation if batches is None else batches
        return sum(judged.loss(b.to(self.device)).item() for b in chosen) / len(chosen)

    def evaluate_values(self, values: Mapping[str, Tensor]) -> float:
        """Validation loss of a model with the named `values`; the task's own model stays as it is."""
        other = ByteGPT(self.model.config).to(self.device)
        load_values(other, values)
        return self.evaluate(other)

    def load_values(self, values: Mapping[str, Tensor]) -> None:
        """Copy the named `values` into the task's model; see the function of this name."""
        load_values(self.model, values)


@torch.no_grad()
def load_values(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy `values` (any dtype and device) into the parameters of the same names; tensors keep their storage.

    Raises ConfigError, before anything is changed, unless names and shapes are exactly the model's.
    """
    own = dict(model.named_parameters())
    if own.keys() != values.keys():
        missing, extra = sorted(own.keys() - values.keys()), sorted(values.keys() - own.keys())
        raise ConfigError(f"these values are of another model: missing are {missing}, unknown here are {extra}")
    for name, parameter in own.items():
        if parameter.shape != values[name].shape:
            raise ConfigError(
                f"these values are of another model: {name} is {tuple(values[name].shape)}, "
                f"but must be {tuple(parameter.shape)}; is task.preset the same?"
            )
    for name, parameter in own.items():
        parameter.copy_(values[name])


def _device(name: str) -> torch.device:
    """Turn `name` into a device that this machine has."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ConfigError(f"task.device is '{name}', but this machine cannot use it: {reason}") from error
    return device


def _adamw(model: nn.Module, params: TaskParams) -> torch.optim.AdamW:
    """AdamW in one fused kernel (0.8 ms a step for 'tiny' on one thread; foreach takes 1.9 ms); gains do not decay."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": params.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=params.lr, betas=(params.beta1, params.beta2), fused=True)
