"""Sums depend on the values alone; blocks cover everything once."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.tensor.blocks import BLOCK, blocks, slices, square_sum, sum64


@given(st.integers(0, 70_000), st.integers(0, 2**31))
def test_sum64_is_exact_to_float64(numel, seed):
    values = np.random.default_rng(seed).standard_normal(numel)
    assert sum64(torch.from_numpy(values)) == pytest.approx(math.fsum(values), rel=1e-12, abs=1e-10)


@pytest.mark.parametrize("numel", [BLOCK, 400_001, 300_000])
def test_sum64_has_the_same_bits_with_any_number_of_threads(numel):
    values = torch.from_numpy(np.random.default_rng(numel).standard_normal(numel) ** 2)
    found = set()
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            found.add(sum64(values))
    finally:
        torch.set_num_threads(1)
    assert len(found) == 1


def test_square_sum_does_not_overflow_where_fp32_would():
    values = torch.full((1000,), 3e38)
    assert square_sum(values, torch.empty(1000, dtype=torch.float64)) == pytest.approx(9e79, rel=1e-6)


@given(st.integers(0, 3 * BLOCK), st.integers(0, 3 * BLOCK))
def test_blocks_cover_a_range_once_and_keep_to_their_borders(start, length):
    stop = start + length
    found = list(blocks(start, stop))
    assert sum(b - a for a, b in found) == length
    assert all(a < b and a // BLOCK == (b - 1) // BLOCK for a, b in found)
    assert [a for a, _ in found][1:] == [b for _, b in found][:-1]


def test_slices_end_where_the_next_begins():
    assert slices((0, 3, 3), 7) == [(0, 3), (3, 3), (3, 7)]
    assert slices((), 7) == [(0, 7)]
