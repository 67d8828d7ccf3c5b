"""The journal: lines in order; never a reason to wait or to fail."""

import errno
import json
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from zdiloco import trace
from zdiloco.core.machine import Received
from zdiloco.core.messages import Hello
from zdiloco.core.params import SyncParams
from zdiloco.errors import StoreError
from zdiloco.rundir.journal import CAPACITY, LINES_PER_S, Journal, read_journal
from zdiloco.sim.world import World
from zdiloco.trace import FILE
from zdiloco.units import MemberKey


def more(number: int) -> trace.Step:
    return trace.Step(t=1.0, who="a", step=number)


def test_a_run_is_told_from_its_start_to_its_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(trace.Start(t=49.0, wall=1e9, run_id="r", sync={"gamma": 0.5}))
    journal.write(more(3))
    journal.close(60.0, "done", {"insecure": False})
    assert trace.read_trace(tmp_path) == [
        trace.Start(t=49.0, wall=1e9, run_id="r", sync={"gamma": 0.5}),
        more(3),
        trace.End(t=60.0, reason="done", lost_lines=0, node={"insecure": False}),
    ]


def test_a_peer_that_says_hello_without_end_fills_no_disk(tmp_path: Path) -> None:
    """Each time under a new name: each is welcome, and no more of them are told than a second has room for."""
    world = World(SyncParams(), 1)
    world.join("a", 0.05)
    world.run(5.0)
    assert world.site is not None
    machine, journal = world.site.machine, Journal(tmp_path, capacity=100_000)
    hellos = CAPACITY + 3000
    for number in range(1, hellos + 1):
        now = 5.0 + number / 3000  # more than a second of them
        name = f"b-{number}"
        hello = Hello(name=name, incarnation=number, run_id="run", layout_digest="layout")
        event = Received(key=MemberKey(name, number), message=hello)
        journal.look(now, event, machine.handle(event, now), machine)
    journal.close(9.0, "")
    told = [record for record in trace.read_trace(tmp_path) if isinstance(record, trace.Joined)]
    most = CAPACITY + LINES_PER_S * hellos / 3000
    assert most - 10 <= len(told) <= most
    assert journal.lost >= hellos - most


def test_a_new_process_begins_on_a_line_of_its_own(tmp_path: Path) -> None:
    """The one before was killed in the middle of a line."""
    (tmp_path / FILE).write_bytes(trace.line_of(more(1)) + trace.line_of(more(2))[:-9])
    journal = Journal(tmp_path)
    journal.write(trace.Start(t=49.0))
    journal.close(60.0, "done")
    assert trace.read_trace(tmp_path)[:2] == [more(1), trace.Start(t=49.0)]
    assert [line["kind"] for line in read_journal(tmp_path)] == ["step", "start", "end"]


def test_processes_of_one_run_go_on_in_the_same_file(tmp_path: Path) -> None:
    for moment in (1.0, 2.0):
        journal = Journal(tmp_path)
        journal.write(trace.Start(t=moment))
        journal.close(moment, "")
        journal.close(moment, "")
    assert [line["kind"] for line in read_journal(tmp_path)] == ["start", "end"] * 2


def test_a_full_queue_loses_lines_and_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk stands still: nobody waits for it."""
    opened, go_on = threading.Event(), threading.Event()
    really_open = Path.open

    def slow_open(path: Path, *args: str, **kwargs: str) -> object:
        opened.set()
        assert go_on.wait(60)
        return really_open(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", slow_open)
    journal = Journal(tmp_path, capacity=2)
    journal.write(trace.Fault(t=1.0))
    assert opened.wait(60)
    for number in range(5):
        journal.write(more(number))
    assert journal.lost == 3
    go_on.set()
    journal.close(1.0, "")
    monkeypatch.undo()
    lines = list(read_journal(tmp_path))
    assert [line.get("step") for line in lines if line["kind"] == "step"] == [0, 1]


def test_a_disk_that_fails_is_said_once_and_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        journal = Journal(tmp_path / "nowhere")
        for moment in range(5):
            journal.write(trace.Start(t=float(moment)))
        journal.close(9.0, "")
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
                file.write(b'{"kind":"hal')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            tried.release()

    monkeypatch.setattr(Path, "open", open_on_a_full_disk)
    journal = Journal(tmp_path, try_again_s=0.0)
    with caplog.at_level(logging.WARNING):
        for number, is_full in enumerate([False, True, True, False, True, False]):
            full.set() if is_full else full.clear()
            journal.write(more(number))
            assert tried.acquire(timeout=60)
        journal.close(1.0, "")
    monkeypatch.undo()
    lines = list(read_journal(tmp_path))
    assert [line.get("step") for line in lines] == [0, 3, 5, None]
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
        journal.write(more(number))
    ends = time.monotonic() + 60
    while journal.lost < 50:
        assert time.monotonic() < ends
        threading.Event().wait(0.001)
    assert attempts == [FILE]
    journal.close(1.0, "")
    assert attempts == [FILE] * 2, "the last line is tried"


def test_half_a_line_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    whole = json.dumps({"kind": "merge", "t": 1})
    (tmp_path / FILE).write_text(f'{whole}\n{{"kind":"mer\n[1]\n{{"t":3}}\n{whole}\n{whole[:-3]}')
    assert list(read_journal(tmp_path)) == [{"kind": "merge", "t": 1}] * 2
