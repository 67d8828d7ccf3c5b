"""Work as sets of ids, one per inner step, so that loss and double counting are seen exactly.

A set is one whole number with a bit per id (fast to join and compare). Whatever is joined twice, or taken out where it
is not, is found at once.
"""

import xxhash

from zdiloco.agenda import Broken
from zdiloco.units import Merged
from zdiloco.wire.bodies import encode_record, split_update

MAX_RECORD_BYTES = 2**23


def joined(one: int, other: int, fault: str) -> int:
    """The union of two sets. Raises: Broken where they share an id."""
    if one & other:
        raise Broken("counted twice", f"{fault}: ids {ids_of(one & other)[:9]}")
    return one | other


def without(whole: int, part: int, fault: str) -> int:
    """A set without a part of it. Raises: Broken where the part is not in it."""
    if part & ~whole:
        raise Broken("not there", f"{fault}: ids {ids_of(part & ~whole)[:9]}")
    return whole & ~part


def digest_of(bits: int) -> int:
    """The digest of a set, as published values have one."""
    return xxhash.xxh3_64_intdigest(bits.to_bytes(bits.bit_length() // 8 + 1, "little"))


def ids_of(bits: int) -> list[int]:
    """The ids in a set, in order."""
    ids = []
    while bits:
        low = bits & -bits
        ids.append(low.bit_length() - 1)
        bits ^= low
    return ids


class Parcel:
    """What a body carries: a value (a set of ids, `value_bytes` long), and the bytes of a record behind it."""

    __slots__ = ("_rows", "record", "value", "value_bytes")

    def __init__(self, value: int, value_bytes: int, record: bytes = b"") -> None:
        self.value, self.value_bytes, self.record = value, value_bytes, record
        self._rows: tuple[Merged, ...] | None = None

    @classmethod
    def of(cls, value: int, value_bytes: int, rows: tuple[Merged, ...]) -> "Parcel":
        """A value with its record, in the production encoding."""
        return cls(value, value_bytes, encode_record(rows))

    @classmethod
    def read(cls, data: bytes | memoryview, value_bytes: int) -> "Parcel":
        """What `data` of another process says; a record behind the value is checked as in production."""
        value, rows = split_update(data, value_bytes, MAX_RECORD_BYTES) if len(data) > value_bytes else (data, ())
        parcel = cls(int.from_bytes(value, "little"), value_bytes)
        parcel._rows = rows
        return parcel

    @property
    def nbytes(self) -> int:
        """How long the body is."""
        return self.value_bytes + len(self.record)

    def data(self) -> bytes:
        """The bytes of the body."""
        return self.value.to_bytes(self.value_bytes, "little") + self.record

    def rows(self) -> tuple[Merged, ...]:
        """The record, through the production decoder; decoded once, however many look."""
        if self._rows is None:
            self._rows = split_update(self.record, 0, MAX_RECORD_BYTES)[1] if self.record else ()
        return self._rows
