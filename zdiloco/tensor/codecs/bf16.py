"""bf16: the upper half of fp32, 2 bytes each, relative error at most 2^-8.

Finite values beyond 3.39e38 round to infinity and so are seen by the screening, as they should be.
"""

import torch

from zdiloco.tensor.codecs.plain import PlainCodec

BF16 = PlainCodec("bf16", torch.bfloat16)
