"""What happened in a run, for people and reports: the records of `zdiloco.trace`, a line each, in `journal.jsonl`.

Rule: nothing depends on it. Records wait in a bounded queue for a thread of their own; when it is full, or the disk
fails, they are counted as lost. A disk that fails is said once, and tried again in a while. `t` is the monotonic clock
of the syncer's machine; a `start` line, one for each syncer process, ties it to wall time. Epochs tell the processes'
lines apart. What is written of a second is bounded: learners' steps are thinned out (`zdiloco.scribe`), and all other
lines belong to a call, a contribution, a round, or a member that comes or goes. Whatever peers do, no more than
`LINES_PER_S` are written on average beside those of rounds; the rest is lost, and counted.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zdiloco import trace
from zdiloco.core.machine import SyncerAction, SyncerEvent
from zdiloco.core.syncer import SyncerMachine
from zdiloco.rundir.lines import read_lines
from zdiloco.scribe import Scribe
from zdiloco.trace import FILE

log = logging.getLogger(__name__)

CAPACITY = 4096
"""Lines that may wait for the disk: seconds of a large run, minutes of a small one."""
LINES_PER_S = 1000.0
AT_ONCE = 256
"""Lines that are written by one call of the system."""
CLOSE_S = 5.0
TRY_AGAIN_S = 5.0
"""A disk that has refused a line is left alone for so long."""


class Journal:
    """The open journal of one syncer process. Every method returns at once; `close` waits for the disk, with an end."""

    def __init__(self, run_dir: Path, capacity: int = CAPACITY, try_again_s: float = TRY_AGAIN_S) -> None:
        self._path = run_dir / FILE
        self._lines: queue.Queue[trace.Record | None] = queue.Queue(capacity)
        self._try_again_s = try_again_s
        self._scribe = Scribe()
        self._room, self._room_at = float(CAPACITY), 0.0
        self._overflowed = self._unwritten = 0  # each counted by one thread
        self._warned = self._closing = False
        self._torn = _ends_torn(self._path)
        self._thread = threading.Thread(target=self._run, name="zdiloco-journal", daemon=True)
        self._thread.start()

    def look(
        self, now: float, event: SyncerEvent, actions: Sequence[SyncerAction], machine: SyncerMachine
    ) -> None:
        """Note what this event has changed, and what the machine has decided."""
        for record in self._scribe.look(now, event, actions, machine):
            if self._has_room(record):
                self.write(record)
            else:
                self._overflowed += 1

    def _has_room(self, record: trace.Record) -> bool:
        """Whether so many lines a second may be written; a peer that says hello without end fills no disk."""
        if isinstance(record, trace.Merge | trace.Ending | trace.Sealed):
            return True
        self._room = min(float(CAPACITY), self._room + LINES_PER_S * (record.t - self._room_at))
        self._room_at = record.t
        if self._room < 1:
            return False
        self._room -= 1
        return True

    def write(self, record: trace.Record) -> None:
        """Queue one record; when the queue is full it is lost, and counted."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._overflowed += 1

    @property
    def lost(self) -> int:
        """Lines that are not in the file: the queue was full, or the disk refused them."""
        return self._overflowed + self._unwritten

    def close(self, now: float, reason: str, node: dict[str, Any] | None = None) -> None:
        """Write the last line and let what waits reach the file, for at most `CLOSE_S`. Harmless when repeated."""
        if not self._thread.is_alive():
            return
        self._closing = True
        self.write(trace.End(t=now, lost_lines=self.lost, reason=reason, node=node))
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        failed_at = float("-inf")
        over = False
        while not over:
            batch, over = self._take()
            if not batch:
                continue
            if time.monotonic() < failed_at + self._try_again_s and not self._closing:
                self._unwritten += len(batch)
            elif not self._append(batch):
                failed_at = time.monotonic()

    def _take(self) -> tuple[list[trace.Record], bool]:
        """Wait for a record and take what else is there. Returns them, and whether no more will come."""
        batch: list[trace.Record] = []
        record = self._lines.get()
        while record is not None:
            batch.append(record)
            if len(batch) == AT_ONCE or self._lines.empty():
                return batch, False
            record = self._lines.get()
        return batch, True

    def _append(self, batch: Sequence[trace.Record]) -> bool:
        """Write some lines; False: the disk refuses them."""
        data = b"".join(trace.line_of(record) for record in batch)
        try:
            with self._path.open("ab") as file:
                file.write(b"\n" + data if self._torn else data)
        except OSError as error:
            self._unwritten += len(batch)
            self._torn = True  # perhaps: half of a line may have got there
            if not self._warned:
                self._warned = True
                why = error.strerror or str(error)
                log.warning("the journal loses lines for now path=%s why=%r", self._path, why)
            return False
        self._torn = False
        return True


def _ends_torn(path: Path) -> bool:
    """Whether a process that was killed has left half a line at the end."""
    try:
        with open(path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def read_journal(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's journal, in order; half a line, which a kill leaves, is passed over.

    Raises StoreError where there is no journal.
    """
    lines = read_lines(run_dir / FILE, "journal")
    yield from (line for line in lines if isinstance(line.get("kind"), str))
