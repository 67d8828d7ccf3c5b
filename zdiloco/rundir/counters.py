"""The counters of one learner incarnation in a memory-mapped file: what it trained survives any death of the process.

Rule: two slots are written in turn, each closed by its own checksum. Stores to a mapped file outlive SIGKILL, so
whatever the moment of death, at least one slot is whole, and it is at most one step old. (A power cut is another
matter: the file is not synced; the syncer's checkpoints are.) While the process lives it holds a lock on the file, so
that others on this machine know who lives. A disk that is full later on never stops the training:
the old file goes on with what it has room for, or there is none, until there is room again.
"""

import fcntl
import logging
import mmap
import os
import re
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import xxhash

from zdiloco.core.bounds import MAX_COUNT
from zdiloco.core.ledger import FragmentRow
from zdiloco.core.progress import CutRow
from zdiloco.errors import StoreError
from zdiloco.rundir.disk import disk_error, open_file
from zdiloco.units import MemberKey

log = logging.getLogger(__name__)

SUFFIX = ".counters"
MAGIC = b"zdlcnt02"
CUTS_PER_FRAGMENT = 32
"""Outstanding cuts that a new file has room for, on average; with more, which is rare, it is made anew with twice the
room."""
TRY_AGAIN_AFTER = 256
"""Writes, so steps, between two attempts on a disk that has refused."""
_HEAD = struct.Struct("<8sQIII64s")  # magic, incarnation, fragments, room for cuts, bytes of the name, name
_SLOT = struct.Struct("<QQIIQQQ")  # checksum, sequence number, payload bytes, 1 when left in order, base, step, tokens
_ROW = 6  # unmerged, dropped, lost, after, sent cuts, kept cuts
_CUT = 3  # seq, tokens, void


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """One whole record: inner steps and tokens trained by this incarnation, and a row per fragment.

    `left` says that the process took leave in order, so that what was unmerged then is nobody's loss. `base`: steps of
    this learner's earlier incarnations.
    """

    key: MemberKey
    base: int
    step: int
    trained_tokens: int
    left: bool
    rows: tuple[FragmentRow, ...]

    @property
    def lifetime_step(self) -> int:
        """Steps of this learner up to here, all its incarnations together."""
        return self.base + self.step


def counters_path(run_dir: Path, key: MemberKey) -> Path:
    """Where the counters of this incarnation lie."""
    return run_dir / "learners" / f"{key.name}-{key.incarnation:016x}{SUFFIX}"


