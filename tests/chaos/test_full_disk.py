"""A run folder on a disk that is truly full for a while, with kills meanwhile: root only."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.accept.mounts import mount_tmpfs, skip_unless_ci, unmount
from tests.chaos.theatre import LEARNERS, settings
from zdiloco.chaos.fleet import Fault, Fleet
from zdiloco.chaos.forked import Nursery
from zdiloco.chaos.script import SYNCER
from zdiloco.chaos.verdict import judge

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.chaos]
PIECE = bytes(65536)
LEFT = (0, 1, 4096, 300_000)
"""Bytes that are left: nothing, some notes, half of a checkpoint."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run whose `run` lies on a disk of its own, of 40 MB."""
    run_dir = tmp_path / "chaos" / "run"
    run_dir.mkdir(parents=True)
    if not mount_tmpfs(run_dir, "size=40m"):
        skip_unless_ci()
    yield tmp_path / "chaos"
    unmount(run_dir)


def fill(run_dir: Path, left: int) -> Path:
    """Write a file that leaves so many bytes (up to a page) on its disk; what others write meanwhile counts, too."""
    ballast = run_dir / "ballast"
    found = os.statvfs(run_dir)
    wanted = found.f_bavail * found.f_frsize - left
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while wanted > 0:
            wanted -= file.write(PIECE[: min(wanted, len(PIECE))])
    return ballast


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_a_disk_that_is_full_for_a_while(
    seed: int, forks: Nursery, small_disk: Path, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """Nobody ends of it. Whoever is killed then may not start, and says why; with room again all is well."""
    chance = random.Random(seed)
    refused = 0
    with Fleet(small_disk, LEARNERS, settings(tmp_path, seed), forks=forks) as fleet:
        fleet.begin()
        for _ in range(3):
            ballast = fill(fleet.run_dir, chance.choice(LEFT))
            fleet.rest(chance.uniform(0.5, 3.0))
            assert fleet.faults == []
            victim = chance.choice([SYNCER, *fleet.names])
            fleet.kill(victim)
            child = fleet.start(victim)
            if fleet.dies(victim, 2.0):
                assert "No space left on device" in child.last_lines()
                assert child.exit_code == 1
                refused += 1
            ballast.unlink()
            if child.exit_code is not None:
                fleet.start(victim)
            fleet.down.discard(victim)
            assert fleet.settle(time.monotonic()), fleet.faults
        fleet.end()
        verdict = judge(fleet, [])
    say(f"seed {seed}: {refused} starts refused on a full disk; {verdict.checks[0].figure}")
    assert verdict.checks[0].passed, verdict.checks[0].figure
    assert [what for kind, what in fleet.faults if kind is not Fault.END] == []
    assert fleet.faults == []
