"""What a relay keeps of what is published: encoded bodies, whole or still coming, handed out chunk by chunk.

Rule: only what has its checksum is handed out, and a body is whole only when its digest is right; nothing is made up.
Bodies are fetched once, on behalf of all who ask: what somebody is granted and is not here yet goes to it when it
comes. The newest two updates and the newest whole state of each fragment stay; older ones go when nobody fetches them,
and everything is subject to the byte budget, the oldest states first. What is not here is for others to answer.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from zdiloco.core.messages import Update
from zdiloco.errors import MalformedFrame
from zdiloco.units import FragmentId
from zdiloco.wire.assembly import Assembly, Outcome
from zdiloco.wire.early import Early
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Expected, Inbox
from zdiloco.wire.outbox import ChunkOut, Outbox
from zdiloco.wire.transfer import Chunk, Credit, Gone

UPSTREAM = "upstream"
"""The one peer that bodies come from."""
KEEP = {False: 2, True: 1}
"""States of a fragment that stay though nobody asks for them: of broadcast updates (not full), and of whole states."""
MOST_REPLACED = 4
"""States of a fragment, beyond those, that stay while somebody fetches them."""
MOST_TOLD = 64
"""Updates that are known by name only: who asks for an older one is answered from upstream."""
MOST_AWAITED = 1024
"""Chunks that one peer may wait for in one body; who asks for ever more asks again."""


@dataclass(kw_only=True, slots=True)
class CacheCounters:
    """What the cache did since it was made: chunks handed out, bodies let in, and those for which there was no room."""

    handed_out: int = 0
    handed_out_bytes: int = 0
    let_in: int = 0
    passed: int = 0
    evicted: int = 0


@dataclass(kw_only=True, slots=True)
class _Kept:
    """One body. `awaited`: by peer, the chunks that go to it as soon as they are here."""

    update: Update
    assembly: Assembly
    used_at: float
    awaited: dict[Hashable, set[int]] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class CacheTurn:
    """What to tell upstream, and whom to tell that a body will not come."""

    upstream: list[Credit | Gone] = field(default_factory=list)
    gone: list[tuple[Hashable, Gone]] = field(default_factory=list)


class Cache:
    """Published bodies by transfer. `dropped` (names, emptied by the caller) tells whose chunks are not to go out."""

    def __init__(self, params: InboxParams, idle_s: float) -> None:
        """`params.budget_bytes` bounds all bodies; an older state stays while it was asked for within `idle_s`."""
        self.inbox = Inbox(params)
        self.outbox = Outbox()
        self.early = Early()
        self.counters = CacheCounters()
        self.dropped: list[str] = []
        self._idle_s = idle_s
        self._kept: dict[str, _Kept] = {}
        self._told: dict[str, Update] = {}
        self._slots: dict[tuple[FragmentId, bool], list[str]] = {}
        self._gone: list[tuple[Hashable, Gone]] = []

    def __contains__(self, transfer: object) -> bool:
        return transfer in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of all bodies, whole or coming: never more than the budget."""
        return self.inbox.reserved_bytes

    # ---- from upstream

    def announce(self, update: Update, now: float, *, comes: bool = True) -> list[ChunkOut]:
        """An update is published, or offered to somebody who pulled (`full`): have its body here; one that does not
        come by broadcast (not `comes`), as soon as somebody asks for it.

        Where there is no room for it, it is passed over. Returns what is to go out, since chunks may have come before.
        """
        body = update.body
        known = self._kept.get(body.transfer)
        if known is not None and known.update.body == body:
            return []
        if not (comes or update.full):
            self._told[body.transfer] = update
            if len(self._told) > MOST_TOLD:
                del self._told[next(iter(self._told))]
            return []
        if known is not None:
            self._drop(body.transfer, "another body has taken its name")
        if not self._let_in(update, now, passive=not update.full):
            self.counters.passed += 1
            self.early.take(body.transfer)
            return []
        self.counters.let_in += 1
        self._retire(update.fragment, update.full, now)
        return [out for chunk, data in self.early.take(body.transfer) for out in self.on_chunk(chunk, data, now)]

    def on_chunk(self, chunk: Chunk, payload: memoryview, now: float, *, early: bool = False) -> list[ChunkOut]:
        """Take a chunk in; returns it for everybody who waits for it. `early`: its announcement may still come."""
        kept = self._kept.get(chunk.transfer)
        if kept is None:
            if early:
                self.early.keep(chunk.transfer, chunk, payload)
            return []
        outcome = self.inbox.on_chunk(UPSTREAM, chunk, payload, now)
        if not self.inbox.knows(UPSTREAM, chunk.transfer):
            self._drop(chunk.transfer, "its chunks do not make the body that was announced")
        if outcome not in (Outcome.ACCEPTED, Outcome.COMPLETE):
            return []
        out = []
        start = chunk.index * kept.update.body.chunk_bytes
        view = kept.assembly.data[start : start + payload.nbytes].toreadonly()
        for peer, indices in kept.awaited.items():
            if chunk.index in indices:
                indices.remove(chunk.index)
                out.append(ChunkOut(peer, chunk.transfer, chunk.index, chunk.checksum, view))
        return self._counted(out)

    def tuned(self, *, listening: bool) -> None:
        """The broadcast is taken from now on, on a new connection, or not any more (not `listening`): then nobody waits
        for what of it is still coming."""
        if not listening:
            self.early = Early()
            coming = [name for name, kept in self._kept.items() if not (kept.update.full or kept.assembly.complete)]
            for name in coming:
                self._told[name] = self._kept[name].update
                self._drop(name, "the broadcast is left")
        self.inbox.forgive(UPSTREAM)  # what was not heard before says nothing of this connection

    def on_upstream_gone(self, gone: Gone) -> None:
        """Whoever holds a body upstream does no more: one that is not whole here is forgotten, too."""
        kept = self._kept.get(gone.transfer)
        if kept is not None and not kept.assembly.complete:
            self._drop(gone.transfer, gone.reason)

    # ---- from whoever is served

    def on_credit(self, peer: Hashable, credit: Credit, now: float) -> list[ChunkOut] | None:
        """Return the chunks for `peer` that are here; the others that it is granted follow. None: no such body here."""
        told = self._told.pop(credit.transfer, None)
        if told is not None and credit.transfer not in self._kept and self._let_in(told, now, passive=False):
            self.counters.let_in += 1
            self._retire(told.fragment, told.full, now)
        kept = self._kept.get(credit.transfer)
        if kept is None:
            return None
        kept.used_at = now
        granted = self.outbox.on_credit(peer, credit)
        assert isinstance(granted, list), "what is kept is on offer"
        ready = []
        for chunk in granted:
            if kept.assembly.has(chunk.index):
                ready.append(chunk)
            elif len(wanted := kept.awaited.setdefault(peer, set())) < MOST_AWAITED:
                wanted.add(chunk.index)
        return self._counted(ready)

    def on_gone(self, peer: Hashable, gone: Gone) -> bool:
        """A receiver has given a body up. False: no such body here."""
        kept = self._kept.get(gone.transfer)
        if kept is None:
            return False
        kept.awaited.pop(peer, None)
        self.outbox.on_gone(peer, gone)
        return True

    def forget_peer(self, peer: Hashable) -> None:
        """Nothing more goes to this peer unless it asks again."""
        self.outbox.forget_peer(peer)
        for kept in self._kept.values():
            kept.awaited.pop(peer, None)

    # ---- time

    def turn(self, now: float) -> CacheTurn:
        """Judge what is due; return what to send."""
        turn = self.inbox.turn(now)
        for failed in turn.given_up:  # one of a wrong digest is dropped by now; its name may stand for a new body
            if failed.transfer in self._kept and not self.inbox.knows(UPSTREAM, failed.transfer):
                self._drop(failed.transfer, failed.why)
        told = CacheTurn(upstream=[message for _, message in turn.to_send], gone=self._gone)
        self._gone = []
        return told

    def deadline(self) -> float | None:
        """When `turn` is due next."""
        return self.inbox.deadline()

    # ---- inside

    def _counted(self, chunks: list[ChunkOut]) -> list[ChunkOut]:
        self.counters.handed_out += len(chunks)
        self.counters.handed_out_bytes += sum(chunk.view.nbytes for chunk in chunks)
        return chunks

    def _let_in(self, update: Update, now: float, *, passive: bool) -> bool:
        """Reserve memory for a body, at the cost of older ones; False: it does not fit, or cannot be what it says.
        `passive`: it comes by broadcast."""
        body = update.body
        if not self._make_room(update):
            return False
        try:
            answer = self.inbox.expect(UPSTREAM, body, now, passive=passive, gentle=not (passive or update.full))
        except MalformedFrame:
            return False
        assembly = self.inbox.assembly(UPSTREAM, body.transfer)
        assert answer is not Expected.FULL
        assert assembly is not None
        self.outbox.hold(body, assembly.data, assembly.checksums)
        self._kept[body.transfer] = _Kept(update=update, assembly=assembly, used_at=now)
        names = self._slots.setdefault((update.fragment, update.full), [])
        names.append(body.transfer)
        names.sort(key=lambda name: self._kept[name].update.stamp, reverse=True)
        return True

    def _make_room(self, update: Update) -> bool:
        """Put out as many bodies as an update needs; False: all that may go would not do, and none was put out."""
        victims, lacking_bytes = [], update.body.nbytes - self.inbox.room_bytes
        for name in self._victims(update) if update.body.nbytes <= self.inbox.params.budget_bytes else ():
            if lacking_bytes <= 0:
                break
            victims.append(name)
            lacking_bytes -= self._kept[name].update.body.nbytes
        if lacking_bytes > 0:
            return False
        for name in victims:
            self._drop(name, "it had to make room")
        self.counters.evicted += len(victims)
        return True

    def _victims(self, update: Update) -> Iterator[str]:
        """What may make room for an update, first what is missed least: by its place among the states of its fragment,
        then by when it was asked for. Not newer states of that fragment and kind, nor what somebody waits for."""
        ranked = []
        for slot, names in self._slots.items():
            for rank, name in enumerate(names):
                kept = self._kept[name]
                newer = slot == (update.fragment, update.full) and kept.update.stamp >= update.stamp
                if newer or any(kept.awaited.values()):
                    continue
                ranked.append((-max(0, rank - KEEP[slot[1]] + 1), -rank, kept.used_at, name))
        yield from [name for *_, name in sorted(ranked)]

    def _retire(self, fragment: FragmentId, full: bool, now: float) -> None:
        """Let go of the states of a fragment that newer ones have replaced, unless somebody fetches them."""
        replaced = self._slots[fragment, full][KEEP[full] :]
        for place, name in enumerate(list(replaced)):
            if place >= MOST_REPLACED or now - self._kept[name].used_at > self._idle_s:
                self._drop(name, "newer states have replaced it")

    def _drop(self, transfer: str, why: str) -> None:
        kept = self._kept.pop(transfer)
        slot = (kept.update.fragment, kept.update.full)
        self._slots[slot].remove(transfer)
        if not self._slots[slot]:
            del self._slots[slot]
        if not self.inbox.release(UPSTREAM, transfer):
            self.inbox.cancel(UPSTREAM, transfer)
        self.outbox.drop(transfer)
        self.dropped.append(transfer)
        gone = Gone(transfer=transfer, by_sender=True, reason=why)
        self._gone += [(peer, gone) for peer, wanted in kept.awaited.items() if wanted]
