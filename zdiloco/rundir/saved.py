"""The saved states of one learner on its disk: each one safetensors file, with the rest of the tree as JSON in it.

Rule: a file is written aside, synced, moved to a name that says its number and its digest, and its folder synced; the
one before stays. So a death at any instant, or a full disk, leaves an older one, and what is damaged shows. Nothing is
read that is not exactly what was written, for this learner, in this version of the format.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import msgspec
import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from zdiloco.errors import StoreError
from zdiloco.rundir.disk import Disk
from zdiloco.rundir.tensorfile import Kind, planned
from zdiloco.rundir.tree import unpack
from zdiloco.wire.frames import Buffer

log = logging.getLogger(__name__)

FORMAT = "zdiloco-learner-1"
INNER = "optimizer"
"""The part that the inner optimizer's state is."""
KEPT = 2
MOST_HEAD = 100_000_000
"""Bytes that the library believes the head of a file to have; what is not a tensor or an array stands in it."""
PIECE = 2**20
"""Bytes that are digested and written at a time: the interpreter is not held for longer than they take."""


class ForeignState(StoreError):
    """Of another learner, or written by another version of the format: never passed over for something older."""


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose state it is. `step`: the learner's steps over all its processes when its data and random state were taken;
    `parameters`: (name, shape) of those that the optimizer holds, in its order; `run_id`: empty where none was known.
    """

    name: str
    run_name: str
    run_id: str
    step: int
    optimizer: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A state that was read back. `parts`: by name (INNER, 'random', those of the user), as they were handed in."""

    path: Path
    about: About
    parts: Mapping[str, Any]


