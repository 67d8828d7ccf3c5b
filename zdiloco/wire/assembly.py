"""The bytes of one body while they arrive: chunks are checked and copied straight to their place.

Rule: nothing is believed. A chunk enters only with an index in range, its exact length and its right checksum; the
body counts as whole only when the digest over the checksums is the announced one.
"""

from array import array
from enum import Enum, auto

import xxhash

from zdiloco.core.messages import Body
from zdiloco.errors import MalformedFrame
from zdiloco.wire.frames import MAX_CHUNK, Buffer
from zdiloco.wire.transfer import MAX_RANGES, MIN_CHUNK, Chunk, chunk_count, digest_of


class Outcome(Enum):
    """What became of a chunk."""

    ACCEPTED = auto()
    DUPLICATE = auto()
    UNKNOWN = auto()
    """No transfer of that name is expected from that peer: finished, given up, or never announced."""
    CORRUPT = auto()
    """Wrong index, length or checksum; or the whole body does not have its digest."""
    COMPLETE = auto()
    """It was the last one, and the body is whole."""

    @property
    def brings(self) -> bool:
        """Whether bytes have come that are not known to have been here before, wanted or not.

        UNKNOWN may also be a late copy of a chunk whose body has been released: nobody remembers.
        """
        return self not in (Outcome.DUPLICATE, Outcome.CORRUPT)


class Assembly:
    """A body under way. Memory: its bytes, and 9 for each chunk. `checksums`: of the chunks that are in, else 0."""

    def __init__(self, body: Body) -> None:
        """Allocate room for the body. Raises: MalformedFrame where its chunk size is not allowed."""
        self.body = body
        self.count = chunk_count(body.nbytes, body.chunk_bytes)
        if body.chunk_bytes > MAX_CHUNK or (self.count > 1 and body.chunk_bytes < MIN_CHUNK):
            raise MalformedFrame(
                f"the transfer {body.transfer!r} has chunks of {body.chunk_bytes} bytes; "
                f"allowed is {MIN_CHUNK} to {MAX_CHUNK}"
            )
        self.data = memoryview(bytearray(body.nbytes))
        self.received_bytes = 0
        self._seen = bytearray(self.count)
        self._left = self.count
        self.checksums = array("Q", bytes(8 * self.count))

    @property
    def complete(self) -> bool:
        """Whether every chunk is in (its digest may still be wrong)."""
        return self._left == 0

    @property
    def digest_is_right(self) -> bool:
        """Whether the checksums of all chunks have the announced digest."""
        return digest_of(self.checksums) == self.body.digest

    def has(self, index: int) -> bool:
        """Whether a chunk is in; `index` is in range."""
        return bool(self._seen[index])

    def size_of(self, index: int) -> int:
        """Return the bytes of a chunk: all have the same size but the last one."""
        return min(self.body.chunk_bytes, self.body.nbytes - index * self.body.chunk_bytes)

    def put(self, chunk: Chunk, payload: Buffer) -> Outcome:
        """Copy a chunk to its place if all is right with it. COMPLETE: the last one is in; its digest is not judged."""
        index = chunk.index
        if index >= self.count:
            return Outcome.CORRUPT
        if self._seen[index]:
            return Outcome.DUPLICATE
        view = memoryview(payload).cast("B")
        if view.nbytes != self.size_of(index) or xxhash.xxh3_64_intdigest(view) != chunk.checksum:
            return Outcome.CORRUPT
        start = index * self.body.chunk_bytes
        self.data[start : start + view.nbytes] = view
        self._seen[index] = 1
        self.checksums[index] = chunk.checksum
        self._left -= 1
        self.received_bytes += view.nbytes
        return Outcome.ACCEPTED if self._left else Outcome.COMPLETE

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges (first, count) of chunks in [start, end) that are not in, at most MAX_RANGES of them."""
        ranges: list[tuple[int, int]] = []
        while len(ranges) < MAX_RANGES:
            first = self._seen.find(0, start, end)
            if first < 0:
                break
            start = self._seen.find(1, first, end)
            if start < 0:
                start = end
            ranges.append((first, start - first))
        return ranges
