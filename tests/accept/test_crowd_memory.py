"""Many learners push at once, checkpoint after checkpoint: what the syncer's process holds stays within its bounds."""

import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from tests.accept.stage import SLOW_MACHINE_S, Stage
from tests.hostile.test_processes import MB, Figures
from tests.node.conftest import Trainer
from zdiloco.config import load

WIDTH = 512
VALUES = WIDTH * WIDTH
PUBLISHED = 2 * 5 * 2 * VALUES
"""Of the one fragment the newest state and four older ones, as broadcast and whole, in bf16."""
CHECKPOINT = 3 * (4 + 2) * VALUES
"""Theta and the published bytes: as they are, as a copy that is saved, and as the bytes of the file."""
ALLOCATOR = 24 * MB
"""Frames that were not looked at yet, the worker's vectors, and what the allocator keeps."""
pytestmark = [
    pytest.mark.net,
    pytest.mark.proc,
    pytest.mark.timeout(2 * SLOW_MACHINE_S),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, which is of Linux"),
]


class Wide(nn.Module):
    """One matrix, used as little as possible: what it costs to send is what matters here."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight[:8, :8]


@pytest.fixture
def crowd(stage: Stage) -> Iterator[list[Trainer]]:
    """Learners on threads of this process; all are ended with the test."""
    trainers: list[Trainer] = []
    yield trainers
    for trainer in trainers:
        trainer.stopping.set()
    for trainer in trainers:
        trainer.stop()


@pytest.mark.parametrize(
    "learners", [pytest.param(16, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.long)]
)
def test_a_crowd_that_pushes_at_once_stays_within_the_budget(
    stage: Stage, crowd: list[Trainer], learners: int, say: Callable[[str], None]
) -> None:
    """A-15: K is half of them, the budget as small as it may be, and a checkpoint follows nearly every round: rounds go
    on, and the process is no larger than its bounds add up to."""
    budget = (learners // 2) * 4 * VALUES + MB  # the least that the syncer takes, and room for half of them twice
    stage.write(
        sync={
            "num_fragments": 1, "min_quorum": learners // 2, "budget_bytes": budget, "sync_period": 2,
            "checkpoint_every_s": 0.01, "suspect_after_s": 20.0, "gone_after_s": 60.0,
        },
        learner={"silent_after_s": 20.0, "answer_timeout_s": 10.0},
    )  # fmt: skip
    syncer = stage.cold_sync()
    config = load(stage.toml)
    for index in range(learners):
        crowd.append(Trainer(config, f"l{index:02}", seed=0, pace_s=0.01 * learners, model=Wide()))
    stage.until(lambda: stage.rounds() >= 1, "a round", syncer)
    figures = Figures(syncer)
    before = figures.resident_bytes
    rounds = stage.rounds()
    stage.until(lambda: all(trainer.steps > 4 for trainer in crowd), "everybody's steps", syncer)
    stage.until(lambda: stage.rounds() >= rounds + 5, "five more rounds", syncer)
    assert all(trainer.error is None for trainer in crowd)
    assert stage.status()["mean_participants"] >= learners / 4
    grown, bound = figures.highest_bytes - before, budget + PUBLISHED + CHECKPOINT + ALLOCATOR
    said = f"{learners} learners push {2 * VALUES / MB:.1f} MB each: the syncer grew by {grown / MB:.0f} MB"
    say(f"{said}; budget {budget / MB:.0f} MB, {bound / MB:.0f} MB allowed")
    assert grown < bound
