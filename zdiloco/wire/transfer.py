"""How bodies travel: the messages of a transfer, and the arithmetic of chunks that both ends share.

Rule: the receiver drives. It grants bytes as an absolute offset and names the chunks that it misses; the sender sends
what is granted and nothing else. Each chunk carries a checksum, and the body's digest is taken over all of them.
Sender: `outbox.py`. Receiver: `inbox.py`. Broadcast chunks come without credit; only what was lost is asked for.
"""

from array import array
from dataclasses import dataclass

import xxhash

from zdiloco.core.bounds import MAX_COUNT, MAX_NAME, MAX_TEXT, check_range, check_text
from zdiloco.core.messages import Body
from zdiloco.errors import MachineError
from zdiloco.wire.frames import MAX_CHUNK, Buffer
from zdiloco.wire.joined import Joined, joined

MAX_RANGES = 64
"""Most ranges of missing chunks that one credit names."""
MIN_CHUNK = 1024
"""Least chunk size of a body with more than one chunk: bookkeeping stays below one hundredth of the bytes."""
MAX_TRANSFER = 2 * MAX_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class Credit:
    """The receiver of a transfer says what it has and what the sender may send.

    In order, up to the absolute offset `upto` in bytes; and once more, or out of order, the chunks in `missing`, as
    ascending disjoint ranges (first, count). `received` counts whole bytes that are in: equal to the body's length it
    says that all has arrived. Repeating a credit is harmless; `upto` never falls.
    """

    transfer: str
    upto: int
    received: int
    missing: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        check_text(self, transfer=MAX_TRANSFER)
        check_range(self, upto=(0, MAX_COUNT), received=(0, MAX_COUNT))
        if len(self.missing) > MAX_RANGES:
            raise ValueError(f"Credit.missing has {len(self.missing)} ranges; allowed is {MAX_RANGES}")
        end = 0
        for first, count in self.missing:
            if not (end <= first <= MAX_COUNT and 1 <= count <= MAX_COUNT):
                raise ValueError(f"Credit.missing holds ({first}, {count}); ranges must be ascending and disjoint")
            end = first + count


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """One chunk of a transfer; its payload is the second frame. `checksum` is xxh3_64 of the payload."""

    transfer: str
    index: int
    checksum: int

    def __post_init__(self) -> None:
        check_text(self, transfer=MAX_TRANSFER)
        check_range(self, index=(0, MAX_COUNT), checksum=(0, 2**64 - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Gone:
    """A transfer will not be completed: the sender no longer has it (`by_sender`), or the receiver gives it up."""

    transfer: str
    by_sender: bool
    reason: str

    def __post_init__(self) -> None:
        check_text(self, transfer=MAX_TRANSFER, reason=MAX_TEXT)


TransferMessage = Credit | Chunk | Gone


def chunk_count(nbytes: int, chunk_bytes: int) -> int:
    """Return how many chunks a body has; none where it is empty."""
    return -(-nbytes // chunk_bytes)


def checksums_of(payload: Buffer | Joined, chunk_bytes: int) -> "array[int]":
    """Return xxh3_64 of each chunk of `payload`, in order, as unsigned 64-bit numbers."""
    whole = joined(payload)
    starts = range(0, whole.nbytes, chunk_bytes)
    return array("Q", (xxhash.xxh3_64_intdigest(whole.piece(at, at + chunk_bytes)) for at in starts))


def digest_of(checksums: "array[int]") -> int:
    """Return the digest of a body: xxh3_64 over its chunk checksums, each as eight little-endian bytes."""
    return xxhash.xxh3_64_intdigest(b"".join(value.to_bytes(8, "little") for value in checksums))


def body_of(transfer: str, nbytes: int, chunk_bytes: int, checksums: "array[int]") -> Body:
    """Return the Body of a payload whose chunk checksums are known.

    Raises: MachineError where the chunk size is not allowed.
    """
    if not MIN_CHUNK <= chunk_bytes <= MAX_CHUNK:
        raise MachineError(f"chunks of {chunk_bytes} bytes were asked for; allowed is {MIN_CHUNK} to {MAX_CHUNK}")
    return Body(transfer=transfer, nbytes=nbytes, chunk_bytes=chunk_bytes, digest=digest_of(checksums))


def make_body(transfer: str, payload: Buffer, chunk_bytes: int) -> Body:
    """Return what a message says of `payload` when it travels as `transfer` in chunks of `chunk_bytes`.

    Raises: MachineError where the chunk size is not allowed.
    """
    view = memoryview(payload)
    return body_of(transfer, view.nbytes, chunk_bytes, checksums_of(view, max(1, chunk_bytes)))
