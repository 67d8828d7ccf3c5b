"""Fixtures of the tests on shaped links: regions, and labs in them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wan.lab import Lab, Shaped, why_no_lab
from tests.wan.put_up import PutUp


@pytest.fixture
def regions_of() -> Iterator[Callable[[int], Shaped]]:
    """Makes so many regions; without root, namespaces or devices CI fails, and others skip, with the reason."""
    reason, made = why_no_lab(), []
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)

    def make(count: int) -> Shaped:
        made.append(Shaped(count))
        return made[-1]

    yield make
    for regions in made:
        regions.close()


@pytest.fixture
def lab_of(
    regions_of: Callable[[int], Shaped], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[int], Lab]]:  # fmt: skip
    """Makes a lab of so many regions; whoever still runs at the end is killed."""
    labs: list[Lab] = []

    def make(count: int) -> Lab:
        labs.append(Lab(tmp_path, request.getfixturevalue("forks"), regions_of(count)))
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def lab_on(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Lab]]:
    """Puts a profile up and makes a stage in it, and takes both down; skips with the reason where there can be none."""
    request.getfixturevalue("regions_of")
    labs: list[Lab] = []

    def make(profile: str) -> Lab:
        labs.append(Lab(tmp_path, request.getfixturevalue("forks"), PutUp(profile)))
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()
        lab.regions.close()
