"""The disk: judged by figures, and tried for real without leaving anything."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.doctor.parts import bad, need
from zdiloco.doctor import disk as disks
from zdiloco.doctor.disk import Disk, judge_disk, read_disk
from zdiloco.doctor.finding import Side, Verdict
from zdiloco.doctor.needs import Role, Writes

HERE, WARN, FAIL = Side.HERE, Verdict.WARN, Verdict.FAIL
NEED = need(disk=Writes(nbytes=1e9, bytes_s=1e6, key="sync.checkpoint_every_s", every_s=10.0))
GOOD = Disk(place=Path("/run"), free_bytes=1e10, bytes_s=1e8, sync_s=0.01)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, {}),
        ({"refused": "Read-only file system"}, {"disk place": FAIL}),
        ({"free_bytes": 1.5e9}, {"disk space": WARN}),
        ({"free_bytes": 0.5e9}, {"disk space": FAIL}),
        ({"bytes_s": 1.5e6}, {"disk speed": WARN}),
        ({"bytes_s": 0.5e6}, {"disk speed": FAIL}),
        ({"sync_s": 2.0}, {"disk speed": WARN}),
        ({"bytes_s": None}, {}),
    ],
)
def test_a_disk_is_judged_by_what_the_role_writes(changes: dict[str, object], wanted: dict[str, Verdict]) -> None:
    found = judge_disk(replace(GOOD, **changes), NEED)
    assert bad(found) == {(check, HERE): verdict for check, verdict in wanted.items()}


def test_a_slower_beat_is_the_fix_of_a_slow_disk() -> None:
    slow = judge_disk(replace(GOOD, bytes_s=0.5e6), NEED)
    assert [finding.fix for finding in slow if finding.fix] == ["--set sync.checkpoint_every_s=40"]


def test_a_relay_has_no_disk() -> None:
    assert [finding.verdict for finding in judge_disk(GOOD, need(Role.RELAY))] == [Verdict.UNKNOWN]


def test_a_folder_that_is_not_there_yet_is_tried_above_and_nothing_is_left(tmp_path: Path) -> None:
    tried = read_disk(tmp_path / "a" / "b")
    assert tried.place == tmp_path
    assert tried.refused == ""
    assert min(tried.free_bytes, tried.bytes_s, tried.sync_s) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    assert read_disk(tmp_path / "run" / "inner").refused == "Not a directory"


def test_a_path_that_no_system_takes_is_tried_above(tmp_path: Path) -> None:
    assert read_disk(tmp_path / ("x" * 5000) / "run").place == tmp_path


def test_a_disk_that_never_comes_back_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(disks, "HANGS_S", 0.05)
    monkeypatch.setattr(disks.os, "fsync", lambda descriptor: free.wait(30.0))
    try:
        assert read_disk(tmp_path).refused == "no write has ended within 0.05 s"
    finally:
        free.set()
