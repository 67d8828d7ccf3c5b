"""How log lines look: one line an event, `HH:MM:SS LEVEL subject what (why) key=value`, on standard error.

Rule: the library only logs; who listens, and where to, is decided here and nowhere else. Whatever peers do, a log
grows at a bounded rate: beyond it lines are counted and left out, and said to be.
"""

import logging
import re
import sys
import time
from typing import TextIO

LINES_AT_ONCE = 1000
LINES_PER_S = 50.0
_WHY = re.compile(r"""\s+why=(?:'(?P<a>[^']*)'|"(?P<b>[^"]*)")""")


class OneLine(logging.Formatter):
    """Turns a record into one line; `why='text'` goes into round brackets, line ends become spaces."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end. A traceback, where there is one, follows on lines of its own."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        what = " ".join(record.getMessage().split())
        what = _WHY.sub(lambda found: f" ({found['a'] if found['a'] is not None else found['b']})", what)
        subject = record.name.rpartition(".")[2]
        line = f"{clock} {record.levelname} {subject} {what.removeprefix(f'{subject} ')}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


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
    handler.setFormatter(OneLine())
    root = logging.getLogger("zdiloco")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
