"""Fixtures of the acceptance tests: a stage for processes, and runs within this process (those of tests/node)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import zmq

from tests.accept.siege import Siege
from tests.accept.stage import Stage
from tests.node.conftest import run_of  # noqa: F401 - a fixture
from zdiloco.chaos.forked import Nursery


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are made in one order: by one thread of torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def stage(tmp_path: Path, free_ports: Callable[[int], int], forks: Nursery) -> Iterator[Stage]:
    """A run folder with four ports of its own, for forks; whoever still runs at the end is killed."""
    found = Stage(tmp_path, free_ports(4), forks)
    yield found
    found.close()


@pytest.fixture
def cold_stage(tmp_path: Path, free_ports: Callable[[int], int]) -> Iterator[Stage]:
    """The same for new programs, as a user starts them."""
    found = Stage(tmp_path, free_ports(4))
    yield found
    found.close()


@pytest.fixture(scope="module")
def siege(
    tmp_path_factory: pytest.TempPathFactory, module_ports: Callable[[int], int], forks: Nursery
) -> Iterator[Siege]:
    """A run with keys: its syncer serves, and nobody has joined. The attacks of one file are made on it in turn."""
    stage = Stage(tmp_path_factory.mktemp("siege"), module_ports(4), forks)
    with zmq.Context() as context:
        found = Siege(stage, context)
        found.start_syncer()
        yield found
        stage.close()
