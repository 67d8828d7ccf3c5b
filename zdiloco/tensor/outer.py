"""The outer step: Nesterov SGD on one fragment, in place, in fp32 (docs/math.md, 6 and 7).

With momentum 0 there is no momentum buffer at all. Buffers of the model (running statistics) take `OuterParams()`, from
zero.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zdiloco.errors import ConfigError, MachineError
from zdiloco.tensor.blocks import blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class OuterParams:
    """The outer optimizer's settings. Raises: ConfigError naming the key and what is allowed."""

    lr: float = field(
        default=1.0,
        metadata={"doc": "Outer learning rate: the share of the merged outer gradient that is applied.", "unit": "1"},
    )
    momentum: float = field(
        default=0.0,
        metadata={
            "doc": "Nesterov momentum of the outer optimizer; with few outer steps anything above 0 harms the model.",
            "unit": "1",
        },
    )

    def __post_init__(self) -> None:
        for key, value, allowed in (
            ("lr", self.lr, "above 0 and at most 10"),
            ("momentum", self.momentum, "at least 0 and below 1"),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(f"outer {key} is {value!r}; it must be a finite number {allowed}")
        if not 0 < self.lr <= 10:
            raise ConfigError(f"outer lr is {self.lr}; it must be above 0 and at most 10")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"outer momentum is {self.momentum}; it must be at least 0 and below 1")


def outer_step_(theta: Tensor, buf: Tensor | None, outer_gradient: Tensor, params: OuterParams) -> Tensor | None:
    """Apply one outer step to theta (n_p,) fp32 in place and return the momentum buffer to keep.

    `buf` is None before the first step, and stays None while momentum is 0; otherwise it is updated in place. A buffer
    from former steps with momentum is let go when momentum is 0 now. Raises: MachineError for unlike shapes or dtypes.
    """
    for name, tensor in (("theta", theta), ("buf", buf), ("outer_gradient", outer_gradient)):
        if tensor is not None and (tensor.shape != theta.shape or tensor.dtype is not torch.float32):
            raise MachineError(f"{name} must be {tuple(theta.shape)} float32, got {tuple(tensor.shape)} {tensor.dtype}")
    if params.momentum == 0:
        theta.add_(outer_gradient, alpha=-params.lr)
        return None
    if buf is None:
        buf = torch.zeros_like(theta)
    for a, b in blocks(0, theta.numel()):
        memory = buf[a:b].mul_(params.momentum).add_(outer_gradient[a:b])  # (6)
        value = theta[a:b].add_(outer_gradient[a:b], alpha=-params.lr)
        value.add_(memory, alpha=-params.lr * params.momentum)  # (7)
    return buf