def _reserve(descriptor: int, size: int) -> None:
    """Give the file its blocks: a full disk must show now, not as SIGBUS at a later store."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:  # macOS
        os.write(descriptor, bytes(size))


class CounterFile:
    """The open counters of this process. One thread writes; `close` may be called twice."""

    def __init__(
        self, run_dir: Path, key: MemberKey, fragments: int, *, base: int = 0, required: bool = True
    ) -> None:  # fmt: skip
        """Make the file with an all-zero record in it; `base` as in Counters.

        Where that fails it raises StoreError (the disk is full), ConfigError (the place cannot be written to); or, if
        not `required`, warns, and `write` tries again.
        """
        self.path = counters_path(run_dir, key)
        self._key = key
        self._fragments = fragments
        self._base = base
        self._sequence = 0
        self._try_at = 0
        self._warned = self._closed = False
        self._room = CUTS_PER_FRAGMENT * fragments
        self._map = mmap.mmap(-1, self._size_for(self._room))  # until there is a file, memory takes its place
        self._on_disk = False
        self._put(0, 0, False, [0] * (_ROW * fragments))
        try:
            self._renew(self._room)
        except OSError as error:
            if required:
                self._map.close()
                raise disk_error(f"run.dir {run_dir}: cannot make the counter file {self.path}", error) from error
            self._refused(error)

    def write(self, step: int, trained_tokens: int, rows: Sequence[FragmentRow], *, left: bool = False) -> None:
        """Record this moment. Afterwards a death at any instant leaves this record or the one before it.

        Where the file has to be made anew for more cuts, and the disk does not let us, the oldest cuts are left out of
        the record: then a roll-back after this process's death may leave a gap in the ledger.
        """
        cuts = sum(len(row.sent) + len(row.kept) for row in rows)
        if (cuts > self._room or not self._on_disk) and self._sequence >= self._try_at:
            try:
                self._renew(self._room if cuts <= self._room else max(2 * self._room, cuts))
            except OSError as error:
                self._refused(error)
        self._put(step, trained_tokens, left, _flat(rows, None if cuts <= self._room else self._room // len(rows)))

    def close(self) -> None:
        """Let go of the file; it stays on the disk for the ledger."""
        if not self._closed:
            self._closed = True
            self._map.close()

    def _size_for(self, room: int) -> int:
        return _HEAD.size + 2 * _slot_bytes(self._fragments, room)

    def _renew(self, room: int) -> None:
        """Put a file with room for so many cuts in place, in one move, with the newest record in it; then let go of
        the old one. Raises OSError where the disk does not let us: nothing has changed then."""
        aside = self.path.with_suffix(".aside")
        try:
            made = self._make(aside, room)
            os.replace(aside, self.path)
        except OSError:
            with suppress(OSError):
                aside.unlink()
            raise
        self._map.close()
        self._map, self._room, self._on_disk = made, room, True

    def _make(self, path: Path, room: int) -> mmap.mmap:
        """Make a file and copy the newest record into it, to the slot where it belongs."""
        size = self._size_for(room)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _reserve(descriptor, size)
            with suppress(OSError):  # a file system without locks: then nobody knows who lives
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            made = mmap.mmap(descriptor, size)  # which keeps the file open, and so the lock, until it is closed
        finally:
            os.close(descriptor)
        name = self._key.name.encode()
        made[: _HEAD.size] = _HEAD.pack(MAGIC, self._key.incarnation, self._fragments, room, len(name), name)
        old, new = self._slot(self._room), self._slot(room)
        used = _SLOT.size + int(_SLOT.unpack_from(self._map, old)[2])
        made[new : new + used] = self._map[old : old + used]
        return made

    def _refused(self, error: OSError) -> None:
        """The disk has no room for a file: go on with what there is, and try again in a while."""
        self._try_at = self._sequence + TRY_AGAIN_AFTER
        if not self._warned:
            self._warned = True
            log.warning("the counter file %s cannot be made for now why=%r", self.path, error.strerror or str(error))

    def _slot(self, room: int) -> int:
        """Where the newest record lies in a file with room for so many cuts."""
        return _HEAD.size + (self._sequence % 2) * _slot_bytes(self._fragments, room)

    def _put(self, step: int, trained_tokens: int, left: bool, numbers: list[int]) -> None:
        payload = struct.pack(f"<{len(numbers)}q", *numbers)
        self._sequence += 1
        body = _SLOT.pack(0, self._sequence, len(payload), left, self._base, step, trained_tokens)[8:] + payload
        start = self._slot(self._room)
        self._map[start + 8 : start + 8 + len(body)] = body
        self._map[start : start + 8] = xxhash.xxh3_64_digest(body)


def _slot_bytes(fragments: int, room: int) -> int:
    return _SLOT.size + 8 * (_ROW * fragments + _CUT * room)


def _flat(rows: Sequence[FragmentRow], most: int | None) -> list[int]:
    """The numbers of a record: a row per fragment, then all cuts; at most `most` of each fragment, the newest."""
    flat: list[int] = []
    cuts: list[int] = []
    for row in rows:
        sent, kept = row.sent, row.kept
        if most is not None:
            sent = sent[max(0, len(sent) - most) :]
            kept = kept[max(0, len(kept) + len(sent) - most) :]
        flat += (row.unmerged, row.dropped, row.lost, row.after, len(sent), len(kept))
        cuts += chain.from_iterable(sent + kept)
    return flat + cuts


def state_of(path: Path) -> str:
    """'living' while the process that writes this counter file is alive on this machine, else 'dead'.

    Whether a dead one took leave in order stands in its counters. Children that it has forked keep it 'living' until
    they end, too. Raises StoreError where the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "living"
    except OSError as error:
        if path.exists() and os.access(path, os.R_OK):
            return "dead"  # as far as anybody can tell: a file system without locks
        raise StoreError(f"cannot read the counter file {path}: {error.strerror}") from error
    return "dead"


