"""The journal: a line for every round, in order; never a reason to wait or to fail."""

import errno
import json
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from zdiloco.core.machine import Merge, Note, SyncerAction
from zdiloco.core.rounds import Round
from zdiloco.errors import StoreError
from zdiloco.node.journal import FILE, Journal, read_journal
from zdiloco.units import Epoch, Merged, Stamp


@dataclass
class Desk:
    round: Round | None


def closing(fragment: int, version: int) -> Merge:
    merged = (Merged("a", 10, version, 24, 240), Merged("b", 11, version, 20, 200))
    return Merge(fragment=fragment, stamp=Stamp(Epoch(3, 9), version), parts=(), merged=merged)


def round_of(fragment: int, version: int, quorum_at: float | None) -> Round:
    return Round(fragment=fragment, version=version, called_at=50.0, why="everybody is in", quorum_at=quorum_at)


def test_a_round_is_told_with_its_members_its_reason_and_its_waits(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.start(49.0, {"run_id": "r"})
    actions: list[SyncerAction] = [Note(what="closes", why=""), closing(0, 1), closing(1, 4)]
    journal.look(53.0, actions, [Desk(round_of(0, 1, 51.0)), Desk(round_of(1, 4, None))])
    journal.close(60.0, {"reason": "done"})
    start, first, second, end = read_journal(tmp_path)
    assert (start["kind"], start["t"], start["run_id"]) == ("start", 49.0, "r")
    assert start["wall"] > 1e9
    assert first == {
        "kind": "round", "t": 53.0, "fragment": 0, "epoch": 3, "version": 1, "tokens": 440, "why": "everybody is in",
        "members": [["a", "000000000000000a", 24, 240], ["b", "000000000000000b", 20, 200]],
        "quorum_s": 1.0, "grace_s": 2.0,
    }  # fmt: skip
    assert (second["fragment"], second["version"], second["quorum_s"], second["grace_s"]) == (1, 4, 3.0, 0.0)
    assert (end["kind"], end["lost_lines"], end["reason"]) == ("end", 0, "done")


def test_processes_of_one_run_go_on_in_the_same_file(tmp_path: Path) -> None:
    for moment in (1.0, 2.0):
        journal = Journal(tmp_path)
        journal.start(moment, {})
        journal.close(moment, {})
        journal.close(moment, {})
    assert [line["kind"] for line in read_journal(tmp_path)] == ["start", "end"] * 2


def test_a_full_queue_loses_lines_and_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk stands still: nobody waits for it."""
    opened, go_on = threading.Event(), threading.Event()
    really_open = Path.open

    def slow_open(path: Path, *args: str, **kwargs: str) -> object:
        opened.set()
        assert go_on.wait(10)
        return really_open(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", slow_open)
    journal = Journal(tmp_path, capacity=2)
    journal.write({"kind": "first"})
    assert opened.wait(10)
    for number in range(5):
        journal.write({"kind": "more", "number": number})
    assert journal.lost == 3
    go_on.set()
    journal.close(1.0, {})
    monkeypatch.undo()
    lines = list(read_journal(tmp_path))
    assert [line.get("number") for line in lines if line["kind"] == "more"] == [0, 1]


def test_a_disk_that_fails_is_said_once_and_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        journal = Journal(tmp_path / "nowhere")
        for moment in range(5):
            journal.start(float(moment), {})
        journal.close(9.0, {})
    assert journal.lost == 6
    assert len([record for record in caplog.records if "the journal loses lines" in record.getMessage()]) == 1
    with pytest.raises(StoreError, match="cannot read the journal"):
        list(read_journal(tmp_path / "nowhere"))


def test_a_disk_that_has_room_again_gets_lines_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice it is full, once in the middle of a line; what was lost is counted, and said once."""
    really_open, tried = Path.open, threading.Semaphore(0)
    full = threading.Event()

    def open_on_a_full_disk(path: Path, *args: str, **kwargs: str) -> object:
        try:
            if not full.is_set():
                return really_open(path, *args, **kwargs)
            with really_open(path, *args, **kwargs) as file:
                file.write('{"kind":"hal')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            tried.release()

    monkeypatch.setattr(Path, "open", open_on_a_full_disk)
    journal = Journal(tmp_path, try_again_s=0.0)
    with caplog.at_level(logging.WARNING):
        for number, is_full in enumerate([False, True, True, False, True, False]):
            full.set() if is_full else full.clear()
            journal.write({"kind": "more", "number": number})
            assert tried.acquire(timeout=10)
        journal.close(1.0, {})
    monkeypatch.undo()
    lines = list(read_journal(tmp_path))
    assert [line.get("number") for line in lines] == [0, 3, 5, None]
    assert (lines[-1]["lost_lines"], journal.lost) == (3, 3)
    assert len([record for record in caplog.records if "the journal loses lines" in record.getMessage()]) == 1


def test_a_disk_that_has_refused_is_left_alone_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []

    def refuse(path: Path, *args: str, **kwargs: str) -> object:
        attempts.append(path.name)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", refuse)
    journal = Journal(tmp_path, try_again_s=3600.0)
    for number in range(50):
        journal.write({"kind": "more", "number": number})
    ends = time.monotonic() + 10
    while journal.lost < 50:
        assert time.monotonic() < ends
        threading.Event().wait(0.001)
    assert attempts == [FILE]
    journal.close(1.0, {})
    assert attempts == [FILE] * 2, "the last line is tried"


def test_half_a_line_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    whole = json.dumps({"kind": "round", "t": 1})
    (tmp_path / FILE).write_text(f'{whole}\n{{"kind":"rou\n[1]\n{{"t":3}}\n{whole}\n{whole[:-3]}')
    assert list(read_journal(tmp_path)) == [{"kind": "round", "t": 1}] * 2
