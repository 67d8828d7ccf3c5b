"""Everything that can be done to a process, a link, a disk or a clock, mixed; and true restarts beside the forks."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.theatre import LEARNERS, play
from zdiloco.chaos.forked import Nursery
from zdiloco.chaos.script import EVERYTHING, Kind, deeds

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.chaos]
MIXED = range(300, 310)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", MIXED)
def test_all_kinds_mixed(seed: int, forks: Nursery, tmp_path: Path, say: Callable[[str], None]) -> None:
    """A-17, D-69: in each of ten seeds every kind comes, often in the middle of what the one before has left."""
    played = play(forks, tmp_path, seed, itertools.islice(deeds(seed, tuple(LEARNERS)), sum(EVERYTHING.values())))
    for line in played.lines():
        say(line)
    played.assert_sound()
    assert {each.deed.kind for each in played.done} == set(Kind)
