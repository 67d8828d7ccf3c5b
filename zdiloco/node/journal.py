"""What happened in a run, for people and reports: a line of JSON a round in `journal.jsonl` of the run folder.

Rule: nothing depends on it. Lines wait in a bounded queue for a thread of their own; when it is full, or the disk
fails, they are counted as lost. A disk that fails is said once, and tried again in a while. `t` is the monotonic clock
of the syncer's machine; a `start` line, one for each syncer process, ties it to wall time. Epochs tell the processes'
lines apart.
"""

import json
import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from zdiloco.core.machine import Merge, SyncerAction
from zdiloco.core.rounds import Round
from zdiloco.errors import StoreError

log = logging.getLogger(__name__)

FILE = "journal.jsonl"
CAPACITY = 4096
"""Lines that may wait for the disk: minutes of rounds."""
CLOSE_S = 5.0
TRY_AGAIN_S = 5.0
"""A disk that has refused a line is left alone for so long."""


class DeskView(Protocol):
    """What of a fragment's place at the syncer a line is made of."""

    @property
    def round(self) -> Round | None: ...


class Journal:
    """The open journal of one syncer process. Every method returns at once; `close` waits for the disk, with an end."""

    def __init__(self, run_dir: Path, capacity: int = CAPACITY, try_again_s: float = TRY_AGAIN_S) -> None:
        self._path = run_dir / FILE
        self._lines: queue.Queue[str | None] = queue.Queue(capacity)
        self._try_again_s = try_again_s
        self._overflowed = self._unwritten = 0  # each counted by one thread
        self._warned = self._torn = self._closing = False
        self._thread = threading.Thread(target=self._run, name="zdiloco-journal", daemon=True)
        self._thread.start()

    def start(self, now: float, facts: Mapping[str, Any]) -> None:
        """Say that a syncer process begins."""
        self.write({"kind": "start", "t": now, "wall": time.time(), **facts})

    def look(self, now: float, actions: Iterable[SyncerAction], desks: Sequence[DeskView]) -> None:
        """Note every round that these actions of the machine close."""
        for action in actions:
            if isinstance(action, Merge):
                self.write(_round(now, action, desks[action.fragment].round))

    def write(self, record: Mapping[str, Any]) -> None:
        """Queue one line; when the queue is full the line is lost, and counted."""
        try:
            self._lines.put_nowait(json.dumps(record, separators=(",", ":")) + "\n")
        except queue.Full:
            self._overflowed += 1

    @property
    def lost(self) -> int:
        """Lines that are not in the file: the queue was full, or the disk refused them."""
        return self._overflowed + self._unwritten

    def close(self, now: float, facts: Mapping[str, Any]) -> None:
        """Write the last line and let what waits reach the file, for at most `CLOSE_S`. Harmless when repeated."""
        if not self._thread.is_alive():
            return
        self._closing = True
        self.write({"kind": "end", "t": now, "lost_lines": self.lost, **facts})
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        failed_at = float("-inf")
        while (line := self._lines.get()) is not None:
            if time.monotonic() < failed_at + self._try_again_s and not self._closing:
                self._unwritten += 1
            elif not self._append(line):
                failed_at = time.monotonic()

    def _append(self, line: str) -> bool:
        """Write one line; False: the disk refuses it."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n" + line if self._torn else line)
        except OSError as error:
            self._unwritten += 1
            self._torn = True  # perhaps: half of the line may have got there
            if not self._warned:
                self._warned = True
                why = error.strerror or str(error)
                log.warning("the journal loses lines for now path=%s why=%r", self._path, why)
            return False
        self._torn = False
        return True


def _round(now: float, merge: Merge, rnd: Round | None) -> dict[str, Any]:
    """The line of a round that closes at `now`: who is in it, why it closes, how long quorum and grace window took."""
    record: dict[str, Any] = {
        "kind": "round",
        "t": now,
        "fragment": merge.fragment,
        "epoch": merge.stamp.epoch.counter,
        "version": merge.stamp.version,
        "members": [[m.name, f"{m.incarnation:016x}", m.steps, m.tokens] for m in merge.merged],
        "tokens": sum(m.tokens for m in merge.merged),
    }
    if rnd is not None:
        quorum_at = rnd.quorum_at if rnd.quorum_at is not None else now
        record |= {"why": rnd.why, "quorum_s": quorum_at - rnd.called_at, "grace_s": now - quorum_at}
    return record


def read_journal(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's journal, in order; half a line, which a kill leaves, is passed over.

    Raises StoreError where there is no journal.
    """
    path = run_dir / FILE
    try:
        text = path.read_text(encoding="utf-8", errors="replace")  # half a line may end within a character
    except OSError as error:
        raise StoreError(f"cannot read the journal {path}: {error.strerror}") from error
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("kind"), str):
            yield record
