"""Learners for a part of the run: times reckoned by hand, and the order that the table is to show."""

import itertools

import pytest

from zdiloco.sim.chips import Constants
from zdiloco.sim.scavenging import PAPER, data_parallel_s, decoupled_s, stays, table


def test_an_extra_learner_counts_from_its_bootstrap_to_its_last_cut() -> None:
    """4,000 learner-seconds; the extra one brings 500 - 20 - 12 = 468 of them."""
    assert decoupled_s([[(0.0, 500.0)]], 1000.0, 20.0, 12.0) == pytest.approx((4000 - 468) / 4)
    assert decoupled_s([[(0.0, 30.0)]], 1000.0, 20.0, 12.0) == 1000.0  # too short a stay brings nothing
    assert decoupled_s([[(100.0, 1e6)]], 1000.0, 0.0, 0.0) == pytest.approx(100 + 3600 / 5)
    assert decoupled_s([], 1000.0, 20.0, 12.0) == 1000.0


def test_data_parallel_training_stands_still_whenever_somebody_comes_or_goes() -> None:
    assert data_parallel_s([[(100.0, 500.0)]], 1000.0, 50.0) == pytest.approx(550 + (4000 - 400 - 350 * 5) / 4)
    assert data_parallel_s([[(100.0, 1e6)], [(120.0, 1e6)]], 1000.0, 50.0) == pytest.approx(150 + 3600 / 6)
    assert data_parallel_s([], 1000.0, 50.0) == 1000.0


def test_extra_learners_are_there_half_of_the_time_and_come_one_after_the_other() -> None:
    rows = [stays(1, number, 50_000.0) for number in range(20)]
    there = sum(min(go, 50_000.0) - come for row in rows for come, go in row if come < 50_000.0)
    assert there / (20 * 50_000.0) == pytest.approx(0.5, abs=0.05)
    assert all(a[1] <= b[0] for row in rows for a, b in itertools.pairwise(row))
    assert stays(1, 0, 1000.0) == stays(1, 0, 1000.0) != stays(2, 0, 1000.0)


def test_more_extra_learners_help_decoupled_training_most() -> None:
    rows = table(24.0, 1.0, Constants(), [1, 2])
    assert [(row.extra, row.paper_dp, row.paper) for row in rows] == list(PAPER)
    assert rows[0].decoupled == rows[0].elastic == rows[0].restarting == 1.0
    times = [row.decoupled for row in rows]
    assert times == sorted(times, reverse=True)
    assert all(row.decoupled < row.elastic < row.restarting for row in rows[1:])
    assert abs(rows[1].decoupled - rows[1].paper) < 0.03
