"""SIGKILL of a process that saves, at random moments and at every one of its system calls: there is always a whole cut.

A child is forked before anything of ZeroMQ exists; it tells through a pipe what it has confirmed, and is killed. Bytes
that a dead process has handed to the kernel survive it, so a call that was cut short is imitated by the child itself.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.rundir.test_store import same
from zdiloco.rundir.archive import Cut, FragmentCut, read_newest
from zdiloco.rundir.disk import Disk
from zdiloco.rundir.store import Store
from zdiloco.rundir.survey import faults_of, survey
from zdiloco.tensor.layout import layout_of
from zdiloco.units import Epoch, Merged, Stamp

pytestmark = [pytest.mark.proc, pytest.mark.beside]
KILL_AFTER_S = 0.03
"""At most; a child confirms some tens of cuts until then."""
LIMIT_S = 60.0
LAYOUT = layout_of(nn.Linear(120, 100), num_fragments=2)


class DyingDisk(Disk):
    """A disk whose process ends by SIGKILL at its n-th call: before it, or with a part of its bytes written."""

    def __init__(self, left: int, rng: random.Random) -> None:
        self.left, self.rng = left, rng
        self.calls = 0

    def _count(self) -> bool:
        self.calls += 1
        return self.calls > self.left

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: Path) -> int:
        if self._count():
            self._die()
        return super().open(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        if self._count():
            os.write(descriptor, data[: self.rng.randrange(len(data) + 1)])
            self._die()
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        if self._count():
            self._die()

    def move(self, source: Path, target: Path) -> None:
        if self._count():
            self._die()
        super().move(source, target)

    def remove(self, path: Path) -> None:
        if self._count():
            self._die()
        super().remove(path)


def cut_at(version: int) -> Cut:
    """A cut whose every value is its version."""
    epoch = Epoch(1, 77)
    parts = tuple(
        FragmentCut(
            fragment=fragment.index,
            revision=version,
            stamp=Stamp(epoch, version),
            theta=torch.full((fragment.numel,), float(version)),
            buf=None,
            value=torch.full((2 * fragment.numel,), version % 251, dtype=torch.uint8),
            codec="bf16",
            map_=(Merged("a", 5, version + 1, 10, 100),),
        )
        for fragment in LAYOUT.fragments
    )
    return Cut(
        run_id="r-1", epoch=epoch, layout_digest=LAYOUT.digest, layout=LAYOUT.to_obj(), fragments=parts,
        progress_tokens=float(version),
    )  # fmt: skip


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a child that never comes back; returns its process number."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(1)


def ended(child: int) -> int:
    """The exit code of a child (minus the signal that ended it), which it must have soon."""
    alarm = threading.Timer(LIMIT_S, os.kill, (child, signal.SIGKILL))
    alarm.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        alarm.cancel()
        alarm.join()


def save_for_ever(run_dir: Path, told: int) -> None:
    """Save one cut after the other, as fast as the disk lets us, and say of each that it is confirmed."""
    store = Store(run_dir, keep=1)
    found = store.load()
    version = found.fragments[0].stamp.version if found else 0
    while True:
        version += 1
        store.write(cut_at(version))
        os.write(told, b"%d\n" % version)


def kill_once(run_dir: Path, after_s: float) -> tuple[int, int]:
    """Start a saving process, kill it; returns the last version that it confirmed, and the one on the disk."""
    ours, theirs = os.pipe()
    child = forked(lambda: save_for_ever(run_dir, theirs))
    os.close(theirs)
    with os.fdopen(ours, "rb") as told:
        first = told.readline()  # it is at work; the kill may come during any of the following saves
        time_is_up = threading.Timer(after_s, os.kill, (child, signal.SIGKILL))
        time_is_up.start()
        confirmed = [int(line) for line in (first + told.read()).split(b"\n") if line]
    time_is_up.join()
    assert ended(child) == -signal.SIGKILL
    cut = read_newest(run_dir)
    assert cut is not None
    version = cut.fragments[0].stamp.version
    assert all(float(part.theta.min()) == float(part.theta.max()) == version for part in cut.fragments)
    return confirmed[-1], version


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(20, marks=pytest.mark.slow),
        pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_killed_at_random_moments_a_save_leaves_a_whole_cut(
    tmp_path: Path, kills: int, say: Callable[[str], None]
) -> None:
    """D-61: whatever the moment, the newest cut is whole, and none that was confirmed is lost. The next one goes on."""
    rng = random.Random(kills)
    began, ahead, saved = time.monotonic(), 0, 0
    for _ in range(kills):
        confirmed, found = kill_once(tmp_path, rng.uniform(0.0, KILL_AFTER_S))
        assert confirmed <= found <= confirmed + 1
        ahead += found > confirmed
        saved = found
        for seen in survey(tmp_path):
            assert faults_of(seen.path) == []
    took_s = time.monotonic() - began
    say(f"{kills} kills among {saved} saves in {took_s:.1f} s; {ahead} saves were whole and not confirmed")


def save_one(run_dir: Path, version: int, disk: DyingDisk) -> None:
    store = Store(run_dir, keep=1, disk=disk)
    store.load()
    store.write(cut_at(version))
    os._exit(0)


def test_killed_at_any_call_a_save_leaves_a_whole_cut(tmp_path: Path) -> None:
    """D-61: at each open, write, sync, move and removal, writes cut short anywhere: the older cut or the new one."""
    rng = random.Random(7)
    store = Store(tmp_path, keep=1)
    store.write(cut_at(1))
    store.close()
    version, call, before_commit = 1, 0, 0
    while True:
        disk = DyingDisk(call, rng)
        code = ended(forked(partial(save_one, tmp_path, version + 1, disk)))
        cut = read_newest(tmp_path)
        assert cut is not None
        found = cut.fragments[0].stamp.version
        assert found in (version, version + 1)
        assert same(cut, cut_at(found)), call
        assert all(faults_of(seen.path) == [] for seen in survey(tmp_path))
        before_commit += found == version
        version = found
        if code == 0:
            break
        assert code == -signal.SIGKILL
        call += 1
    assert version > 2
    assert before_commit > 8
    assert call > 14, "a save makes more calls than that"
