"""The counters of a learner: whole after a death at any moment, and read back as written."""

import errno
import logging
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zdiloco.core.ledger import CutRow, FragmentRow
from zdiloco.errors import ConfigError, StoreError
from zdiloco.rundir.counters import TRY_AGAIN_AFTER, CounterFile, counters_path, read_counters
from zdiloco.units import MemberKey

KEY = MemberKey("us-east-0", 0xDEADBEEF00000001)


def rows_at(step: int, fragments: int = 3, cuts: int = 2) -> list[FragmentRow]:
    sent = tuple(CutRow(step + i, 10 * i, i == 1) for i in range(cuts))
    return [
        FragmentRow(unmerged=step * 7 + p, dropped=p, lost=step, after=step // 2, sent=sent, kept=sent[:1])
        for p in range(fragments)
    ]


class DyingMap:
    """A mapping that ends the process' life after a number of stores, in the middle of the last one."""

    def __init__(self, real: mmap.mmap, stores: int) -> None:
        self.real, self.left = real, stores

    def __setitem__(self, at: slice, data: bytes) -> None:
        self.left -= 1
        if self.left < 0:
            half = len(data) // 2
            self.real[at.start : at.start + half] = data[:half]
            raise KeyboardInterrupt
        self.real[at] = data

    def close(self) -> None:
        self.real.close()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    with_file = CounterFile(tmp_path, KEY, 3)
    for step in range(5):
        with_file.write(step, step * 100, rows_at(step), left=step == 4)
    found = read_counters(counters_path(tmp_path, KEY))
    assert (found.key, found.step, found.trained_tokens, found.left) == (KEY, 4, 400, True)
    assert found.rows == tuple(rows_at(4))
    with_file.close()
    with_file.close()


def test_a_new_file_holds_zeros(tmp_path: Path) -> None:
    CounterFile(tmp_path, KEY, 2).close()
    found = read_counters(counters_path(tmp_path, KEY))
    assert found.trained_tokens == 0
    assert found.rows == (FragmentRow(unmerged=0, dropped=0, lost=0, after=0),) * 2


@pytest.mark.parametrize("stores", range(8))
def test_a_death_between_any_two_stores_leaves_a_whole_record(tmp_path: Path, stores: int) -> None:
    file = CounterFile(tmp_path, KEY, 3)
    file._map = DyingMap(file._map, stores)
    done = 0

    def live() -> None:
        nonlocal done
        while True:
            file.write(done + 1, (done + 1) * 100, rows_at(done + 1))
            done += 1

    with pytest.raises(KeyboardInterrupt):
        live()
    found = read_counters(file.path)
    assert found.step in (done, done + 1)
    assert found.trained_tokens == found.step * 100
    assert found.step == 0 or found.rows == tuple(rows_at(found.step))


CHILD = """
import os, signal, sys
from pathlib import Path
from zdiloco.core.ledger import FragmentRow
from zdiloco.rundir.counters import CounterFile
from zdiloco.units import MemberKey
file = CounterFile(Path(sys.argv[1]), MemberKey("us-east-0", 7), 1)
for step in range(1, 1000):
    file.write(step, step, [FragmentRow(unmerged=step, dropped=0, lost=0, after=0)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.proc
def test_sigkill_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    found = read_counters(counters_path(tmp_path, MemberKey("us-east-0", 7)))
    assert (found.step, found.rows[0].unmerged) == (999, 999)


def test_more_cuts_than_room_make_the_file_anew(tmp_path: Path) -> None:
    file = CounterFile(tmp_path, KEY, 2)
    before = file.path.stat().st_size
    file.write(1, 10, rows_at(1, 2, cuts=40))
    file.write(2, 20, rows_at(2, 2, cuts=40))
    assert file.path.stat().st_size > before
    assert read_counters(file.path).rows == tuple(rows_at(2, 2, cuts=40))


@pytest.mark.parametrize("damage", ["short", "foreign", "zeros", "missing"])
def test_what_is_not_ours_is_refused(tmp_path: Path, damage: str) -> None:
    file = CounterFile(tmp_path, KEY, 2)
    data = file.path.read_bytes()
    changed = {"short": data[:-1], "foreign": b"PK" + data[2:], "zeros": data[:96] + bytes(len(data) - 96)}
    if damage == "missing":
        file.path.unlink()
    else:
        file.path.write_bytes(changed[damage])
    with pytest.raises(StoreError, match=str(file.path)):
        read_counters(file.path)


def test_a_disk_that_refuses_says_so(tmp_path: Path) -> None:
    (tmp_path / "learners").write_text("in the way")
    with pytest.raises(ConfigError, match=r"run.dir .*cannot make the counter file"):
        CounterFile(tmp_path, KEY, 1)


class FullDisk:
    """A disk that, while `full`, refuses new files: to open them, or to give them their blocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        self.full, self.attempts = True, 0
        really = getattr(os, call)

        def refuse(*args: object) -> object:
            self.attempts += 1
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return really(*args)

        monkeypatch.setattr(os, call, refuse)


@pytest.fixture(params=["open", "posix_fallocate"])
def fill_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], FullDisk]:
    return lambda: FullDisk(monkeypatch, request.param)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_disk_that_is_full_at_the_start_is_said(tmp_path: Path, fill_disk: Callable[[], FullDisk]) -> None:
    fill_disk()
    before = descriptors()
    with pytest.raises(StoreError, match=r"cannot make the counter file .*No space left"):
        CounterFile(tmp_path, KEY, 2)
    assert descriptors() == before
    assert list((tmp_path / "learners").iterdir()) == []


