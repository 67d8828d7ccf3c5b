"""Bytes to train on: files into one stable order, a held-out part, disjoint shards, and a cursor that resumes.

Which files are held out, and where a file lies among the others, follows from a hash of its relative path alone: the
same tree gives the same parts on every machine, and the shards are alike (in alphabetical order one learner would get
nothing but unit tests). A cursor's state is a few integers; the order of an epoch is drawn from (seed, shard, epoch).
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from zdiloco.errors import ConfigError
from zdiloco.train.params import MIN_CORPUS_BYTES

Bytes = npt.NDArray[np.uint8]

HELD_OUT_SHARE = 0.05  # of the files, by hash
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})
SNIFF_BYTES = 8192


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    """All text found under `root`: `train` and `held_out` are uint8 arrays without a file in common, read-only.

    `digest` (16 hexadecimal digits of SHA-256 over paths and contents) is equal only for equal trees.
    """

    root: Path
    files: int
    train: Bytes
    held_out: Bytes
    digest: str

    def shard(self, index: int, num_shards: int) -> Bytes:
        """View (n,) uint8 of the shard of one learner; the shards together are `train`, and no two overlap."""
        if not 0 <= index < num_shards:
            raise ConfigError(
                f"shard is {index}, but task.num_shards is {num_shards}: allowed is 0 to {num_shards - 1}"
            )
        size = len(self.train)
        return self.train[size * index // num_shards : size * (index + 1) // num_shards]


@lru_cache(maxsize=2)
def load_corpus(data_dir: str = "", min_bytes: int = MIN_CORPUS_BYTES) -> Corpus:
    """Read every text file under `data_dir`, or the standard library's *.py of this Python when it is empty.

    Raises ConfigError when the folder is missing, a file cannot be read, less than `min_bytes` are found or either
    part stays empty.
    """
    root = Path(data_dir) if data_dir else Path(sysconfig.get_path("stdlib"))
    if not root.is_dir():
        raise ConfigError(f"task.data_dir is {str(root)!r}, which is no folder: name a folder of text files")
    found = [(_place(name), name, body) for name, body in _read_texts(root, ".py" if not data_dir else "")]
    found.sort()
    total = sum(len(body) for _, _, body in found)
    if total < min_bytes:
        raise ConfigError(
            f"data: {total / 1e6:.2f} MB in {len(found)} text files under {root}, but at least "
            f"{min_bytes / 1e6:.2f} MB are needed; set task.data_dir to a larger folder of text files"
        )
    held_out = b"".join(body for place, _, body in found if place < HELD_OUT_SHARE)
    train = b"".join(body for place, _, body in found if place >= HELD_OUT_SHARE)
    if not held_out or not train:
        raise ConfigError(
            f"data: the {len(found)} text files under {root} leave one of training and held-out part empty; whole "
            f"files are held out ({HELD_OUT_SHARE:.0%}), so split the text into a hundred files or more"
        )
    digest = hashlib.sha256()
    for _, name, body in found:
        digest.update(f"{name}\0{len(body)}\0".encode(errors="surrogateescape") + body)
    return Corpus(
        root=root,
        files=len(found),
        train=np.frombuffer(train, np.uint8),
        held_out=np.frombuffer(held_out, np.uint8),
        digest=digest.hexdigest()[:16],
    )


def _place(name: str) -> float:
    """Where a file lies in 0..1, from the hash of its relative path: the same on every machine and for ever."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big") / 2**64


def _read_texts(root: Path, suffix: str) -> list[tuple[str, bytes]]:
    """Relative path and content of each text file below `root` whose name ends in `suffix`; text holds no zero byte."""
    texts: list[tuple[str, bytes]] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if not name.endswith(suffix) or name.startswith(".") or not path.is_file():
                continue
            try:
                body = path.read_bytes()
            except OSError as error:
                raise ConfigError(f"data: cannot read {path}: {error.strerror}; make it readable or move it") from error
            if b"\0" not in body[:SNIFF_BYTES]:
                texts.append((path.relative_to(root).as_posix(), body))
    return texts


