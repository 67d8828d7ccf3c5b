"""Fixtures of the hostile tests: runs within this process (those of tests/node), and a stage for processes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.accept.conftest import stage  # noqa: F401 - a fixture
from tests.hostile.scene import OPEN, Scene
from tests.node.conftest import run_of  # noqa: F401 - a fixture
from tests.node.relay_stage import stage_of  # noqa: F401 - a fixture


@pytest.fixture
def scene_of(run_of: Any, zctx: Any) -> Iterator[Callable[[int], Scene]]:  # noqa: F811 - the fixture
    """Makes scenes of so many honest learners; enemies hang up at the end."""
    scenes: list[Scene] = []

    def make(learners: int) -> Scene:
        scenes.append(Scene(run_of(sync={"budget_bytes": 2**20}, net=OPEN), zctx, learners))
        return scenes[-1]

    yield make
    for enemy in [enemy for scene in scenes for enemy in scene.enemies]:
        enemy.close()


@pytest.fixture
def scene(scene_of: Callable[[int], Scene]) -> Scene:
    return scene_of(1)
