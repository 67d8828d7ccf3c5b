"""An interrupted run is as good as one that nobody disturbs, and where a learner comes back the loss makes no leap."""

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.accept.seam import draw, play_all, table

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.long, pytest.mark.timeout(3600)]
TOKENS = 800_000
LEAP = 0.1
"""Nats per byte: training losses of 50 steps of one learner differ by so much from batch to batch alone."""


def test_kills_of_learners_and_syncer_leave_no_mark_in_the_loss(tmp_path: Path, say: Callable[[str], None]) -> None:
    found = play_all(TOKENS)
    for line in table(found):
        say(line)
    draw(found, tmp_path / "seam.png")
    say(f"drawn: {tmp_path / 'seam.png'}")
    undisturbed, own = ([play.validation for play in found[mode]] for mode in ("undisturbed", "own"))
    noise = statistics.stdev(undisturbed)
    assert statistics.mean(own) <= statistics.mean(undisturbed) + 2 * noise
    leaps = [after - before for play in found["own"] for before, after in play.seam_losses()]
    assert len(leaps) >= 9
    assert max(leaps) <= LEAP
