"""Orders: read again when they change; a death comes at the place, after as many passes as were asked for."""

import os
import signal
from pathlib import Path

import pytest

from zdiloco.chaos import inside
from zdiloco.chaos.inside import Orders, Standing, adoptions
from zdiloco.rundir.disk import Disk
from zdiloco.units import Epoch, Stamp


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Instead of dying, this process writes down that it would have."""
    found: list[int] = []
    monkeypatch.setattr(inside.os, "kill", lambda pid, number: found.append(number) if pid == os.getpid() else None)
    return found


def test_a_place_is_passed_as_often_as_it_was_said(tmp_path: Path, deaths: list[int]) -> None:
    standing = Standing(tmp_path / "a.orders")
    standing.pass_by("merge")
    Orders(die_at="merge", passes=2).write(tmp_path / "a.orders")
    for place in ("write", "merge", "merge"):
        standing.pass_by(place)
    assert deaths == []
    standing.pass_by("merge")
    assert deaths == [signal.SIGKILL]


def test_orders_that_change_are_obeyed_at_once(tmp_path: Path, deaths: list[int]) -> None:
    path = tmp_path / "a.orders"
    standing = Standing(path)
    assert standing.now == Orders()
    Orders(die_at="merge", passes=1).write(path)
    standing.pass_by("merge")
    Orders(disk="full", ahead_s=-3600.0).write(path)
    assert (standing.now.disk, standing.now.ahead_s) == ("full", -3600.0)
    Orders(die_at="merge", passes=1).write(path)
    standing.pass_by("merge")  # counted anew
    assert deaths == []
    standing.pass_by("merge")
    assert deaths == [signal.SIGKILL]


def test_every_place_is_there() -> None:
    for owner, name in {**inside.SYNCER_PLACES, **inside.LEARNER_PLACES}.values():
        assert callable(getattr(owner, name))


def test_adoptions_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.orders"
    assert adoptions(path) == []
    (tmp_path / "a.adopted").write_text("12 0 3 99 7\n13 1 4 5 8\n")
    assert adoptions(path) == [(12, 0, Stamp(Epoch(3, 99), 7)), (13, 1, Stamp(Epoch(4, 5), 8))]


def test_half_a_file_is_written_before_a_death_there(
    tmp_path: Path, deaths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside.Disk, "write", inside.Disk.write)  # put back afterwards
    path, standing = tmp_path / "a.orders", Standing(tmp_path / "a.orders")
    inside._tear(standing)
    Orders(die_at=inside.HALF, passes=1).write(path)
    out = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    Disk().write(out, memoryview(b"abcdef"))
    assert deaths == []
    monkeypatch.setattr(inside, "_die", lambda: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        Disk().write(out, memoryview(b"ghijkl"))
    os.close(out)
    assert (tmp_path / "file").read_bytes() == b"abcdefghi"
