"""The bodies that are larger than a header and are not tensors: records, and maps such as status and layout.

Rule: the caller gives the most bytes that it takes, and what they become in memory stays within a small multiple.
Records are decoded straight into typed rows, so nothing else is ever built. Maps are JSON text: it declares no
lengths, so it cannot promise more than it holds, and a person can read it.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from zdiloco.core.bounds import MAX_COUNT, MAX_NAME
from zdiloco.errors import MachineError, MalformedFrame
from zdiloco.units import Merged
from zdiloco.wire.frames import Buffer, shown

MAX_MAP_DEPTH = 16
MAX_DIGITS = 20
"""Longest whole number that a map may hold: 64 bits and a sign."""

_ROWS = msgspec.msgpack.Decoder(tuple[Merged, ...], strict=True)


def encode_record(record: Iterable[Merged]) -> bytes:
    """Return a record (what of whom is in a state) as bytes that `decode_record` takes, rows in the given order.

    Raises: MachineError for a row whose numbers are out of range, or two rows of one process.
    """
    rows = tuple(record)
    if wrong := _first_wrong(rows):
        raise MachineError(f"a record was made with {wrong}")
    return msgspec.msgpack.encode(rows)


def decode_record(buffer: Buffer, max_bytes: int) -> tuple[Merged, ...]:
    """Return the rows of a record, each with all its numbers in range and no process named twice.

    Raises: MalformedFrame for more than `max_bytes` bytes, or anything that is not such a record.
    """
    _check_size(buffer, max_bytes, "record")
    try:
        rows = _ROWS.decode(buffer)
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedFrame(f"a record does not parse: {shown(error)}") from error
    if wrong := _first_wrong(rows):
        raise MalformedFrame(f"a record holds {wrong}")
    return rows


def join_update(value: Buffer, record: Iterable[Merged]) -> bytes:
    """Return the body of an update or a handback: the encoded value, then the record. Copies the value once."""
    return b"".join((value, encode_record(record)))


def split_update(body: Buffer, value_bytes: int, max_record_bytes: int) -> tuple[memoryview, tuple[Merged, ...]]:
    """Return the encoded value, as a view of `body` without copying, and the rows of the record behind it.

    Raises: MalformedFrame where `value_bytes` is more than there is, or the record is too large or malformed.
    """
    view = memoryview(body).cast("B")
    if not 0 <= value_bytes <= view.nbytes:
        raise MalformedFrame(f"a value of {value_bytes} bytes is announced in a body of {view.nbytes}")
    return view[:value_bytes], decode_record(view[value_bytes:], max_record_bytes)


def encode_map(value: Mapping[str, object]) -> bytes:
    """Return a map of texts, numbers, truth values, None, lists and maps of these as UTF-8 JSON.

    Raises: MachineError for anything else in it: other types or keys, numbers that are none, deep nesting.
    """
    if wrong := _first_alien(value, 1):
        raise MachineError(f"a map was made with {wrong}")
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def decode_map(buffer: Buffer, max_bytes: int) -> dict[str, Any]:
    """Return what `encode_map` was given (tuples come back as lists).

    Raises: MalformedFrame for more than `max_bytes` bytes, text that is not UTF-8 JSON, repeated keys, numbers that
    are none or have more than 20 digits, nesting deeper than 16, or a value that is not a map.
    """
    _check_size(buffer, max_bytes, "map")
    try:
        value = json.loads(
            str(buffer, "utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_short,
        )
    except (ValueError, RecursionError) as error:
        raise MalformedFrame(f"a map does not parse: {shown(error)}") from error
    if type(value) is not dict:
        raise MalformedFrame(f"expected a map, got a {type(value).__name__}")
    if wrong := _first_alien(value, 1):
        raise MalformedFrame(f"a map holds {wrong}")
    return value


def _check_size(buffer: Buffer, max_bytes: int, what: str) -> None:
    size = memoryview(buffer).nbytes
    if size > max_bytes:
        raise MalformedFrame(f"a {what} has {size} bytes; allowed is {max_bytes}")


def _first_wrong(rows: tuple[Merged, ...]) -> str:
    """Say what is wrong with the first bad row; an empty text where none is."""
    seen = set()
    for row in rows:
        name, incarnation, seq, steps, tokens = row
        fine = 1 <= len(name) <= MAX_NAME and 1 <= incarnation < 2**64 and 1 <= seq <= MAX_COUNT
        if not (fine and 0 <= steps <= MAX_COUNT and 0 <= tokens <= MAX_COUNT):
            return f"a row out of range: {shown(row, 200)}"
        seen.add((name, incarnation))
    return "two rows of one process" if len(seen) < len(rows) else ""


def _first_alien(value: object, depth: int) -> str:
    """Say what in `value` a map may not hold; an empty text where all is well."""
    if isinstance(value, str):
        return "" if value.isascii() or _encodes(value) else "a text that is not Unicode"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"the number {value}"
    if value is None or isinstance(value, int):
        return "" if value is None or abs(value) < 2**64 else "a number of more than 64 bits"
    if depth > MAX_MAP_DEPTH:
        return f"values nested more than {MAX_MAP_DEPTH} deep"
    if isinstance(value, list | tuple):
        return next(filter(None, (_first_alien(item, depth + 1) for item in value)), "")
    if not isinstance(value, dict):
        return f"a value of type {type(value).__name__}"
    for key, item in value.items():
        if not isinstance(key, str):
            return f"a key of type {type(key).__name__}"
        if wrong := _first_alien(key, depth) or _first_alien(item, depth + 1):
            return wrong
    return ""


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _short(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(text)