class ShardCursor:
    """Walks one shard in shuffled windows, each once an epoch, and can say where it stands in a few integers.

    Windows of `context + 1` bytes start `context` apart, at an offset that changes with the epoch, so that no byte is
    predicted twice in an epoch. Not for use by two threads at once.
    """

    def __init__(self, shard: Bytes, *, index: int, batch_size: int, context: int, seed: int) -> None:
        if batch_size < 1 or context < 1:
            raise ConfigError(f"batch_size is {batch_size} and context {context}, but both must be at least 1")
        if len(shard) < 2 * context + 1:
            raise ConfigError(
                f"shard {index} holds {len(shard)} bytes, but context {context} needs at least {2 * context + 1}; "
                "lower task.num_shards or task.context, or add text"
            )
        self._shard, self._index, self._batch_size, self._context, self._seed = shard, index, batch_size, context, seed
        self._epoch, self._taken = 0, 0
        self._starts = self._draw()

    @property
    def epoch(self) -> int:
        """Full passes over the shard so far."""
        return self._epoch

    def next_batch(self) -> Tensor:
        """Take the next (batch_size, context+1) int64 windows; at the end of an epoch go on with the next."""
        rows: list[npt.NDArray[np.int64]] = []
        wanted = self._batch_size
        while wanted:
            if self._taken == len(self._starts):
                self._epoch, self._taken = self._epoch + 1, 0
                self._starts = self._draw()
            rows.append(self._starts[self._taken : self._taken + wanted])
            self._taken += len(rows[-1])
            wanted -= len(rows[-1])
        return _windows(self._shard, np.concatenate(rows), self._context)

    def skip(self, batches: int) -> None:
        """Go on as if so many batches had been taken."""
        left = batches * self._batch_size
        while left:
            if self._taken == len(self._starts):
                self._epoch, self._taken = self._epoch + 1, 0
                self._starts = self._draw()
            passed = min(left, len(self._starts) - self._taken)
            self._taken, left = self._taken + passed, left - passed

    def state_dict(self) -> dict[str, int]:
        """Where the walk stands, in integers that JSON holds."""
        return {**self._identity(), "epoch": self._epoch, "taken": self._taken}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on exactly where the cursor that gave `state` stood. Raises ConfigError if it walked something else."""
        for key, own in self._identity().items():
            if state.get(key) != own:
                raise ConfigError(
                    f"the saved data cursor has {key} {state.get(key)}, but this learner {own}; put the [task] "
                    "settings and the text back as they were, or start this learner with a new state"
                )
        epoch, taken = state.get("epoch", -1), state.get("taken", -1)
        if not all(type(count) is int and 0 <= count < 2**53 for count in (epoch, taken)):
            raise ConfigError(f"the saved data cursor has epoch {epoch} and taken {taken}, but both must be at least 0")
        self._epoch, self._taken = epoch, 0
        self._starts = self._draw()
        if taken > len(self._starts):
            raise ConfigError(f"the saved data cursor has taken {taken} of {len(self._starts)} windows: it is damaged")
        self._taken = taken

    def _identity(self) -> dict[str, int]:
        """What must be equal for a state to mean the same windows (the batch size may differ)."""
        return {"shard": self._index, "shard_bytes": len(self._shard), "context": self._context, "seed": self._seed}

    def _draw(self) -> npt.NDArray[np.int64]:
        """Starts (n,) int64 of this epoch's windows, shuffled."""
        rng = np.random.default_rng([self._seed, self._index, self._epoch])
        offset = int(rng.integers(self._context))
        count = (len(self._shard) - 1 - offset) // self._context
        return rng.permutation(count).astype(np.int64) * self._context + offset


def validation_batches(held_out: Bytes, n: int, batch: int, context: int) -> list[Tensor]:
    """Make `n` batches (batch, context+1) int64, evenly spread over `held_out` and always the same ones.

    Raises ConfigError when the held-out part is too short for windows that do not overlap.
    """
    count = n * batch
    if len(held_out) < count * (context + 1):
        raise ConfigError(
            f"held-out part has {len(held_out)} bytes, but {n} batches of {batch} x {context + 1} need "
            f"{count * (context + 1)}; lower validation_batches or context, or add text"
        )
    starts = np.arange(count, dtype=np.int64) * (len(held_out) // count)
    # a stride over the batches, so that each batch samples the whole part
    return [_windows(held_out, starts[i::n], context) for i in range(n)]


def _windows(source: Bytes, starts: npt.NDArray[np.int64], context: int) -> Tensor:
    """Copy the windows at `starts` (b,) into a fresh int64 tensor (b, context+1)."""
    picked = source[starts[:, None] + np.arange(context + 1, dtype=np.int64)]
    return torch.from_numpy(picked.astype(np.int64))
