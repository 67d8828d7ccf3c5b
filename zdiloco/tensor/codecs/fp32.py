"""fp32: the values as they are, 4 bytes each; for buffers, references and comparisons."""

import torch

from zdiloco.tensor.codecs.plain import PlainCodec

FP32 = PlainCodec("fp32", torch.float32)