def read_counters(path: Path) -> Counters:
    """Return the newest whole record of a counter file. Raises StoreError where there is none, or it is not ours."""
    try:
        with open_file(path) as file:
            data = file.read()
    except OSError as error:
        raise StoreError(f"cannot read the counter file {path}: {error.strerror}") from error
    if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise StoreError(f"{path} is not a counter file of this version (it begins with {data[:8]!r})")
    _, incarnation, fragments, room, name_bytes, name = _HEAD.unpack_from(data)
    slot_bytes = _slot_bytes(fragments, room)
    if len(data) != _HEAD.size + 2 * slot_bytes:
        raise StoreError(f"{path} has {len(data)} bytes; {_HEAD.size + 2 * slot_bytes} belong to {fragments} fragments")
    slots = [data[_HEAD.size + i * slot_bytes :][:slot_bytes] for i in (0, 1)]
    whole = [slot for slot in slots if _is_whole(slot)]
    if not whole:
        raise StoreError(f"{path} holds no whole record: both slots are damaged")
    newest = max(whole, key=lambda slot: int(_SLOT.unpack_from(slot)[1]))
    _, _, payload_bytes, left, base, step, trained = _SLOT.unpack_from(newest)
    if base + step > MAX_COUNT:
        raise StoreError(f"{path} counts {base + step} steps, which no learner makes")
    try:
        rows = _rows(struct.unpack_from(f"<{payload_bytes // 8}q", newest, _SLOT.size), fragments)
        key = MemberKey(name[:name_bytes].decode(), incarnation)
    except (ValueError, IndexError) as error:
        raise StoreError(f"{path} holds no whole record: {error}") from error
    return Counters(key=key, base=base, step=step, trained_tokens=trained, left=bool(left), rows=rows)


def lifetime_steps(run_dir: Path, name: str) -> int:
    """Steps of all processes of this name so far, by their counter files; one that cannot be read is passed over, with
    a warning."""
    steps = 0
    for path in sorted((run_dir / "learners").glob(f"*{SUFFIX}")):
        if not re.fullmatch(re.escape(name) + "-[0-9a-f]{16}" + re.escape(SUFFIX), path.name):
            continue
        try:
            steps = max(steps, read_counters(path).lifetime_step)
        except StoreError as error:
            log.warning("steps of a former process are not known why=%r", str(error))
    return steps


def _is_whole(slot: bytes) -> bool:
    checksum_bytes = slot[:8]
    _, sequence, payload_bytes, *_ = _SLOT.unpack_from(slot)
    if sequence == 0 or payload_bytes > len(slot) - _SLOT.size:
        return False
    return bool(xxhash.xxh3_64_digest(slot[8 : _SLOT.size + payload_bytes]) == checksum_bytes)


def _rows(numbers: Sequence[int], fragments: int) -> tuple[FragmentRow, ...]:
    rows = []
    at = fragments * _ROW
    for index in range(fragments):
        unmerged, dropped, lost, after, sent, kept = numbers[index * _ROW : (index + 1) * _ROW]
        if min(sent, kept, after) < 0:
            raise ValueError(f"fragment {index} has {sent} cuts on their way, {kept} kept, after {after}")
        starts = range(at, at + _CUT * (sent + kept), _CUT)
        cuts = [CutRow(numbers[i], numbers[i + 1], bool(numbers[i + 2])) for i in starts]
        at += _CUT * (sent + kept)
        if any(cut.seq < 0 for cut in cuts):
            raise ValueError(f"fragment {index} has a cut with a number below 0")
        rows.append(
            FragmentRow(
                unmerged=unmerged,
                dropped=dropped,
                lost=lost,
                after=after,
                sent=tuple(cuts[:sent]),
                kept=tuple(cuts[sent:]),
            )
        )
    return tuple(rows)
