"""What passes through the relays of a world, and what they answer from their caches.

Rule: a relay does here what the real one does (docs/wire.md, Relays), with the same cache and by the same rules for its
lanes: it decides nothing, and what waits in it is bounded. Each hop takes its time and may lose what it carries; what
is on its way through a process that dies is lost with it.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from zdiloco.core import machine as m
from zdiloco.core.messages import Hello, Unwelcome, Update
from zdiloco.sim import chunks
from zdiloco.sim.actors import Actor, Site
from zdiloco.sim.chunks import ChunkedFreight
from zdiloco.sim.links import Link
from zdiloco.sim.premerge import Premerge
from zdiloco.sim.relay_places import Hop, Lane, Relay, RelayPlaces, dials_s
from zdiloco.units import MemberKey
from zdiloco.wire.lane_life import lane_to_give_up, may_come_beside
from zdiloco.wire.outbox import ChunkOut
from zdiloco.wire.transfer import Chunk, Credit, Gone

if TYPE_CHECKING:
    from zdiloco.sim.scenario import RelaySpec
    from zdiloco.sim.world import World


class Relays(RelayPlaces):
    """The relays of a world, at work. `merging`: what those do that merge, by relay."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.merging: dict[MemberKey, Premerge] = {}

    def start(self, spec: "RelaySpec", link: Link) -> Relay:
        """Start a relay process, and what merges there."""
        relay = super().start(spec, link)
        if spec.premerge:
            self.merging[relay.key] = Premerge(self, relay)
        return relay

    def hang_up(self, relay: Relay, lane: Lane) -> None:
        """A lane is closed."""
        super().hang_up(relay, lane)
        if merges := self.merging.get(relay.key):
            merges.gone(lane.key)

    @property
    def freight(self) -> ChunkedFreight:
        """How bodies travel where there are relays."""
        freight = self.world.freight
        assert isinstance(freight, ChunkedFreight), "a relay passes chunks on"
        return freight

    # ---- from the region

    def hears(self, name: str) -> Callable[[MemberKey, Any], None]:
        """Where a word of the region goes that is sent to this relay now; what comes when it is dead is lost."""
        return partial(self._hear, self.by_name[name])

    def takes(self, name: str) -> Callable[[MemberKey, Chunk, memoryview], None]:
        """The same for a chunk."""
        return partial(self._take, self.by_name[name])

    def _hear(self, relay: Relay, key: MemberKey, word: Any) -> None:
        if self.world.now >= relay.open_at:
            self.world.into(relay, partial(self._from_region, relay, key, word))

    def _take(self, relay: Relay, key: MemberKey, chunk: Chunk, payload: memoryview) -> None:
        if self.world.now >= relay.open_at:
            self.world.into(relay, partial(self._chunk_from_region, relay, key, chunk, payload))

    def _from_region(self, relay: Relay, key: MemberKey, word: Any) -> None:
        lane = self._lane(relay, key)
        if lane is None:
            if isinstance(word, Hello):
                self.tell_below(relay, key, Unwelcome(reason="room", text="the relay is full", fatal=False))
        elif not (isinstance(word, Credit | Gone) and self._served(relay, key, word)):
            lane.hears(word)
            relay.lag.said(key, word)
            self._say(relay, key, word, lane.ready_at)
            if merges := self.merging.get(relay.key):
                merges.said(key, word)
        self.pump(relay)

    def _chunk_from_region(self, relay: Relay, key: MemberKey, chunk: Chunk, payload: memoryview) -> None:
        merges = self.merging.get(relay.key)
        if merges is not None and merges.takes(key, chunk, payload):
            self.pump(relay)
        elif self._lane(relay, key) and self._may_wait(relay, relay.link.up.waiting_bytes(key) + payload.nbytes):
            self.chunk_up(relay, key, chunk, payload)

    def chunk_up(self, relay: Relay, key: MemberKey, chunk: Chunk, payload: memoryview) -> None:
        """A chunk goes up under this name."""
        nbytes = self.world.carry(chunk)[1] + payload.nbytes
        above = self.above(relay)
        if above is not None:
            what = partial(self._take, above, key, chunk, payload)
        elif relay.site is not None:
            what = partial(self.freight.chunk_comes, relay.site, key, chunk, payload)
        else:
            return
        self.freight.queue(relay.link, relay.link.up, (chunk.transfer, chunk.index, key), (nbytes, what))

    def _lane(self, relay: Relay, key: MemberKey) -> Lane | None:
        """The lane of a process, opened now if it has none; None: there is no room for it."""
        lane, now, spec = relay.lanes.get(key), self.world.now, relay.spec
        if lane is None:
            while len(relay.lanes) >= spec.most_learners and (
                victim := lane_to_give_up(relay.lanes.values(), now, spec.forget_after_s)
            ):
                self.hang_up(relay, victim)
            full = len(relay.lanes) >= spec.most_learners
            if full and not may_come_beside(relay.lanes.values(), key, spec.most_learners):
                self.seen["relay: turned away"] += 1
                return None
            lane = relay.lanes[key] = Lane(key, now, ready_at=now + dials_s(relay.link))
        lane.heard_at = now
        return lane

    def _may_wait(self, relay: Relay, waiting_bytes: int) -> bool:
        """Whether a chunk may queue up; what is over the bounds is dropped, and will be asked for again."""
        mine = waiting_bytes <= 2 * self.world.inbox_params.window_bytes + chunks.CHUNK_BYTES
        if mine and self.waiting_bytes(relay) <= relay.spec.budget_bytes:
            return True
        relay.dropped += 1
        return False

    def waiting_bytes(self, relay: Relay) -> int:
        """Bytes of chunks that wait in a relay, both ways, besides those that its cache counts."""
        queues = [relay.link.up.waiting, *(hop.link.down.waiting for hop in self.region(relay))]
        places = [(place, nbytes) for queue in queues for place, (nbytes, _) in queue.items()]
        return sum(nbytes for (name, _, whose), nbytes in places if whose is not None and name not in relay.cache)

    def _served(self, relay: Relay, key: MemberKey, word: Credit | Gone) -> bool:
        """Answer a word about a transfer whose bytes are kept here. False: it is for others to answer."""
        if isinstance(word, Gone):
            known = not word.by_sender and relay.cache.on_gone(key, word)
            if known:
                self.drop(key, word.transfer, relay)
            return known
        chunks = relay.cache.on_credit(key, word, self.world.now)
        if chunks is not None:
            self._hand_out(relay, chunks)
        return chunks is not None

    def _say(self, relay: Relay, key: MemberKey, word: Any, ready_at: float) -> None:
        """A word goes up under this name, as soon as its lane carries."""
        if ready_at > self.world.now:
            self.world.at(ready_at - self.world.now, partial(self._say, relay, key, word, 0.0))
        elif relay.alive:
            nbytes, above = self.world.carry(word)[1], self.above(relay)
            hears = partial(self._hear, above) if above else partial(self._syncer_hears, relay.site)
            what = partial(hears, key, word)
            self.world.send(relay.link.up, nbytes, relay.link.is_cut, what)

    def say_up(self, relay: Relay, word: Any) -> None:
        """A relay says something for itself."""
        self._say(relay, relay.key, word, relay.dialled_at)

    def _syncer_hears(self, site: Site | None, key: MemberKey, word: Any) -> None:
        if site is not None and isinstance(word, Credit | Gone):
            self.freight.hear(site, key, word)
        elif site is not None:
            self.world.tell_syncer(site, m.Received(key=key, message=word))

    # ---- from above

    def cast(self, site: Site, word: Any, nbytes: int) -> None:
        """A syncer broadcasts a word."""
        for relay in [relay for relay in self if not relay.link.behind and relay.site is site]:
            self.world.send(relay.link.down, nbytes, relay.link.is_cut, partial(self._cast_comes, relay, word, nbytes))

    def _cast_comes(self, relay: Relay, word: Any, nbytes: int) -> None:
        if self.world.now >= relay.dialled_at:
            self.world.into(relay, partial(self._cast_on, relay, word, nbytes))

    def _cast_on(self, relay: Relay, word: Any, nbytes: int) -> None:
        self._notice(relay, word)
        if merges := self.merging.get(relay.key):
            merges.broadcast(word)
        for hop in self._connected(relay):
            if isinstance(hop, Relay):
                what = partial(self._cast_comes, hop, word, nbytes)
                self.world.send(hop.link.down, nbytes, hop.link.is_cut, what)
            elif not (self.world.lose("broadcast", word) or hop.link.down.is_missed(word)):
                event = m.Received(key=m.SYNCER, message=word)
                self.world.send(hop.link.down, nbytes, hop.link.is_cut, partial(self.world.tell, hop, event))
        self.pump(relay)

    def cast_chunk(self, site: Site, chunk: Chunk, nbytes: int, payload: memoryview) -> None:
        """A syncer broadcasts a chunk: it crosses each far link once."""
        for relay in [relay for relay in self if not relay.link.behind and relay.site is site]:
            self._cast_chunk_to(relay, chunk, nbytes, payload)

    def tune(self, relay: Relay) -> None:
        """A relay takes the bulk broadcast while somebody in its region does."""
        taken = any(self._listens(hop) for hop in self.region(relay))
        if taken is relay.taken or not relay.alive:
            return
        relay.taken = taken
        relay.cache.tuned(listening=taken)
        for name in {name for name, _, whose in relay.link.down.waiting if whose is None}:
            relay.link.down.drop(name)  # gone with the connection
        above = self.above(relay)
        if above is not None:
            self.tune(above)
        self.pump(relay)

    def _listens(self, hop: Hop) -> bool:
        return hop.listening if isinstance(hop, Actor) else hop.alive and hop.taken

    def _cast_chunk_to(self, hop: Hop, chunk: Chunk, nbytes: int, payload: memoryview) -> None:
        if not self._listens(hop):
            return
        if isinstance(hop, Relay):
            what = partial(self._cast_chunk_comes, hop, chunk, nbytes, payload)
        else:
            what = partial(self.freight.chunk_comes, hop, m.SYNCER, chunk, payload)
        self.freight.queue(hop.link, hop.link.down, (chunk.transfer, chunk.index, None), (nbytes, what))

    def _cast_chunk_comes(self, relay: Relay, chunk: Chunk, nbytes: int, payload: memoryview) -> None:
        if self.world.now >= relay.dialled_at:
            self.world.into(relay, partial(self._cast_chunk_on, relay, chunk, nbytes, payload))

    def _cast_chunk_on(self, relay: Relay, chunk: Chunk, nbytes: int, payload: memoryview) -> None:
        for hop in self._connected(relay):
            self._cast_chunk_to(hop, chunk, nbytes, payload)
        self._hand_out(relay, relay.cache.on_chunk(chunk, payload, self.world.now, early=True))
        self.pump(relay)

    def down(self, key: MemberKey, word: Any, nbytes: int, place: Relay | None = None) -> None:
        """A word of the syncer goes down to one process, from a relay on its way or from the syncer."""
        hop = self.hop(place, key)
        if hop is None:
            return
        what: Callable[[], None]
        if isinstance(hop, Relay):
            what = partial(self.world.into, hop, partial(self._from_above, hop, key, word))
        elif isinstance(word, Credit | Gone):
            what = partial(self.freight.hear, hop, m.SYNCER, word)
        else:
            what = partial(self.world.tell, hop, m.Received(key=m.SYNCER, message=word))
        self.world.send(hop.link.down, nbytes, hop.link.is_cut, what)

    def tell_below(self, relay: Relay, key: MemberKey, word: Any) -> None:
        """A word goes from a relay to one process of its region."""
        if self.world.now >= relay.open_at:
            self.down(key, word, self.world.carry(word)[1], relay)

    def _from_above(self, relay: Relay, key: MemberKey, word: Any) -> None:
        merges = self.merging.get(relay.key)
        if key == relay.key:
            if isinstance(word, Gone) and word.by_sender:
                relay.cache.on_upstream_gone(word)
            elif merges is not None:
                merges.told(word)
        elif key in relay.lanes:  # or its connections have ended with its lane
            self._notice(relay, word)
            if merges is None or not merges.hears(key, word):
                self.tell_below(relay, key, word)
        self.pump(relay)

    def chunk_down(self, key: MemberKey, chunk: Chunk, payload: memoryview, place: Relay | None = None) -> None:
        """A chunk goes down to one process that has asked for it."""
        hop = self.hop(place, key)
        if hop is None:
            return
        nbytes = self.world.carry(chunk)[1] + payload.nbytes
        if isinstance(hop, Relay):
            what = partial(self.world.into, hop, partial(self._chunk_from_above, hop, key, chunk, payload))
        else:
            what = partial(self.freight.chunk_comes, hop, m.SYNCER, chunk, payload)
        self.freight.queue(hop.link, hop.link.down, (chunk.transfer, chunk.index, key), (nbytes, what))

    def _chunk_from_above(self, relay: Relay, key: MemberKey, chunk: Chunk, payload: memoryview) -> None:
        if key == relay.key:
            self._hand_out(relay, relay.cache.on_chunk(chunk, payload, self.world.now))
            self.pump(relay)
        elif key in relay.lanes and self._may_wait(relay, 0):
            self.chunk_down(key, chunk, payload, relay)

    # ---- inside

    def _connected(self, relay: Relay) -> list[Hop]:
        """Who hears what this relay broadcasts."""
        return self.region(relay) if self.world.now >= relay.open_at else []

    def _notice(self, relay: Relay, word: Any) -> None:
        """Take note of what the syncer says; of an announced state the body is to be here."""
        relay.lag.published(word)
        if isinstance(word, Update):
            self._hand_out(relay, relay.cache.announce(word, self.world.now, comes=relay.taken))

    def _hand_out(self, relay: Relay, chunks: list[ChunkOut]) -> None:
        for out in chunks:
            assert isinstance(out.peer, MemberKey)
            self.chunk_down(out.peer, out.header, out.view, relay)

    def drop(self, key: MemberKey, transfer: str, place: Relay | None = None) -> None:
        """The chunks of a transfer that wait for this process are not sent any more."""
        hop = self.hop(place, key)
        if hop is not None:
            hop.link.down.drop(transfer, key)

    def pump(self, relay: Relay) -> None:
        """Fetch what the cache lacks, tell who waits in vain, and look again when the cache wants to."""
        if not relay.alive:
            return
        if merges := self.merging.get(relay.key):
            self.world.arm(relay, merges.turn(), partial(self.pump, relay))
        turn = relay.cache.turn(self.world.now)
        for word in turn.upstream:
            self.say_up(relay, word)
        for peer, gone in turn.gone:
            assert isinstance(peer, MemberKey)
            self.tell_below(relay, peer, gone)
        for transfer in relay.cache.dropped:
            for key in relay.lanes:
                self.drop(key, transfer, relay)
        relay.cache.dropped.clear()
        self.world.arm(relay, relay.cache.deadline(), partial(self.pump, relay))
        if self.world.on_event is not None:
            self.world.on_event(relay)
