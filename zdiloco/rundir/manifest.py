"""What stands in a manifest, the file that makes of a checkpoint's other files a cut; read as if a stranger wrote it.

Rule: a manifest is a table whose digest is right, whose every field is of its type and in its range, and which names
files of its own folder only. Everything else is a StoreError that says what is wrong.
"""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from zdiloco.core.bounds import MAX_COUNT, MAX_EPOCH
from zdiloco.errors import StoreError
from zdiloco.rundir.disk import open_file
from zdiloco.units import Epoch, MemberKey, Merged

FORMAT = 1
_NAME = re.compile(r"manifest-([0-9]{9,18})-e([0-9]{1,18})\.json")


class ForeignCheckpoint(StoreError):
    """Written by another version of the format: never passed over for something older."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One fragment: its file, and what of its state is not in that file. `stamp`: epoch (counter, ident), version."""

    fragment: int
    file: str
    digest: str
    bytes: int
    stamp: tuple[int, int, int]
    codec: str
    map: tuple[Merged, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole manifest. `replaced` and `live` are missing in those that early versions of 0.1 wrote."""

    run_id: str
    epoch: Epoch
    layout_digest: str
    layout: str
    progress_tokens: float
    fragments: tuple[Entry, ...]
    replaced: tuple[MemberKey, ...] = ()
    live: tuple[MemberKey, ...] = ()


def numbers_of(path: Path) -> tuple[int, int] | None:
    """The number of a manifest and the epoch counter in its name; None where it is not named as one."""
    found = _NAME.fullmatch(path.name)
    return (int(found[1]), int(found[2])) if found else None


def number_of(path: Path) -> int:
    """The number of a manifest, by its name; 0: the name is none of ours."""
    numbers = numbers_of(path)
    return numbers[0] if numbers else 0


def canonical(tree: Any) -> bytes:
    """The bytes of a tree that digests are taken over."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def signed(tree: dict[str, Any]) -> bytes:
    """The bytes of a manifest: what it says, and the digest of that."""
    return canonical({**tree, "digest": xxhash.xxh3_128_hexdigest(canonical(tree))})


def read_table(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON table."""
    try:
        with open_file(path) as file:
            tree = json.loads(file.read())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}") from error
    if not isinstance(tree, dict):
        raise StoreError(f"{path} is not ours: it holds no table")
    return tree


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises ForeignCheckpoint for another format, StoreError for anything that is not whole."""
    tree = read_table(path)
    if tree.get("format") != FORMAT:
        raise ForeignCheckpoint(
            f"{path} has format {str(tree.get('format'))[:40]}; this version of zdiloco reads {FORMAT}"
        )
    digest = tree.pop("digest", None)
    try:
        if digest != xxhash.xxh3_128_hexdigest(canonical(tree)):
            raise StoreError(f"{path} is damaged: its content has not the digest that it names")
        manifest = msgspec.convert(tree, Manifest, strict=True)
        if wrong := next(filter(None, _wrongs(manifest)), ""):
            raise ValueError(wrong)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not a complete manifest ({str(error)[:300]})") from error
    return manifest


def _wrongs(manifest: Manifest) -> Iterable[str]:
    """Say what is out of range, an empty text where nothing is."""
    yield _wrong_epoch(*manifest.epoch)
    yield "" if math.isfinite(manifest.progress_tokens) and manifest.progress_tokens >= 0 else "progress_tokens"
    yield _wrong_file(manifest.layout)
    for key in (*manifest.replaced, *manifest.live):
        yield "" if 0 < key.incarnation < 2**64 else "an incarnation in replaced or live"
    for index, entry in enumerate(manifest.fragments):
        yield "" if entry.fragment == index else f"fragment {index} is not at its place"
        yield _wrong_file(entry.file)
        counter, ident, version = entry.stamp
        yield _wrong_epoch(counter, ident)
        yield "" if -1 <= version <= MAX_COUNT else f"the version of fragment {index}"
        for row in entry.map:
            counts = all(0 <= count <= MAX_COUNT for count in row[2:])
            yield "" if counts and 0 < row.incarnation < 2**64 else f"a row in the map of fragment {index}"
        yield "" if len({row.key for row in entry.map}) == len(entry.map) else f"two rows of one process in {index}"


def _wrong_epoch(counter: int, ident: int) -> str:
    return "" if 0 <= counter <= MAX_EPOCH and 0 <= ident < 2**64 else "an epoch out of range"


def _wrong_file(name: str) -> str:
    """A file of the manifest's own folder has a plain name."""
    return "" if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}", name) else "a file name that cannot be ours"
