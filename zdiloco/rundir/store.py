"""The checkpoints of a syncer as it writes them: a safetensors file for each fragment, and a manifest: they make a cut.

Rule: the manifest is the commit point. Everything it names is durable before it is moved into place, and nothing that
one of the newest `keep` manifests names is removed. So a death at any instant, or a full disk, leaves the older cut.
"""

import fcntl
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import xxhash

from zdiloco.errors import ConfigError, StoreError
from zdiloco.rundir.archive import LOCK, Archive, Cut, FragmentCut
from zdiloco.rundir.disk import Disk, disk_error
from zdiloco.rundir.manifest import FORMAT, canonical, numbers_of, read_manifest, signed
from zdiloco.units import Epoch

log = logging.getLogger(__name__)

LOCK_TRIES, LOCK_AGAIN_S = 10, 0.02


class TakenOver(StoreError):
    """A manifest of another syncer, of an epoch that is not below ours, lies in the folder: that one runs this run."""

    def __init__(self, text: str, epoch: Epoch) -> None:
        super().__init__(text)
        self.epoch = epoch


class Store(Archive):
    """The checkpoints of one run folder, held by one process: a second one gets ConfigError.

    One thread writes, after `load`. A successor must go above `highest_epoch`.
    """

    def __init__(self, run_dir: Path, *, keep: int, disk: Disk | None = None) -> None:
        super().__init__(run_dir)
        self._keep = keep
        self._own: set[str] = set()
        self._disk = disk or Disk()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock: BinaryIO = (run_dir / LOCK).open("ab")
        except OSError as error:
            raise disk_error(f"run.dir {run_dir} cannot be used", error) from error
        if not _locked(self._lock):
            self._lock.close()
            raise ConfigError(f"run.dir {run_dir} is in use by another syncer on this machine")

    def close(self) -> None:
        """Give the run folder free; harmless when repeated."""
        self._lock.close()

    def write(self, cut: Cut) -> Path:
        """Make the cut durable and return its manifest; then remove what no kept manifest names.

        Raises StoreError where the disk is full or fails: the older cuts are untouched, and the next write starts anew;
        TakenOver where a successor has written here, and then changes nothing that is its own.
        """
        self._look_for_successor(cut.epoch)
        try:
            entries = [self._put_fragment(fragment) for fragment in cut.fragments]
            layout_data = canonical(cut.layout)
            layout = self._put_once(f"layout-{xxhash.xxh3_128_hexdigest(layout_data)}.json", layout_data)
            self._disk.sync_folder(self._folder)
            self._look_for_successor(cut.epoch)
            name = f"manifest-{self._number + 1:09d}-e{cut.epoch.counter}.json"
            self._disk.put(self._folder / name, signed(_manifest(cut, entries, layout)))
            self._disk.sync_folder(self._folder)
        except OSError as error:
            self._sweep_quietly()
            raise StoreError(f"cannot write a checkpoint to {self._folder}: {error.strerror or error}") from error
        self._own.add(name)
        self._number += 1
        self.highest_epoch = max(self.highest_epoch, cut.epoch.counter)
        for fragment, entry in zip(cut.fragments, entries, strict=True):
            self._files[fragment.fragment] = (fragment.revision, _file_part(entry))
        self._sweep_quietly()
        return self._folder / name

    def _look_for_successor(self, epoch: Epoch) -> None:
        """The lock keeps two syncers apart on one machine; a lost lock or a shared disk does not."""
        for path in self.manifests():
            numbers = numbers_of(path)
            if numbers is None or numbers[1] < epoch.counter or path.name in self._own:
                continue
            other = read_manifest(path).epoch if numbers[1] == epoch.counter else Epoch(numbers[1], 0)
            if other != epoch:
                text = f"{path} is of epoch {other.counter}, ours is {epoch.counter}: a newer syncer runs this run"
                raise TakenOver(text, other)

    def _put_fragment(self, cut: FragmentCut) -> dict[str, Any]:
        revision, entry = self._files.get(cut.fragment, (None, {}))
        if revision != cut.revision:
            shared = cut.value.data_ptr() == cut.theta.data_ptr()  # of the last versions; safetensors refuses that
            tensors = {"theta": cut.theta, "value": cut.value.clone() if shared else cut.value}
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


def successor_in(error: StoreError) -> Epoch | None:
    """The epoch of the syncer that has taken this run folder over, if that is what a write failed by."""
    return error.epoch if isinstance(error, TakenOver) else None


def _manifest(cut: Cut, entries: Sequence[Mapping[str, Any]], layout: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run_id": cut.run_id,
        "epoch": list(cut.epoch),
        "layout_digest": cut.layout_digest,
        "layout": layout,
        "progress_tokens": cut.progress_tokens,
        "replaced": [list(key) for key in cut.replaced],
        "live": [list(key) for key in cut.live],
        "fragments": entries,
    }


def _file_part(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("file", "digest", "bytes")}


def _locked(file: BinaryIO) -> bool:
    """Hold a file alone; False: a syncer holds it. Whoever only asks (`run_dir_in_use`) has it for an instant."""
    pause = threading.Event()
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pause.wait(LOCK_AGAIN_S)
        else:
            return True
    return False
