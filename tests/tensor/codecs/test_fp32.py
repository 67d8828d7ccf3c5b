"""fp32: the very bits."""

import struct

import torch

from zdiloco.tensor.codecs import get_codec


def test_every_bit_pattern_passes():
    bits = torch.tensor([0, 1, -1, 0x7F800001, -0x800000, 0x7FC12345, 0x00000001], dtype=torch.int64).to(torch.int32)
    data = get_codec("fp32").encode(bits.view(torch.float32))
    assert data.numpy().tobytes() == struct.pack("<7i", *bits.tolist())
    assert torch.equal(get_codec("fp32").decode(data, 7).view(torch.int32), bits)
