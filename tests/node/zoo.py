"""Odd models: each has something that few have."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDTH = 8


class Zoo(nn.Module):
    """Maps (B, 8) to (B, 8) by `odd`, which is the case in question, and a layer that every kind has."""

    def __init__(self, odd: Callable[[], nn.Module], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.line = nn.Linear(WIDTH, WIDTH)
        self.odd = odd()

    def forward(self, x: Tensor) -> Tensor:
        return self.line(self.odd(x))


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


class LayerScale(nn.Module):
    """A parameter that begins next to zero, so that every step is far larger than itself."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        return x + x * self.gamma


class Empty(nn.Module):
    """A parameter and a floating-point buffer without any element."""

    def __init__(self) -> None:
        super().__init__()
        self.none = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("cache", torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.none.sum()


class ZeroDim(nn.Module):
    """A parameter and a buffer that are one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(()))
        self.register_buffer("scale", torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x + 0.0 * self.scale


class Strided(nn.Module):
    """Parameters that are not contiguous: transposed, every second column, channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
        self.sliced = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH)[:, ::2])
        self.conv = nn.Conv2d(2, 2, 3, padding=1).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.turned @ self.sliced + self.conv(x.view(-1, 2, 2, 2)).flatten(1)


class Mixed(nn.Module):
    """bf16, fp16 and fp64 beside the fp32 of the layer after it."""

    def __init__(self) -> None:
        super().__init__()
        self.brain = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.lean = nn.Parameter(torch.ones(WIDTH, dtype=torch.float16))
        self.wide = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.brain(x.bfloat16()).float() * self.lean.float() * self.wide.float()


class Frozen(nn.Module):
    """Nine tenths of the elements are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, 9 * WIDTH).requires_grad_(False)
        self.adapter = nn.Linear(9 * WIDTH, WIDTH, bias=False)
        self.adapter.weight = nn.Parameter(torch.randn(WIDTH, 9 * WIDTH), requires_grad=False)
        self.trained = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.trained(self.adapter(torch.relu(self.base(x))))


KINDS: dict[str, Callable[[], nn.Module]] = {
    "batch_norm": lambda: nn.BatchNorm1d(WIDTH),
    "tied": Tied,
    "layer scale": LayerScale,
    "empty": Empty,
    "zero_dim": ZeroDim,
    "strided": Strided,
    "mixed": Mixed,
    "frozen": Frozen,
}


def line() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)
