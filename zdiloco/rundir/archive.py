"""Checkpoints as anybody reads them: values, open cuts, and the cuts of a run folder, newest first.

Rule: a file is read only if its digest is the manifest's; nothing is ever loaded that is not exactly what was saved. A
reader holds nothing: a syncer may write and remove meanwhile (`store.py`).
"""

import fcntl
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from zdiloco.errors import StoreError
from zdiloco.rundir.disk import open_file
from zdiloco.rundir.manifest import ForeignCheckpoint, canonical, number_of, numbers_of, read_manifest, read_table
from zdiloco.units import Epoch, FragmentId, MemberKey, Merged, Stamp

log = logging.getLogger(__name__)

FOLDER = "checkpoints"
LOCK = "syncer.lock"
"""What a living syncer holds of its run folder."""
READ_AGAIN = 100
"""Looks for a cut that is not removed between two calls of the system; each follows a checkpoint written meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FragmentCut:
    """One fragment in a cut. `theta` and `buf` (None: no momentum yet) are (n_p,) fp32, `value` the published bytes u8.

    `revision` changes whenever the tensors do: a fragment of the same revision keeps its file. `map_` is the sums of
    what is merged of whom. The tensors must not be written to until the write is over.
    """

    fragment: FragmentId
    revision: int
    stamp: Stamp
    theta: Tensor
    buf: Tensor | None
    value: Tensor
    codec: str
    map_: tuple[Merged, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A complete state of the syncer. `replaced`: processes that must not come back, the oldest first; `live`: who took
    part."""

    run_id: str
    epoch: Epoch
    layout_digest: str
    layout: Mapping[str, Any]
    fragments: tuple[FragmentCut, ...]
    progress_tokens: float = 0.0
    replaced: tuple[MemberKey, ...] = ()
    live: tuple[MemberKey, ...] = ()


class OpenCut:
    """A cut on the disk with all its files open: a syncer may remove them now, they can be read until `close`.

    What is missing or not ours is found when it is read. Raises StoreError where the manifest is not whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self._files: list[BinaryIO | OSError] = []
        for entry in self.manifest.fragments:
            try:
                self._files.append(open_file(path.parent / entry.file))
            except OSError as error:
                self._files.append(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; harmless when repeated."""
        for file in self._files:
            if not isinstance(file, OSError):
                file.close()

    @property
    def number(self) -> int:
        """Its number, by its name."""
        return number_of(self.path)

    def layout(self) -> dict[str, Any]:
        """The table of the layout. Raises StoreError where it is not exactly what was saved."""
        path = self.path.parent / self.manifest.layout
        table = read_table(path)
        if path.name != f"layout-{xxhash.xxh3_128_hexdigest(canonical(table))}.json":
            raise StoreError(f"{path} is damaged: its content has not the digest in its name")
        return table

    def check_sizes(self) -> int:
        """The bytes of all fragments. Raises StoreError where a file is missing, or not as long as what was saved."""
        for entry, file in zip(self.manifest.fragments, self._files, strict=True):
            path = self.path.parent / entry.file
            if isinstance(file, OSError):
                raise StoreError(f"{self.path.name} names {path}, which cannot be read: {file.strerror}") from file
            found = os.fstat(file.fileno()).st_size
            if found != entry.bytes:
                raise StoreError(f"{path} is damaged: its {found} bytes are not those that {self.path.name} names")
        return sum(entry.bytes for entry in self.manifest.fragments)

    def fragment(self, index: FragmentId) -> FragmentCut:
        """Read one fragment. Raises StoreError where its file is not exactly what was saved."""
        entry, file = self.manifest.fragments[index], self._files[index]
        path = self.path.parent / entry.file
        try:
            if isinstance(file, OSError):
                raise file
            file.seek(0)
            found = os.fstat(file.fileno()).st_size
            data = file.read() if found == entry.bytes else b""
        except (OSError, MemoryError) as error:
            why = error.strerror if isinstance(error, OSError) else "it does not fit into memory"
            raise StoreError(f"{self.path.name} names {path}, which cannot be read: {why}") from error
        if found != entry.bytes or xxhash.xxh3_128_hexdigest(data) != entry.digest:
            raise StoreError(f"{path} is damaged: its {found} bytes are not those that {self.path.name} names")
        try:
            tensors = safetensors.torch.load(data)
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise StoreError(f"{path} is not a safetensors file ({error})") from error
        theta, value, buf = (tensors.get(name) for name in ("theta", "value", "buf"))
        if theta is None or value is None or not _fit(theta, value, buf):
            raise StoreError(f"{path} does not hold the state of fragment {entry.fragment}")
        counter, ident, version = entry.stamp
        return FragmentCut(
            fragment=entry.fragment,
            revision=0,
            stamp=Stamp(Epoch(counter, ident), version),
            theta=theta,
            buf=buf,
            value=value,
            codec=entry.codec,
            map_=entry.map,
        )


