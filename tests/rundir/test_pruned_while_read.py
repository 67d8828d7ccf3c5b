"""Readers beside a syncer that writes and prunes as fast as it can, keeping one cut: none of them ever fails."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch

from tests.rundir.test_killed_saves import cut_at, ended, forked
from zdiloco.rundir.archive import read_newest
from zdiloco.rundir.disk import Disk
from zdiloco.rundir.export import Wanted, export
from zdiloco.rundir.store import Store
from zdiloco.rundir.survey import faults_of, leftovers, survey

pytestmark = [pytest.mark.proc, pytest.mark.beside]


class MemoryDisk(Disk):
    """A disk that never waits for the platter, so that cuts follow each other at the greatest pace."""

    def sync(self, descriptor: int) -> None:
        """Return at once."""


def write_for_ever(run_dir: Path, told: int) -> None:
    """Write cuts and remove the one before, until killed."""
    store = Store(run_dir, keep=1, disk=MemoryDisk())
    store.load()
    version = 0
    while True:
        version += 1
        store.write(cut_at(version))
        if version == 1:
            os.write(told, b"!")


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """A run folder in which a child writes and prunes all the time."""
    folder = tmp_path / "run"
    ours, theirs = os.pipe()
    child = forked(partial(write_for_ever, folder, theirs))
    assert os.read(ours, 1) == b"!"
    yield folder
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    os.close(ours)
    os.close(theirs)


def show(run_dir: Path, out: Path) -> int:
    """Every cut that is still there when it has been looked at is whole."""
    cuts = survey(run_dir)
    assert [seen.why for seen in cuts if seen.why] == []
    assert all(seen.layout is not None for seen in cuts)
    return max((seen.number for seen in cuts), default=0)


def verify(run_dir: Path, out: Path) -> int:
    """No file of a cut that is still there is damaged or missing."""
    cuts = survey(run_dir)
    assert [fault for seen in cuts for fault in faults_of(seen.path)] == []
    leftovers(run_dir)
    return max((seen.number for seen in cuts), default=0)


def load(run_dir: Path, out: Path) -> int:
    """The newest cut, all of one version."""
    cut = read_newest(run_dir)
    assert cut is not None
    (version,) = {part.stamp.version for part in cut.fragments}
    assert all(float(part.theta.min()) == float(part.theta.max()) == version for part in cut.fragments)
    return version


def exported(run_dir: Path, out: Path) -> int:
    """One whole cut as a file."""
    export(run_dir, out, Wanted(force=True))
    (version,) = {float(value.reshape(-1)[0]) for value in safetensors.torch.load_file(out).values()}
    return int(version)


@pytest.mark.parametrize(
    "seconds", [0.3, pytest.param(4.0, marks=pytest.mark.slow), pytest.param(60.0, marks=pytest.mark.long)]
)
def test_readers_never_fail(run_dir: Path, tmp_path: Path, seconds: float, say: Callable[[str], None]) -> None:
    """D-61, while the files that are read vanish all the time; and what is read moves on."""
    ends, counts, seen = time.monotonic() + seconds, 0, set()
    while time.monotonic() < ends:
        for read in (show, verify, load, exported):
            seen.add(read(run_dir, tmp_path / "out.safetensors"))
            counts += 1
    written = max(seen)
    assert len(seen) > 3
    say(f"{counts} readings of {len(seen)} cuts in {seconds:g} s, while {written} were written and all others removed")
