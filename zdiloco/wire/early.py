"""Chunks of broadcasts that overtake their announcement: the two travel over different connections.

Rule: what waits here is bounded in bytes and in chunks, whatever comes; the oldest transfer goes first.
"""

from collections import OrderedDict
from collections.abc import Hashable

from zdiloco.wire.transfer import Chunk

EARLY_MAX_BYTES = 2**25
EARLY_MAX_CHUNKS = 1024


class Early:
    """Chunks by transfer, until it is announced. `nbytes` and `chunks`: what waits now."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, list[tuple[Chunk, memoryview]]] = OrderedDict()
        self.nbytes = self.chunks = 0

    def keep(self, transfer: Hashable, chunk: Chunk, payload: memoryview) -> None:
        """Hold a chunk back; what is too much then is gone, the oldest transfer first."""
        self._waiting.setdefault(transfer, []).append((chunk, payload))
        self.nbytes += payload.nbytes
        self.chunks += 1
        while self.nbytes > EARLY_MAX_BYTES or self.chunks > EARLY_MAX_CHUNKS:
            self.take(next(iter(self._waiting)))

    def take(self, transfer: Hashable) -> list[tuple[Chunk, memoryview]]:
        """Hand over the chunks of a transfer, in the order of their coming; they wait here no more."""
        chunks = self._waiting.pop(transfer, [])
        self.chunks -= len(chunks)
        self.nbytes -= sum(payload.nbytes for _, payload in chunks)
        return chunks
