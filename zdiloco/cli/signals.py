"""What SIGTERM and SIGINT do to a command that works: the first asks it to leave in order, the second ends it at once.

Rule: a handler sets what others look at and calls one function that may be called from a handler; it never waits.
"""

import logging
import os
import signal
from collections.abc import Callable
from types import FrameType

log = logging.getLogger("zdiloco.cli")

INTERRUPTED = 130


def interrupt_on_any() -> None:
    """Have SIGTERM, SIGHUP and SIGINT interrupt (KeyboardInterrupt), so that whoever cleans up then, does.

    SIGINT, too: a shell without a terminal starts what it puts into the background with SIGINT ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, interrupt)


class Leaving:
    """Installed for the whole life of a process. `on_ask` hears the name of the first signal, once."""

    def __init__(self, on_ask: Callable[[str], None]) -> None:
        self._on_ask = on_ask
        self.asked = ""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(INTERRUPTED)  # asked twice: now, whatever hangs
        self.asked = signal.Signals(number).name
        self._on_ask(self.asked)

    def becomes(self, on_ask: Callable[[str], None]) -> None:
        """From here on this is what hears of the first signal; of one that has come already, at once."""
        self._on_ask = on_ask
        if self.asked:
            on_ask(self.asked)

    def reads_again(self, look: Callable[[], None]) -> None:
        """From here on SIGHUP means: read anew who may connect."""
        signal.signal(signal.SIGHUP, lambda number, frame: look())

    def exit_code(self, otherwise: int) -> int:
        """What the process should end with: 130 after an interrupt, 0 after a leave in order, else `otherwise`.

        After a signal the log's last line says which, and with what code.
        """
        code = INTERRUPTED if otherwise == 0 and self.asked == "SIGINT" else otherwise
        if self.asked:
            log.info("ends after %s code=%d", self.asked, code)
        return code
