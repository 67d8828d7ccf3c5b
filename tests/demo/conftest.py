"""What tests of the demo share: a finished demo in a folder, and how good its model is."""

from pathlib import Path

import pytest

from tests.demo.finished import Finished
from zdiloco.demo.checks import Lone
from zdiloco.demo.outcome import Outcome


@pytest.fixture
def finished(tmp_path: Path) -> Finished:
    """Where a demo has just ended."""
    return Finished(tmp_path / "run")


@pytest.fixture
def outcome() -> Outcome:
    """Of a model that has learned."""
    return Outcome(loss_before=5.5, loss_after=1.5, lone=Lone(steps=20, loss=1.6, noise=0.01), remarks=("a remark",))