def test_a_disk_that_is_full_later_keeps_what_fits(
    tmp_path: Path, fill_disk: Callable[[], FullDisk], caplog: pytest.LogCaptureFixture
) -> None:
    """The old file goes on, with the newest cuts; when there is room again, everything is there again."""
    file = CounterFile(tmp_path, KEY, 2)
    disk = fill_disk()
    many = rows_at(0, 2, cuts=40)
    with caplog.at_level(logging.WARNING):
        for step in range(1, TRY_AGAIN_AFTER):
            file.write(step, step * 10, many)
    assert disk.attempts == 1
    assert len(caplog.records) == 1
    assert sorted(path.name for path in file.path.parent.iterdir()) == [file.path.name]
    found = read_counters(file.path)
    assert (found.step, found.trained_tokens) == (TRY_AGAIN_AFTER - 1, (TRY_AGAIN_AFTER - 1) * 10)
    assert [(row.unmerged, row.after, row.sent, row.kept) for row in found.rows] == [
        (row.unmerged, row.after, row.sent[-32:], ()) for row in many
    ]
    disk.full = False
    for step in range(TRY_AGAIN_AFTER, TRY_AGAIN_AFTER + 10):
        file.write(step, step * 10, many)
    assert read_counters(file.path).rows == tuple(many)
    disk.full = True
    file.write(1000, 10_000, rows_at(0, 2, cuts=400))
    file.close()
    file.close()
    assert read_counters(file.path).step == 1000
    assert len(caplog.records) == 1, "said once"


def test_a_new_incarnation_on_a_full_disk_goes_on_without_a_file(
    tmp_path: Path, fill_disk: Callable[[], FullDisk], caplog: pytest.LogCaptureFixture
) -> None:
    disk = fill_disk()
    file = CounterFile(tmp_path, KEY, 2, required=False)
    for step in range(1, TRY_AGAIN_AFTER + 2):
        file.write(step, step * 10, rows_at(step, 2))
    assert not file.path.exists()
    assert len(caplog.records) == 1
    assert disk.attempts == 2
    disk.full = False
    for step in range(TRY_AGAIN_AFTER + 2, 2 * TRY_AGAIN_AFTER + 4):
        file.write(step, step * 10, rows_at(step, 2))
    assert read_counters(file.path).rows == tuple(rows_at(2 * TRY_AGAIN_AFTER + 3, 2))
    file.close()


def test_kept_cuts_that_do_not_fit_go_first_and_the_oldest_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CounterFile(tmp_path, KEY, 1)
    FullDisk(monkeypatch, "open")
    sent = tuple(CutRow(100 + i, 1, False) for i in range(2))
    kept = tuple(CutRow(i, 1, False) for i in range(60))
    file.write(1, 1, [FragmentRow(unmerged=1, dropped=0, lost=0, after=99, sent=sent, kept=kept)])
    found = read_counters(file.path).rows[0]
    assert (found.sent, found.kept) == (sent, kept[-30:])
    file.close()