class SavedStates:
    """The saved states of the learner `name`. One thread writes; whoever reads holds nothing."""

    def __init__(self, run_dir: Path, name: str, disk: Disk | None = None) -> None:
        self._folder = run_dir / "learners"
        self._name = name
        self._disk = disk or Disk()
        self._pattern = re.compile(re.escape(name) + r"-([0-9]{9})-([0-9a-f]{32})\.safetensors")

    def files(self) -> list[Path]:
        """The states on the disk, newest first."""
        numbered = [(self._number(path), path) for path in self._folder.glob("*.safetensors")]
        return [path for number, path in sorted(numbered, reverse=True) if number and path.is_file()]

    def _number(self, path: Path) -> int:
        found = self._pattern.fullmatch(path.name)
        return int(found[1]) if found else 0

    # ---- writing

    def write(
        self, about: About, parts: Mapping[str, Any], tensors: Mapping[str, Tensor], *,
        unless: Callable[[], bool] = lambda: False,
    ) -> Path | None:  # fmt: skip
        """Make a packed state durable, then remove those beyond KEPT. `tensors` are copied to the host one by one.

        None, and nothing has changed: `unless` has said so while the file was being written. Raises StoreError where
        the disk is full or fails, or where nobody could read the file: the older ones are untouched.
        """
        aside = self._folder / f"{self._name}.saving"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            digest = self._write(aside, _pieces(about, parts, tensors), unless)
            if digest is None:
                return None
            newest = max([0, *map(self._number, self.files())])
            path = self._folder / f"{self._name}-{newest + 1:09d}-{digest}.safetensors"
            self._disk.move(aside, path)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            raise StoreError(f"cannot save the state of {self._name}: {error.strerror or error}") from error
        self._sweep()
        return path

    def _write(self, aside: Path, pieces: Iterator[memoryview], unless: Callable[[], bool]) -> str | None:
        digest = xxhash.xxh3_128()
        descriptor = self._disk.open(aside)
        try:
            for piece in pieces:
                if unless():
                    self._disk.remove(aside)
                    return None
                digest.update(piece)
                while piece:
                    piece = piece[self._disk.write(descriptor, piece) :]
            self._disk.sync(descriptor)
        finally:
            os.close(descriptor)
        return str(digest.hexdigest())

    def _sweep(self) -> None:
        try:
            for path in self.files()[KEPT:]:
                self._disk.remove(path)
        except OSError as error:
            log.warning("an old state of %s stays for now why=%r", self._name, error.strerror or str(error))

    # ---- reading

    def read(self) -> Saved | None:
        """Return the newest whole state; None: there is none. A damaged one is passed over with a warning.

        An inner state that is not finite is left out, for that of the one before where that is. Raises StoreError where
        there are states and none is whole, ForeignState as the class says.
        """
        reasons: list[str] = []
        newest: Saved | None = None
        for path in self.files():
            try:
                found = self._read(path)
            except ForeignState:
                raise
            except StoreError as error:
                reasons.append(str(error))
                log.warning("a saved state is passed over why=%r", str(error))
                continue
            newest = newest or found
            if INNER in found.parts and found.about.optimizer == newest.about.optimizer:
                return replace(newest, parts={**newest.parts, INNER: found.parts[INNER]})
        if reasons and newest is None:
            raise StoreError("; ".join(reasons))
        return newest

    def _read(self, path: Path) -> Saved:
        try:
            data = path.read_bytes()
        except (OSError, MemoryError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is larger than the memory of this machine"
            raise StoreError(f"{path} cannot be read: {why}") from error
        if xxhash.xxh3_128_hexdigest(data) not in path.name:
            raise StoreError(f"{path} is damaged: its {len(data)} bytes have not the digest in its name")
        about, packed, tensors = _parse(path, data)
        if about.name != self._name:
            raise ForeignState(f"{path} is the state of learner {about.name!r}, not of {self._name!r}")
        try:
            parts = {name: unpack(part, tensors) for name, part in packed.items()}
        except (ValueError, TypeError) as error:
            raise StoreError(f"{path} holds no whole state: {error}") from error
        if not inner_is_finite(tensors):
            log.warning("the inner optimizer's state is left out why=%r", f"{path} holds numbers that are not finite")
            del parts[INNER]
        return Saved(path=path, about=about, parts=parts)


def _parse(path: Path, data: bytes) -> tuple[About, dict[str, Any], dict[str, Tensor]]:
    """The three things that a file holds. Raises StoreError, ForeignState."""
    try:
        tensors = safetensors.torch.load(data)
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if head["format"] != FORMAT:
            raise ForeignState(f"{path} is of format {head['format']!r:.60}; this version reads {FORMAT!r}")
        about = msgspec.json.decode(head["about"].encode(), type=About)
        parts = json.loads(head["parts"])
    except (safetensors.SafetensorError, LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise StoreError(f"{path} holds no saved state ({error})") from error
    if not isinstance(parts, dict) or not 0 <= about.step < 2**53:
        raise StoreError(f"{path} holds no saved state: its parts are no table, or its step is {about.step}")
    return about, parts, tensors


def inner_is_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether every number that the inner optimizer holds is."""
    floats = (each for name, each in tensors.items() if name.startswith(f"{INNER}.") and each.is_floating_point())
    return all(bool(torch.isfinite(each).all()) for each in floats if each.itemsize > 1)


def _pieces(about: About, parts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """The bytes of a safetensors file: its head, then the tensors in the order in which they lie.

    Raises StoreError, at once, where the head is too long.
    """
    metadata = {"format": FORMAT, "about": msgspec.json.encode(about).decode(), "parts": json.dumps(parts)}
    kinds = {name: Kind(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    head, starts, _ = planned(kinds, metadata)
    if len(head) > MOST_HEAD:
        size = f"numbers, text and lists of it take {len(head) / 1e6:,.0f} MB, and {MOST_HEAD / 1e6:,.0f} can be read"
        raise StoreError(f"{size}: hand long lists in as tensors or arrays")
    return chain([memoryview(head)], _bodies(tensors, starts))


def _bodies(tensors: Mapping[str, Tensor], ordered: Iterable[str]) -> Iterator[memoryview]:
    for name in ordered:
        flat = tensors[name].cpu().contiguous().view(-1).view(torch.uint8)
        data = memoryview(cast(Buffer, flat.numpy()))
        for start in range(0, len(data), PIECE):
            yield data[start : start + PIECE]
