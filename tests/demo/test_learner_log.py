"""Notes are read back as they were written, also those of a process that was killed in the middle of a line."""

import errno
import json
import os
from io import FileIO
from pathlib import Path

import pytest

from zdiloco.demo.learner_log import LearnerLog, StepNote, log_path, losses_of, read_notes
from zdiloco.errors import StoreError
from zdiloco.units import MemberKey

FACTS = {"name": "a", "incarnation": "00000000000000ff", "shard": 0}


DONE = {"progress": 1.0}
LOST = "notes of steps are lost for now why='No space left on device'"


class Full:
    """A file on a disk with room for so many bytes."""

    def __init__(self, file: FileIO, room: int) -> None:
        self._inner, self.room = file, room

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._inner.write(data[: self.room])
        self.room -= taken
        return taken

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def written(path: Path, clock: Clock, steps: int, step_s: float = 0.125) -> LearnerLog:
    """A log with so many steps of `step_s` seconds each, calls of 1 ms, losses 5, 4.9, 4.8 ..."""
    log = LearnerLog(path, FACTS, clock=clock)
    for index in range(steps):
        clock.now += step_s
        note = StepNote(loss=5 - 0.1 * index, tokens=768, step_s=step_s, call_s=0.001)
        log.step(note, lambda: {"progress": clock.now / 1000, "bytes_up": 7, "bytes_down": 9})
    return log


def test_losses_of_a_run_folder_are_in_wall_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is no learner's log, or none of this version, is passed over and named."""
    folder = tmp_path / "learners"
    with written(folder / "a-1.jsonl", Clock(), 4):
        pass
    start = '{"t":2,"kind":"start","wall":1002,"name":"b","incarnation":"07"}\n'
    line = '{"t":%s,"kind":"steps","step":1,"steps":1,"loss":%s,"tokens":4,"step_us":[9],"call_us":[1],'
    line += '"progress":0.1,"bytes_up":1,"bytes_down":2}\n'
    (folder / "b-7.jsonl").write_text(start + line % (3, "2.5") + line % (4, "NaN"))
    (folder / "c-7.jsonl").write_text(start + line % (3, '"two"'))
    (folder / "d-7.jsonl").write_text("{}\n")
    a, b = losses_of(tmp_path)
    assert (a[0], [loss for _, loss in a[1]]) == ("a", [4.85])
    assert b == ("b", [(1003.0, 2.5)])
    assert [word in caplog.text for word in ("a-1", "b-7", "c-7.jsonl", "d-7.jsonl")] == [False, False, True, True]
    assert losses_of(tmp_path / "nowhere") == []


def test_notes_come_back(tmp_path: Path) -> None:
    path, clock = tmp_path / "learners" / "a.jsonl", Clock()
    log = written(path, clock, 13)
    log.flush({"progress": 1.0, "bytes_up": 70, "bytes_down": 90})
    clock.now += 1
    log.end({"reason": "the target is reached", "steps": 13})
    notes = read_notes(path)
    assert (notes.name, notes.incarnation, notes.steps, notes.tokens) == ("a", FACTS["incarnation"], 13, 13 * 768)
    assert (notes.joined_at, notes.ended_at) == (100.0, 102.625)
    assert (notes.bytes_up, notes.bytes_down, notes.end_reason) == (70, 90, "the target is reached")
    assert notes.step_s == [0.125] * 13
    assert notes.call_s == [0.001] * 13
    assert [round(loss, 3) for _, _, loss in notes.loss] == [4.85, 4.45, 4.05, 3.8]
    assert notes.loss[-1][1] == 1.0
    log.end({"reason": "again", "steps": 13})
    assert read_notes(path).end_reason == "the target is reached"


def test_lines_are_written_some_times_a_second_and_not_at_every_step(tmp_path: Path) -> None:
    clock = Clock()
    with written(tmp_path / "a.jsonl", clock, 100, step_s=0.0625):
        assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 1 + 12


@pytest.mark.parametrize("room", [0, 1, 90])
def test_a_full_disk_costs_lines_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    """Room for so many bytes, then none, then enough again: what was refused is lost, all else can be read."""
    path, clock = tmp_path / "a.jsonl", Clock()
    log = written(path, clock, 8)
    before = read_notes(path)
    full = Full(log._file, room)
    monkeypatch.setattr(log, "_file", full)
    for _ in range(3):
        log.step(StepNote(loss=9.0, tokens=768, step_s=1.0, call_s=0.001), dict)
        clock.now += 1
    full.room = 10**6
    log.step(StepNote(loss=1.0, tokens=768, step_s=1.0, call_s=0.001), lambda: {"bytes_up": 1, "bytes_down": 1, **DONE})
    log.end({"reason": "the end", "steps": 12})
    notes = read_notes(path)
    assert notes.end_reason == "the end"
    assert notes.steps == before.steps + 1
    assert notes.loss[-1][2] == 1.0
    assert [record.message for record in caplog.records].count(LOST) == 1


@pytest.mark.parametrize("cut", [2, 40, 100])
def test_half_a_line_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.jsonl"
    with written(path, Clock(), 10):
        data = path.read_bytes()
        whole = read_notes(path)
    path.write_bytes(data[:-cut])
    notes = read_notes(path)
    assert whole.steps == 8
    assert notes.steps == 4
    assert notes.end_reason == ""


@pytest.mark.parametrize(
    "text", ["", "x", json.dumps({"kind": "steps"}), '{"kind":"start","t":1}', '[1]\n{"kind":"start","t":1}']
)
def test_what_is_no_log_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"a\.jsonl"):
        read_notes(path)


def test_a_missing_log_and_an_unusable_place_are_errors_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot read"):
        read_notes(tmp_path / "nothing.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        LearnerLog(tmp_path / "file" / "a.jsonl", FACTS)


def test_the_log_lies_beside_the_counters(tmp_path: Path) -> None:
    assert log_path(tmp_path, MemberKey("a", 255)) == tmp_path / "learners" / "a-00000000000000ff.jsonl"
