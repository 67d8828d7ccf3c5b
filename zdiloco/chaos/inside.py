"""What is put into a process that chaos is made with: deaths at exact places, a disk and a wall clock that misbehave.

Rule: the orders are a small file that is looked at when a place is passed, so they can change while the process lives.
No decision of the process is touched, nor its monotonic clock. What its learner adopts is written down, line by line,
beside the orders, by a call of the system each: that outlives any death.
"""

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from zdiloco.node.learner_body import LearnerBody
from zdiloco.node.roads import Roads
from zdiloco.node.syncer_body import SyncerBody
from zdiloco.rundir.counters import CounterFile
from zdiloco.rundir.disk import Disk
from zdiloco.units import Epoch, Stamp

SLOW_S = 0.4
"""A slow disk takes so long to make something durable."""
SAVING = {"write": (Disk, "write"), "sync": (Disk, "sync"), "move": (Disk, "move"), "remove": (Disk, "remove")}
SYNCER_PLACES: dict[str, tuple[type, str]] = {
    **SAVING,
    "screen": (SyncerBody, "screen"),
    "merge": (SyncerBody, "merge"),
    "publish": (Roads, "cast_chunks"),
    "welcome": (SyncerBody, "published"),
    "cast": (Roads, "cast"),
}
LEARNER_PLACES: dict[str, tuple[type, str]] = {
    "snapshot": (LearnerBody, "now_snapshot"),
    "encode": (LearnerBody, "later_encode"),
    "prepare": (LearnerBody, "later_prepare"),
    "adopt": (LearnerBody, "now_adopt"),
    "count": (CounterFile, "write"),
}
"""Places by their names: a process that is to die there dies before the call."""
HALF = "half"
"""One more place of whoever saves: it dies with half of a file written."""
ADOPTED = ".adopted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """What is to go wrong. `die_at`: a place, passed `passes` times before; `disk`: '', 'full' or 'slow'.

    `ahead_s`: how far the wall clock is ahead, below zero behind.
    """

    die_at: str = ""
    passes: int = 0
    disk: str = ""
    ahead_s: float = 0.0

    def write(self, path: Path) -> None:
        """Put the orders in place, whole."""
        aside = path.with_suffix(".aside")
        aside.write_text(json.dumps(asdict(self)))
        os.replace(aside, path)


class Standing:
    """The orders as they stand, read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._orders = Orders()
        self._passed = 0

    @property
    def now(self) -> Orders:
        """What holds; without a file nothing goes wrong."""
        with suppress(OSError):
            found = os.stat(self._path)
            seen = (found.st_ino, found.st_mtime_ns)
            if seen != self._seen:
                before = self._orders
                self._orders, self._seen = Orders(**json.loads(self._path.read_bytes())), seen
                if (before.die_at, before.passes) != (self._orders.die_at, self._orders.passes):
                    self._passed = 0
        return self._orders

    def dies_at(self, place: str) -> bool:
        """The process passes a place. Returns whether it is to die there, now."""
        orders = self.now
        if orders.die_at != place:
            return False
        self._passed += 1
        return self._passed > orders.passes

    def pass_by(self, place: str) -> None:
        """The process passes a place: where it is to die, it does."""
        if self.dies_at(place):
            _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(path: Path) -> None:
    """Have this process obey the orders in the file `path`, for the rest of its life."""
    standing = Standing(path)
    for place, (owner, name) in {**SYNCER_PLACES, **LEARNER_PLACES}.items():
        _before(owner, name, partial(standing.pass_by, place))
    _tear(standing)
    _before(Disk, "write", lambda: _full(standing))
    _before(Disk, "sync", lambda: _slow(standing))
    for clock in ("time", "time_ns"):
        _ahead(clock, standing)
    _note_adoptions(path.with_suffix(ADOPTED))


def _before(owner: type, name: str, look: Callable[[], None]) -> None:
    inner = getattr(owner, name)

    def outer(*args: Any, **named: Any) -> Any:
        look()
        return inner(*args, **named)

    _put(owner, name, outer)


def _put(owner: type, name: str, method: Callable[..., Any]) -> None:
    """Put a method in the place of another, for all of this process."""
    setattr(owner, name, method)


def _tear(standing: Standing) -> None:
    inner = Disk.write

    def write(self: Disk, descriptor: int, data: memoryview) -> int:
        if standing.dies_at(HALF):
            inner(self, descriptor, data[: len(data) // 2])
            _die()
        return inner(self, descriptor, data)

    _put(Disk, "write", write)


def _full(standing: Standing) -> None:
    if standing.now.disk == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _slow(standing: Standing) -> None:
    if standing.now.disk == "slow":
        time.sleep(SLOW_S)


def _ahead(name: str, standing: Standing) -> None:
    true, unit = getattr(time, name), 10**9 if name == "time_ns" else 1
    setattr(time, name, lambda: true() + type(true())(unit * standing.now.ahead_s))


def _note_adoptions(path: Path) -> None:
    inner = LearnerBody.now_adopt
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def adopt(self: LearnerBody, fragment: int, stamp: Stamp) -> Any:
        told = inner(self, fragment, stamp)
        os.write(out, f"{os.getpid()} {fragment} {stamp.epoch.counter} {stamp.epoch.ident} {stamp.version}\n".encode())
        return told

    _put(LearnerBody, "now_adopt", adopt)


def adoptions(path: Path) -> list[tuple[int, int, Stamp]]:
    """(process, fragment, stamp) of every adoption that processes under these orders have written down, in order."""
    with suppress(FileNotFoundError):
        text = path.with_suffix(ADOPTED).read_text()
        rows = (map(int, line.split()) for line in text.splitlines())
        return [(pid, fragment, Stamp(Epoch(counter, ident), v)) for pid, fragment, counter, ident, v in rows]
    return []
