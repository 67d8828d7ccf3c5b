"""What hears processes, and a stage on which they play."""

import pathlib
from collections.abc import Callable, Iterator

import pytest

from tests.accept.stage import Stage
from tests.systemd.ear import Ear


@pytest.fixture
def ear() -> Iterator[Ear]:
    """An ear with a name of its own."""
    made = Ear()
    yield made
    made.close()


@pytest.fixture
def stage(tmp_path: pathlib.Path, free_ports: Callable[[int], int]) -> Iterator[Stage]:
    """A run folder; whoever is started there is a new program, as systemd starts one."""
    made = Stage(tmp_path, free_ports(4))
    yield made
    made.close()