class Archive:
    """The checkpoints of one run folder as a reader sees them, who holds nothing: a syncer may write on meanwhile.

    `highest_epoch` is the highest epoch counter that any manifest here ever had in its name, damaged ones included.
    """

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER
        self._files: dict[FragmentId, tuple[int, dict[str, Any]]] = {}  # fragment -> (revision, entry of its file)
        self._number = 0
        self.highest_epoch = 0

    def manifests(self) -> list[Path]:
        """The manifests on the disk, newest first."""
        numbered = [(numbers, path) for path in self._folder.glob("manifest-*") if (numbers := numbers_of(path))]
        return [path for (_, path) in sorted(numbered, key=lambda each: (each[0][1], each[0][0]), reverse=True)]

    def load(self) -> Cut | None:
        """Return the newest complete cut; None where nothing was ever saved here.

        A damaged newest cut is passed over, with a warning, for the older one. Raises StoreError where none is
        complete, or where one was written by another version of the format.
        """
        found = [(path, numbers) for path in self.manifests() if (numbers := numbers_of(path)) is not None]
        reasons = []
        self.highest_epoch = max([self.highest_epoch, *(epoch for _, (_, epoch) in found)])
        for path, _ in found:
            try:
                cut = self._load(path)
            except ForeignCheckpoint:
                raise
            except StoreError as error:
                reasons.append(str(error))
                if path.exists():  # else a syncer has removed it just now
                    log.warning("checkpoint passed over why=%r", str(error))
                continue
            self._number = max(number for _, (number, _) in found)
            return cut
        if reasons:
            raise StoreError("no checkpoint is whole: " + "; ".join(reasons))
        return None

    def _load(self, path: Path) -> Cut:
        with OpenCut(path) as opened:
            manifest, layout = opened.manifest, opened.layout()
            fragments = tuple(opened.fragment(index) for index in range(len(manifest.fragments)))
        for index, (part, entry) in enumerate(zip(fragments, manifest.fragments, strict=True)):
            self._files[index] = (part.revision, {"file": entry.file, "digest": entry.digest, "bytes": entry.bytes})
        return Cut(
            run_id=manifest.run_id,
            epoch=manifest.epoch,
            layout_digest=manifest.layout_digest,
            layout=layout,
            fragments=fragments,
            progress_tokens=manifest.progress_tokens,
            replaced=manifest.replaced,
            live=manifest.live,
        )


def read_newest(run_dir: Path) -> Cut | None:
    """The newest complete cut of a run folder, whether a syncer holds it or not; None: nothing was ever saved there.

    Raises StoreError where none is whole: a syncer may remove what is just being opened, then it is looked for anew.
    """
    archive, seen = Archive(run_dir), None
    for _ in range(READ_AGAIN):
        try:
            return archive.load()
        except ForeignCheckpoint:
            raise
        except StoreError:
            if archive.manifests() == seen:
                raise
            seen = archive.manifests()
    return archive.load()


def run_dir_in_use(run_dir: Path) -> bool:
    """Whether a living syncer holds this run folder."""
    try:
        with (run_dir / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or nobody can tell
        return False
    return False


def _fit(theta: Tensor, value: Tensor, buf: Tensor | None) -> bool:
    """Whether these are a state: flat, of the right types, the momentum as long as the values."""
    flat = theta.dtype is torch.float32 and theta.dim() == 1 and value.dtype is torch.uint8 and value.dim() == 1
    return flat and (buf is None or (buf.dtype is torch.float32 and buf.shape == theta.shape))
