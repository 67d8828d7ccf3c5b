"""How log lines look: one line an event, `HH:MM:SS LEVEL subject what (why) key=value`, on standard error.

Rule: the library only logs; who listens, and where to, is decided here and nowhere else.
"""

import logging
import re
import sys
import time

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


def configure(level: str) -> None:
    """Have everything of zdiloco from `level` on ('debug', 'info', ...) written to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    root = logging.getLogger("zdiloco")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
