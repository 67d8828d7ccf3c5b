"""The sending end of transfers: it holds payloads and says which chunks go out now.

Rule: payloads are the caller's immutable bytes, not copied, and held until dropped; chunks are views of them. A
credit is answered once: what was sent to a peer is sent again only when the peer names it as missing.
"""

from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from zdiloco.core.messages import Body
from zdiloco.errors import MachineError
from zdiloco.wire.frames import CHUNK_BYTES, Buffer
from zdiloco.wire.joined import Joined, joined
from zdiloco.wire.transfer import Chunk, Credit, Gone, body_of, checksums_of, chunk_count

MOST_PEERS = 4096
"""Peers of one payload of which it is known how far they are served. Anybody may ask under ever new names; the first of
more is forgotten, and is served from where it says to be if it names nothing as missing."""


@dataclass(frozen=True, slots=True)
class ChunkOut:
    """One chunk to send: to `peer`, or to every subscriber where it is None. `view` shares memory with the payload."""

    peer: Hashable
    transfer: str
    index: int
    checksum: int
    view: memoryview

    @property
    def header(self) -> Chunk:
        """The message that goes before the payload."""
        return Chunk(transfer=self.transfer, index=self.index, checksum=self.checksum)


@dataclass(kw_only=True, slots=True)
class OutboxCounters:
    """What the outbox has handed out since it was made, in bytes of payload; `resent` is a part of `handed_out`."""

    handed_out_bytes: int = 0
    resent_bytes: int = 0
    gone: int = 0


@dataclass(kw_only=True, slots=True)
class _Outgoing:
    """One payload; `cursors` holds the next chunk index in order for each peer that has given credit."""

    payload: Joined
    body: Body
    checksums: "array[int]"
    was_broadcast: bool = False
    cursors: dict[Hashable, int] = field(default_factory=dict)


class Outbox:
    """All payloads that this process has on offer, by transfer name. `counters` may be read at any time."""

    def __init__(self) -> None:
        self._held: dict[str, _Outgoing] = {}
        self.counters = OutboxCounters()

    def __contains__(self, transfer: object) -> bool:
        return transfer in self._held

    @property
    def held_bytes(self) -> int:
        """Sum of the payloads that have not been dropped."""
        return sum(outgoing.payload.nbytes for outgoing in self._held.values())

    def add(self, transfer: str, payload: Buffer | Joined, chunk_bytes: int = CHUNK_BYTES) -> Body:
        """Hold `payload` (not copied: the caller must not change it until `drop`) and return its Body.

        Raises: MachineError where the name is taken or the chunk size is not allowed.
        """
        whole = joined(payload)
        checksums = checksums_of(whole, max(1, chunk_bytes))
        body = body_of(transfer, whole.nbytes, chunk_bytes, checksums)
        self.hold(body, whole, checksums)
        return body

    def hold(self, body: Body, payload: Buffer | Joined, checksums: "array[int]") -> None:
        """Hold a payload whose body and chunk checksums are known. Raises: MachineError where the name is taken."""
        if body.transfer in self._held:
            raise MachineError(f"the transfer {body.transfer!r} is already held; each payload needs a name of its own")
        self._held[body.transfer] = _Outgoing(payload=joined(payload), body=body, checksums=checksums)

    def body(self, transfer: str) -> Body | None:
        """The body of a payload on offer; None: it is not held."""
        outgoing = self._held.get(transfer)
        return outgoing.body if outgoing else None

    def drop(self, transfer: str) -> bool:
        """Let a payload go; chunks handed out earlier stay valid views. Returns whether it was held."""
        return self._held.pop(transfer, None) is not None

    def is_through(self, credit: Credit) -> bool:
        """Whether all of a transfer that is held has arrived by what this credit says."""
        outgoing = self._held.get(credit.transfer)
        return outgoing is not None and credit.received >= outgoing.body.nbytes

    def forget_peer(self, peer: Hashable) -> None:
        """Forget how far a peer has been served. For one that is gone for good: after a mere reconnection the
        receiver's next credit says what it misses."""
        for outgoing in self._held.values():
            outgoing.cursors.pop(peer, None)

    def on_gone(self, peer: Hashable, gone: Gone) -> None:
        """A receiver has given a transfer up: forget how far it was served. The payload stays until `drop`."""
        outgoing = self._held.get(gone.transfer)
        if outgoing is not None:
            outgoing.cursors.pop(peer, None)

    def on_credit(self, peer: Hashable, credit: Credit) -> list[ChunkOut] | Gone:
        """Return the chunks to send to `peer` now, in the order of sending; a Gone where the transfer is not held.

        First those named as missing, then in order from where the last credit ended to `upto`. A peer unknown so far
        may have begun elsewhere: it is sent what it names as missing, or, if that is nothing, what is behind as many
        bytes as it has. One credit never yields a chunk twice.
        """
        outgoing = self._held.get(credit.transfer)
        if outgoing is None:
            self.counters.gone += 1
            return Gone(transfer=credit.transfer, by_sender=True, reason="the sender holds no such transfer")
        return self._hand_out(peer, outgoing, self._due(peer, outgoing, credit))

    def broadcast(self, transfer: str) -> list[ChunkOut]:
        """Return every chunk once, for all subscribers.

        Raises: MachineError where the transfer is not held.
        """
        outgoing = self._held.get(transfer)
        if outgoing is None:
            raise MachineError(f"the transfer {transfer!r} is to be broadcast, but it is not held")
        outgoing.was_broadcast = True
        return self._hand_out(None, outgoing, range(chunk_count(outgoing.body.nbytes, outgoing.body.chunk_bytes)))

    def _due(self, peer: Hashable, outgoing: _Outgoing, credit: Credit) -> list[int]:
        """Move the peer's cursor, and return the indices that this credit asks for."""
        nbytes, chunk_bytes = outgoing.body.nbytes, outgoing.body.chunk_bytes
        count = chunk_count(nbytes, chunk_bytes)
        if len(outgoing.cursors) >= MOST_PEERS and peer not in outgoing.cursors:
            del outgoing.cursors[next(iter(outgoing.cursors))]
        if credit.received >= nbytes:
            outgoing.cursors[peer] = count
            return []
        end = count if credit.upto >= nbytes else credit.upto // chunk_bytes
        missing = [index for first, many in credit.missing for index in range(first, min(first + many, count))]
        known = outgoing.cursors.get(peer)
        cursor = known if known is not None else (end if missing else credit.received // chunk_bytes)
        outgoing.cursors[peer] = max(cursor, end)
        sent_before = count if outgoing.was_broadcast else known or 0
        self.counters.resent_bytes += sum(_view(outgoing, index).nbytes for index in missing if index < sent_before)
        named = set(missing)
        return missing + [index for index in range(cursor, end) if index not in named]

    def _hand_out(self, peer: Hashable, outgoing: _Outgoing, indices: Iterable[int]) -> list[ChunkOut]:
        name, checksums = outgoing.body.transfer, outgoing.checksums
        chunks = [ChunkOut(peer, name, index, checksums[index], _view(outgoing, index)) for index in indices]
        self.counters.handed_out_bytes += sum(chunk.view.nbytes for chunk in chunks)
        return chunks


def _view(outgoing: _Outgoing, index: int) -> memoryview:
    start = index * outgoing.body.chunk_bytes
    return outgoing.payload.piece(start, start + outgoing.body.chunk_bytes)
