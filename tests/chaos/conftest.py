"""Fixtures of the chaos tests: one nursery for all of them, since loading everything is most of what a start costs."""

from collections.abc import Iterator

import pytest

from zdiloco.chaos.forked import Nursery


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A nursery; whoever it has started has ended when the session ends."""
    found = Nursery(tmp_path_factory.mktemp("nursery"))
    yield found
    found.close()
