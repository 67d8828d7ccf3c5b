"""Fixtures of the tests about links: whole runs in this process (those of tests/node), and a bad link."""

from collections.abc import Callable, Iterator

import pytest

from tests.node.conftest import region_of, run_of, stage_of  # noqa: F401 - fixtures
from zdiloco.chaos.proxy import Proxy


@pytest.fixture
def link_to(free_ports: Callable[[int], int]) -> Iterator[Callable[[int], tuple[Proxy, int]]]:
    """link_to(port) -> a link to the four ports from there on, and the first of its own four."""
    made: list[Proxy] = []

    def make(target: int) -> tuple[Proxy, int]:
        base = free_ports(4)
        made.append(Proxy(base, target))
        return made[-1], base

    yield make
    for proxy in made:
        proxy.close()
