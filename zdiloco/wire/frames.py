"""What crosses the wire: one small header frame, and for a chunk one payload frame after it.

Rule: a header is a msgpack map of at most 16 KiB, and nothing in it is believed: lengths, depth, repeated keys,
numbers that are none and bytes left over are refused before any field is looked at. Nothing is allocated on a
peer's word: a header cannot grow to more than a few hundred times its own size, whatever it declares.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgpack

from zdiloco.errors import MachineError, MalformedFrame

PROTOCOL = 6
"""Version of everything in wire/; a peer of another version is refused."""
MAX_HEADER = 16 * 1024
"""Most bytes of a header frame; what may be larger travels as a chunked body."""
CHUNK_BYTES = 2**20
"""Default size of a chunk: from 256 KiB to 4 MiB all are fast, and small ones let heartbeats through."""
MAX_CHUNK = 8 * 2**20
"""Most bytes of one payload frame."""
MAX_FRAME = MAX_CHUNK + 64 * 1024
"""Most bytes of any frame: what a socket refuses to take at all."""

MAX_KEYS = 32
MAX_ITEMS = 512
MAX_STRING = 2048
MAX_DEPTH = 4
"""Nesting of the deepest header: map, stamps, stamp, epoch."""

Buffer = bytes | bytearray | memoryview
"""A contiguous run of bytes; a socket's frame is passed as its memoryview."""


def pack_header(header: Mapping[str, object]) -> bytes:
    """Return the header as bytes that `unpack_header` takes.

    Raises: MachineError where it cannot be packed or is larger than MAX_HEADER: the caller should not have made it.
    """
    try:
        data = msgpack.packb(header, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise MachineError(f"a header cannot be packed: {error}") from error
    if len(data) > MAX_HEADER:
        raise MachineError(f"a header of {len(data)} bytes was made; the limit is {MAX_HEADER}: send it as a body")
    return bytes(data)


def unpack_header(buffer: Buffer) -> dict[str, Any]:
    """Return the map in a header frame: text keys, each once; values are numbers, texts, lists and maps of these.

    Raises: MalformedFrame saying which bound the bytes break.
    """
    size = memoryview(buffer).nbytes
    if size > MAX_HEADER:
        raise MalformedFrame(f"a header has {size} bytes; allowed is {MAX_HEADER}")
    try:
        header = msgpack.unpackb(
            buffer,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_unique,
            ext_hook=_refuse_extension,
            max_map_len=MAX_KEYS,
            max_array_len=MAX_ITEMS,
            max_str_len=MAX_STRING,
            max_bin_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedFrame(f"a header does not parse: {shown(error) or type(error).__name__}") from error
    if type(header) is not dict:
        raise MalformedFrame(f"a header is a {type(header).__name__}, not a map")
    _check(header, 1)
    return header


def split_parts(parts: Sequence[Buffer]) -> tuple[memoryview, memoryview | None]:
    """Return header and payload of one multipart message (routing frames already taken off); no bytes are copied.

    Raises: MalformedFrame for another number of frames than one or two, or a frame that is too large.
    """
    if not 1 <= len(parts) <= 2:
        raise MalformedFrame(f"a message has {len(parts)} frames; allowed is a header and at most one payload")
    views = [memoryview(part) for part in parts]
    if views[0].nbytes > MAX_HEADER:
        raise MalformedFrame(f"a header has {views[0].nbytes} bytes; allowed is {MAX_HEADER}")
    if len(views) == 1:
        return views[0], None
    if views[1].nbytes > MAX_CHUNK:
        raise MalformedFrame(f"a payload has {views[1].nbytes} bytes; allowed is {MAX_CHUNK}")
    return views[0], views[1]


def shown(value: object, limit: int = 120) -> str:
    """Return what a peer sent as text that is safe to print: one line of printable characters, cut to `limit`."""
    text = str(value)[:limit]
    return "".join(char if char.isprintable() else "?" for char in text)


def _unique(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if type(key) is not str:
            raise ValueError(f"a key is a {type(key).__name__}, not a text")
        if key in found:
            raise ValueError(f"the key {shown(key, 40)!r} stands there twice")
        found[key] = value
    return found


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code} is not allowed")


def _check(value: Any, depth: int) -> None:
    """Refuse what msgpack lets through: deep nesting, numbers that are none, byte strings."""
    if depth > MAX_DEPTH:
        raise MalformedFrame(f"a header is nested more than {MAX_DEPTH} deep")
    for item in value.values() if type(value) is dict else value:
        kind = type(item)
        if kind is int or kind is str:
            continue
        if kind is list or kind is dict:
            _check(item, depth + 1)
        elif kind is float:
            if not math.isfinite(item):
                raise MalformedFrame(f"a header holds the number {item}")
        elif kind is not bool and item is not None:
            raise MalformedFrame(f"a header holds a value of type {kind.__name__}")
