"""bf16: the upper half of fp32, rounded to nearest even."""

import struct

import pytest
import torch

from zdiloco.tensor.codecs import get_codec

BF16 = get_codec("bf16")


@pytest.mark.parametrize(
    ("value", "upper"),
    [(1.0, 0x3F80), (-2.0, 0xC000), (1 + 2.0**-8, 0x3F80), (1 + 3 * 2.0**-8, 0x3F82), (1 + 2.0**-8 + 2.0**-20, 0x3F81)],
)
def test_golden_bytes(value, upper):
    assert BF16.encode(torch.tensor([value])).numpy().tobytes() == struct.pack("<H", upper)


def test_beyond_its_largest_value_it_shows_infinity():
    largest = torch.finfo(torch.bfloat16).max
    back = BF16.decode(BF16.encode(torch.tensor([largest, torch.finfo(torch.float32).max])), 2)
    assert back.tolist() == [largest, float("inf")]
