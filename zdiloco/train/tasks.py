"""Ready-made tasks: what a learner trains, on which data, how fast, and how it is judged.

A task knows nothing of rounds or peers. It takes one inner step when told the rate, evaluates itself or any set of
named values on the same fixed batches, and hands out its data cursor to be saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from zdiloco.errors import ConfigError
from zdiloco.train.data import ShardCursor, load_corpus, validation_batches
from zdiloco.train.models import ByteGPT
from zdiloco.train.params import TaskParams, preset


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
