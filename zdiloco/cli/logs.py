"""How log lines look: one line an event, `HH:MM:SS LEVEL subject what (why) key=value`, on standard error.

Rule: the library only logs; who listens, and where to, is decided here and nowhere else. Whatever peers do, a log
grows at a bounded rate: beyond it lines are counted and left out, and said to be. Where standard error is the journal
of systemd, each line begins with its priority, which that takes off, and has no clock, which that has itself.
"""

import logging
import os
import re
import sys
import time
from typing import TextIO

LINES_AT_ONCE = 1000
LINES_PER_S = 50.0
_WHY = re.compile(r"""\s+why=(?:'(?P<a>[^']*)'|"(?P<b>[^"]*)")""")


def is_journal(stream: TextIO) -> bool:
    """Whether what is written to a stream goes straight to the journal: systemd has told device and inode of that."""
    try:
        there = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file, or closed
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{there.st_dev}:{there.st_ino}"


def to_journal(text: str, level: int) -> str:
    """A text whose every line tells its priority, as syslog counts: 7 debug, 6 info, 4 warning, 3 error."""
    priority = 3 if level >= logging.ERROR else 4 if level >= logging.WARNING else 6 if level >= logging.INFO else 7
    return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


class OneLine(logging.Formatter):
    """Turns a record into one line; `why='text'` goes into round brackets, line ends become spaces. `journal`: the line
    is for systemd's."""

    def __init__(self, *, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end. A traceback, where there is one, follows on lines of its own."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        what = " ".join(record.getMessage().split())
        what = _WHY.sub(lambda found: f" ({found['a'] if found['a'] is not None else found['b']})", what)
        subject = record.name.rpartition(".")[2]
        line = f"{record.levelname} {subject} {what.removeprefix(f'{subject} ')}"
        line = line if self._journal else f"{clock} {line}"
        text = f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
        return to_journal(text, record.levelno) if self._journal else text


class Bounded(logging.StreamHandler[TextIO]):
    """Writes at most `LINES_AT_ONCE` lines in a burst, `LINES_PER_S` in the long run; all above WARNING come through.

    Lines below INFO are not counted: they were asked for.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._room, self._counted_at = float(LINES_AT_ONCE), 0.0
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it; before it, say how many were left out."""
        passed = max(0.0, record.created - self._counted_at)
        self._room, self._counted_at = min(LINES_AT_ONCE, self._room + passed * LINES_PER_S), record.created
        if logging.INFO <= record.levelno <= logging.WARNING:
            if self._room < 1:
                self._left_out += 1
                return
            self._room -= 1
        if self._left_out:
            count, self._left_out = self._left_out, 0
            what = "%d lines are left out why='more than %g a second'"
            super().emit(logging.LogRecord(record.name, logging.WARNING, "", 0, what, (count, LINES_PER_S), None))
        super().emit(record)


def configure(level: str) -> None:
    """Have everything of zdiloco from `level` on ('debug', 'info', ...) written to standard error."""
    handler = Bounded(sys.stderr)
    handler.setFormatter(OneLine(journal=is_journal(sys.stderr)))
    root = logging.getLogger("zdiloco")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
