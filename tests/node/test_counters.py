"""The counters of a learner: whole after a death at any moment, and read back as written."""

import mmap
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zdiloco.core.ledger import CutRow, FragmentRow
from zdiloco.errors import StoreError
from zdiloco.node.counters import CounterFile, counters_path, read_counters
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
    file._map = DyingMap(file._map, stores)  # type: ignore[assignment]
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
from zdiloco.node.counters import CounterFile
from zdiloco.units import MemberKey
file = CounterFile(Path(sys.argv[1]), MemberKey("us-east-0", 7), 1)
for step in range(1, 1000):
    file.write(step, step, [FragmentRow(unmerged=step, dropped=0, lost=0, after=0)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.proc
def test_sigkill_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], timeout=30, check=False)
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
    with pytest.raises(StoreError, match="cannot make the counter file"):
        CounterFile(tmp_path, KEY, 1)
