"""A small model that has trained for a few steps, and its inner state."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from zdiloco.tensor.binding import Binding
from zdiloco.tensor.device import road_for
from zdiloco.tensor.inner import InnerState
from zdiloco.tensor.layout import layout_of


class Trained:
    """`steps` steps of an optimizer on a model with a vector, a matrix and a single number."""

    def __init__(
        self, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, *, steps: int = 3, seed: int = 0,
        fragments: int = 1, **options: Any,
    ) -> None:  # fmt: skip
        self.generator = torch.Generator().manual_seed(seed)
        self.model = nn.ParameterDict({
            "matrix": nn.Parameter(torch.randn(3, 2, generator=self.generator)),
            "number": nn.Parameter(torch.tensor(0.5)),
            "vector": nn.Parameter(torch.randn(4, generator=self.generator)),
        })  # fmt: skip
        self.optimizer = optimizer(self.model.parameters(), **{"lr": 1e-3, **options})
        binding = Binding(self.model, layout_of(self.model, num_fragments=fragments))
        self.inner = InnerState(self.optimizer, binding, road_for(binding))
        for _ in range(steps):
            self.step()
        self.inner.now_look()

    def step(self) -> None:
        """One step, on gradients that the seed decides."""
        for parameter in self.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=self.generator)
        self.optimizer.step()
