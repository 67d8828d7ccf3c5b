"""What a learner process notes about its own training: a file of JSON lines beside its counters, written and read here.

Rule: `t` is the monotonic clock of the machine, shared by its processes; the first line ties it to wall time. Lines
are written between steps, a few each second, so a killed process loses the notes of its last moments and no more.
Nothing depends on them: a disk that refuses a line later on costs that line, never the training. The last line of a
killed process, and one that met a full disk, may be half a line: readers leave it out.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from zdiloco.errors import StoreError
from zdiloco.rundir.lines import read_lines
from zdiloco.units import MemberKey

log = logging.getLogger(__name__)

FLUSH_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class StepNote:
    """One inner step: its loss [nats/byte], its tokens, how long all of it took, and of that the call of `step()`."""

    loss: float
    tokens: int
    step_s: float
    call_s: float


class LearnerLog:
    """The open notes of one process. `clock`: monotonic seconds. One thread uses it."""

    def __init__(self, path: Path, facts: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Make the file; `facts` go into its first line, and `step` in them is where its steps begin.

        Raises StoreError where the disk does not let us.
        """
        self._clock = clock
        self._notes: list[StepNote] = []
        self._step = int(facts.get("step", 0))
        self._flushed_at = clock()
        self._torn = self._warned = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
            self._put({"kind": "start", "wall": time.time(), **facts})
        except OSError as error:
            raise StoreError(f"cannot write the learner's log {path}: {error.strerror}") from error

    def step(self, note: StepNote, now_facts: Callable[[], Mapping[str, Any]]) -> None:
        """Note one step; every `FLUSH_S` the notes since the last time become a line, with `now_facts()` in it."""
        self._notes.append(note)
        if self._clock() - self._flushed_at >= FLUSH_S:
            self.flush(now_facts())

    def flush(self, facts: Mapping[str, Any]) -> None:
        """Write the notes that wait, if there are any."""
        notes, self._notes = self._notes, []
        self._flushed_at = self._clock()
        if notes:
            self._step += len(notes)
            line = {
                "kind": "steps",
                "step": self._step,
                "steps": len(notes),
                "loss": round(sum(note.loss for note in notes) / len(notes), 5),
                "tokens": sum(note.tokens for note in notes),
                "step_us": [round(note.step_s * 1e6) for note in notes],
                "call_us": [round(note.call_s * 1e6) for note in notes],
            }
            self._write({**line, **facts})

    def end(self, facts: Mapping[str, Any]) -> None:
        """Write the last line and let go of the file; harmless when repeated."""
        if not self._file.closed:
            self._write({"kind": "end", **facts})
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        """Write a line; where the disk refuses, it is lost, and that is said once."""
        try:
            self._put(record)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("notes of steps are lost for now why=%r", error.strerror or str(error))

    def _put(self, record: Mapping[str, Any]) -> None:
        line = json.dumps({"t": round(self._clock(), 4), **record}, separators=(",", ":")).encode() + b"\n"
        data = memoryview(b"\n" + line if self._torn else line)
        self._torn = True  # should it be refused in the middle
        while data:
            data = data[self._file.write(data) or 0 :]
        self._torn = False


def log_path(run_dir: Path, key: MemberKey) -> Path:
    """Where the notes of this process lie: beside its counters."""
    return run_dir / "learners" / f"{key.name}-{key.incarnation:016x}.jsonl"


@dataclass(slots=True)
class Notes:
    """One process's notes, read back. Times are monotonic seconds; lists run over its steps, `loss` over its lines."""

    name: str
    incarnation: str
    joined_at: float
    wall_offset: float
    ended_at: float
    steps: int = 0
    tokens: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    end_reason: str = ""
    step_s: list[float] = field(default_factory=list)
    call_s: list[float] = field(default_factory=list)
    loss: list[tuple[float, float, float]] = field(default_factory=list)
    """(t, the run's progress 0..1, mean loss of the steps in this line)."""


def read_notes(path: Path) -> Notes:
    """Read the notes of one process. Raises StoreError where the file is missing, or does not begin as it should."""
    lines = list(read_lines(path, "learner's log"))
    if not lines or lines[0].get("kind") != "start":
        raise StoreError(f"{path} is not a learner's log: it does not begin with a start line")
    try:
        start = lines[0]
        notes = Notes(
            name=start["name"],
            incarnation=start["incarnation"],
            joined_at=start["t"],
            wall_offset=start["wall"] - start["t"],
            ended_at=lines[-1]["t"],
        )
        for line in lines[1:]:
            _add(notes, line)
    except (KeyError, TypeError, OverflowError) as error:
        raise StoreError(f"{path} is not a learner's log of this version ({error!r})") from error
    return notes


def losses_of(run_dir: Path) -> list[tuple[str, list[tuple[float, float]]]]:
    """Of each process that has left notes in a run folder: its learner's name, and its losses (seconds since 1970,
    nats/byte), as they can be drawn. Whatever is no learner's log is passed over, and said.
    """
    found = []
    for path in sorted((run_dir / "learners").glob("*.jsonl")):
        try:
            notes = read_notes(path)
            told = [(at + notes.wall_offset, float(loss)) for at, _, loss in notes.loss if math.isfinite(loss)]
        except (StoreError, TypeError, ValueError, OverflowError) as error:
            log.warning("losses are not drawn path=%s why=%r", path, str(error))
            continue
        found.append((notes.name, told))
    return found


def _add(notes: Notes, line: Mapping[str, Any]) -> None:
    if line["kind"] == "end":
        notes.end_reason = line["reason"]
        return
    notes.steps += line["steps"]
    notes.tokens += line["tokens"]
    notes.bytes_up, notes.bytes_down = line["bytes_up"], line["bytes_down"]
    notes.step_s += [us / 1e6 for us in line["step_us"]]
    notes.call_s += [us / 1e6 for us in line["call_us"]]
    notes.loss.append((line["t"], line["progress"], line["loss"]))
