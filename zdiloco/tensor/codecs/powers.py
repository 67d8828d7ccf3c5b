"""Powers of two as scales: a level times such a scale is exact, whoever multiplies, and in whatever order."""

import torch
from torch import Tensor

_EXPONENT = 0x7F800000  # of an fp32: its bits without sign and mantissa are the largest power of two not above it


def round_up_(scales: Tensor) -> Tensor:
    """scales (r,) fp32, none below 2^-126 <- the least power of two that is not below each; NaN becomes infinite."""
    lower = (scales.view(torch.int32) & _EXPONENT).view(torch.float32)
    return torch.where(lower < scales, 2 * lower, lower, out=scales)
