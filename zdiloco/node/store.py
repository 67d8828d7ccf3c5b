"""The syncer's checkpoints: one safetensors file per fragment state, and a manifest that makes them a cut.

Rule: the manifest is the commit point. Everything it names is durable before it is moved into place, and nothing that
one of the newest `keep` manifests names is removed. So a death at any instant, or a full disk, leaves the older cut.
A file is read only if its digest is the manifest's; nothing is ever loaded that is not exactly what was saved.
"""

import fcntl
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from zdiloco.errors import ConfigError, StoreError
from zdiloco.node.disk import Disk, disk_error
from zdiloco.node.manifest import (
    FORMAT,
    Entry,
    ForeignCheckpoint,
    canonical,
    numbers_of,
    read_manifest,
    read_table,
    signed,
)
from zdiloco.units import Epoch, FragmentId, MemberKey, Merged, Stamp

log = logging.getLogger(__name__)

FOLDER = "checkpoints"
READ_AGAIN = 5


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
    """A complete state of the syncer. `replaced`: processes that must not come back, the oldest first."""

    run_id: str
    epoch: Epoch
    layout_digest: str
    layout: Mapping[str, Any]
    fragments: tuple[FragmentCut, ...]
    progress_tokens: float = 0.0
    replaced: tuple[MemberKey, ...] = ()


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
        return [path for _, path in sorted(numbered, reverse=True)]

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
                log.warning("checkpoint passed over why=%r", str(error))
                continue
            self._number = max(number for _, (number, _) in found)
            return cut
        if reasons:
            raise StoreError("no checkpoint is whole: " + "; ".join(reasons))
        return None

    def _load(self, path: Path) -> Cut:
        manifest = read_manifest(path)
        layout = read_table(self._folder / manifest.layout)
        if manifest.layout != f"layout-{xxhash.xxh3_128_hexdigest(canonical(layout))}.json":
            raise StoreError(f"{self._folder / manifest.layout} is damaged: its content has not the digest in its name")
        fragments = tuple(self._load_fragment(path, entry) for entry in manifest.fragments)
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
        )

    def _load_fragment(self, manifest: Path, entry: Entry) -> FragmentCut:
        path = self._folder / entry.file
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{manifest.name} names {path}, which cannot be read: {error.strerror}") from error
        if len(data) != entry.bytes or xxhash.xxh3_128_hexdigest(data) != entry.digest:
            raise StoreError(f"{path} is damaged: its {len(data)} bytes are not those that {manifest.name} names")
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


class Store(Archive):
    """The checkpoints of one run folder, held by one process: a second one gets ConfigError.

    One thread writes, after `load`. A successor must go above `highest_epoch`.
    """

    def __init__(self, run_dir: Path, *, keep: int, disk: Disk | None = None) -> None:
        super().__init__(run_dir)
        self._keep = keep
        self._disk = disk or Disk()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock: BinaryIO = (run_dir / "syncer.lock").open("ab")
        except OSError as error:
            raise disk_error(f"run.dir {run_dir} cannot be used", error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ConfigError(f"run.dir {run_dir} is in use by another syncer on this machine") from error

    def close(self) -> None:
        """Give the run folder free; harmless when repeated."""
        self._lock.close()

    def write(self, cut: Cut) -> Path:
        """Make the cut durable and return its manifest; then remove what no kept manifest names.

        Raises StoreError where the disk is full or fails: the older cuts are untouched, and the next write starts anew.
        """
        try:
            entries = [self._put_fragment(fragment) for fragment in cut.fragments]
            layout_data = canonical(cut.layout)
            layout = self._put_once(f"layout-{xxhash.xxh3_128_hexdigest(layout_data)}.json", layout_data)
            self._disk.sync_folder(self._folder)
            name = f"manifest-{self._number + 1:09d}-e{cut.epoch.counter}.json"
            self._disk.put(self._folder / name, signed(_manifest(cut, entries, layout)))
            self._disk.sync_folder(self._folder)
        except OSError as error:
            self._sweep_quietly()
            raise StoreError(f"cannot write a checkpoint to {self._folder}: {error.strerror or error}") from error
        self._number += 1
        self.highest_epoch = max(self.highest_epoch, cut.epoch.counter)
        for fragment, entry in zip(cut.fragments, entries, strict=True):
            self._files[fragment.fragment] = (fragment.revision, _file_part(entry))
        self._sweep_quietly()
        return self._folder / name

    def _put_fragment(self, cut: FragmentCut) -> dict[str, Any]:
        revision, entry = self._files.get(cut.fragment, (None, {}))
        if revision != cut.revision:
            tensors = {"theta": cut.theta, "value": cut.value}
            if cut.buf is not None:
                tensors["buf"] = cut.buf
            told = {"format": str(FORMAT), "fragment": str(cut.fragment), "codec": cut.codec, "stamp": str(cut.stamp)}
            data = safetensors.torch.save(tensors, metadata=told)
            digest = xxhash.xxh3_128_hexdigest(data)
            name = f"fragment-{cut.fragment:03d}-{digest}.safetensors"
            self._put_once(name, data)
            entry = {"file": name, "digest": digest, "bytes": len(data)}
        state = {"stamp": [*cut.stamp.epoch, cut.stamp.version], "codec": cut.codec, "map": [list(m) for m in cut.map_]}
        return {**entry, "fragment": cut.fragment, **state}

    def _put_once(self, name: str, data: bytes) -> str:
        """Write a file whose name says its content, unless a whole one is there."""
        path = self._folder / name
        if not path.exists() or path.stat().st_size != len(data):
            self._disk.put(path, data)
        return name

    def _sweep_quietly(self) -> None:
        """Remove files that no kept manifest names. What cannot be removed now is removed after a later write."""
        try:
            self._sweep()
        except (OSError, StoreError) as error:
            log.warning("old checkpoint files stay for now why=%r", str(error))

    def _sweep(self) -> None:
        manifests = self.manifests()
        kept = manifests[: self._keep]
        named = {path.name for path in kept}
        for path in kept:
            manifest = read_manifest(path)
            named |= {manifest.layout, *(entry.file for entry in manifest.fragments)}
        for path in manifests[self._keep :]:  # manifests first: none may ever name a file that is gone
            self._disk.remove(path)
        for path in self._folder.iterdir():
            if path.name not in named and not path.name.startswith("manifest-"):
                self._disk.remove(path)


def read_newest(run_dir: Path) -> Cut | None:
    """The newest complete cut of a run folder, whether a syncer holds it or not; None: nothing was ever saved there.

    Raises StoreError where none is whole, also after a few looks: a syncer may remove what is just being read.
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


def _fit(theta: Tensor, value: Tensor, buf: Tensor | None) -> bool:
    """Whether these are a state: flat, of the right types, the momentum as long as the values."""
    flat = theta.dtype is torch.float32 and theta.dim() == 1 and value.dtype is torch.uint8 and value.dim() == 1
    return flat and (buf is None or (buf.dtype is torch.float32 and buf.shape == theta.shape))


def _manifest(cut: Cut, entries: Sequence[Mapping[str, Any]], layout: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run_id": cut.run_id,
        "epoch": list(cut.epoch),
        "layout_digest": cut.layout_digest,
        "layout": layout,
        "progress_tokens": cut.progress_tokens,
        "replaced": [list(key) for key in cut.replaced],
        "fragments": entries,
    }


def _file_part(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("file", "digest", "bytes")}


def run_dir_in_use(run_dir: Path) -> bool:
    """Whether a living syncer holds this run folder."""
    path = run_dir / "syncer.lock"
    if not path.exists():
        return False
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
