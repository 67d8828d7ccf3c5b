"""A log record is one line: time, level, subject, what, why in brackets, figures."""

import io
import logging
import os
import re
import sys
from pathlib import Path

import pytest

from zdiloco.cli import logs, main
from zdiloco.cli.logs import OneLine


def line_of(message: str, *arguments: object, name: str = "zdiloco.node.syncer", level: int = logging.INFO) -> str:
    record = logging.LogRecord(name, level, "file.py", 1, message, arguments, None)
    return OneLine().format(record)


def test_the_line() -> None:
    line = line_of("a joins why=%r order=%d", "member 1 of epoch 2", 3)
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO syncer a joins \(member 1 of epoch 2\) order=3", line)


@pytest.mark.parametrize(
    ("message", "arguments", "end"),
    [
        ("syncer serves port=%d", (5700,), " INFO syncer serves port=5700"),
        ("x why=%r", ("it's gone",), " INFO syncer x (it's gone)"),
        ("two\n  lines", (), " INFO syncer two lines"),
        ("x why=''", (), " INFO syncer x ()"),
    ],
)
def test_texts_of_every_kind(message: str, arguments: tuple[object, ...], end: str) -> None:
    assert line_of(message, *arguments).endswith(end)


def test_what_goes_to_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line has its priority, that of a traceback, too, and no clock; only where systemd has named this stream."""
    with (tmp_path / "journal").open("w+") as journal, (tmp_path / "file").open("w") as file:
        there = os.fstat(journal.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:{there.st_ino}")
        assert [logs.is_journal(each) for each in (journal, file, io.StringIO())] == [True, False, False]
        monkeypatch.setattr(sys, "stderr", journal)
        before = logging.getLogger("zdiloco").handlers[:]
        try:
            logs.configure("debug")
            for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
                logging.getLogger("zdiloco.node.syncer").log(level, "a joins")
            try:
                raise ValueError("oh")
            except ValueError:
                logging.getLogger("zdiloco.node.syncer").exception("it fails")
        finally:
            logging.getLogger("zdiloco").handlers[:] = before
        assert main.run(["status"]) == 2
        journal.seek(0)
        lines = journal.read().splitlines()
    assert lines[:4] == [
        f"<{p}>{n} syncer a joins" for p, n in ((7, "DEBUG"), (6, "INFO"), (4, "WARNING"), (3, "ERROR"))
    ]
    assert "<3>ValueError: oh" in lines
    assert lines[-2].startswith("<3>zdiloco: ")
    assert {line[:3] for line in lines[4:-1]} == {"<3>"}


def test_a_traceback_follows_its_line() -> None:
    try:
        raise ValueError("oh")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("zdiloco.node.loop", logging.ERROR, "file.py", 1, "failed", (), info)
    first, second, *_, last = OneLine().format(record).splitlines()
    assert first.endswith("ERROR loop failed")
    assert (second, last) == ("Traceback (most recent call last):", "ValueError: oh")


def test_lines_go_to_standard_error_from_the_level_on(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning")
    logs.configure("warning")  # twice is once
    logging.getLogger("zdiloco.node.syncer").info("not this")
    logging.getLogger("zdiloco.node.syncer").warning("but this")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.endswith("WARNING syncer but this\n")


def bounded(monkeypatch: pytest.MonkeyPatch) -> tuple[logs.Bounded, io.StringIO]:
    monkeypatch.setattr(logs, "LINES_AT_ONCE", 5)
    monkeypatch.setattr(logs, "LINES_PER_S", 2.0)
    stream = io.StringIO()
    return logs.Bounded(stream), stream


def say(handler: logging.Handler, at: float, level: int = logging.INFO) -> None:
    record = logging.LogRecord("zdiloco.node.syncer", level, "file.py", 1, "refused", (), None)
    record.created = at
    handler.emit(record)


def test_a_flood_of_lines_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, stream = bounded(monkeypatch)
    for number in range(1000):
        say(handler, 100.0 + number / 1000)
    say(handler, 200.0)
    lines = stream.getvalue().splitlines()
    said = [re.fullmatch(r"(\d+) lines are left out why='more than 2 a second'", line) for line in lines]
    assert 5 + 1 <= lines.count("refused") <= 5 + 3
    assert sum(int(found[1]) for found in said if found) == 1001 - lines.count("refused")
    assert lines[-1] == "refused"


def test_errors_and_what_was_asked_for_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, stream = bounded(monkeypatch)
    for level in (logging.DEBUG, logging.ERROR):
        for _ in range(50):
            say(handler, 100.0, level)
    assert stream.getvalue().count("refused") == 100
