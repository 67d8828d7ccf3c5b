"""Bodies in chunks: through the production's outbox, inbox and credit, word for word and chunk for chunk.

Rule: credits and good-byes go with the words, chunks with the bodies; both may be lost, and a chunk may come before
the announcement of its body (then it waits in a small place). Whatever is repaired here is repaired by the production.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from zdiloco.agenda import Broken
from zdiloco.core import machine as m
from zdiloco.core.messages import Body, Bundle, Contribution, Handback, LayoutOffer, Loan, Update, Welcome
from zdiloco.errors import PeerError
from zdiloco.sim.actors import Actor, Process, Site
from zdiloco.sim.freight import WholeFreight
from zdiloco.sim.links import MOST_HELD, Link, Passage, Place, Road
from zdiloco.sim.sizes import BYTES, NBYTES
from zdiloco.sim.work import Parcel
from zdiloco.units import MemberKey
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.bodies import decode_map
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Expected
from zdiloco.wire.outbox import ChunkOut
from zdiloco.wire.transfer import Chunk, Credit, Gone

CHUNK_BYTES = 8_192
CHUNKED = InboxParams(budget_bytes=2**28, window_bytes=2**15, stall_s=0.5, give_up_s=5.0)
EARLY_MAX_CHUNKS = 64
MOST_QUEUED = 1_024


class ChunkedFreight(WholeFreight):
    """Each body travels as in production."""

    credited = True

    def put(self, process: Process, name: str, parcel: Parcel) -> Body:
        """Offer a parcel; of a published state, say again what is offered."""
        known = process.depot.bodies.get(name)
        if known is None:
            body = process.depot.outbox.add(name, parcel.data(), CHUNK_BYTES)
            process.depot.hold(name, parcel, body)
            return body
        if isinstance(process, Actor):
            raise Broken("names", f"{process.key.name} offers {name} twice")
        return known

    # ---- bodies that are wanted

    def fetch(self, site: Site, key: MemberKey, message: m.Fetchable) -> None:
        """The syncer grants credit for a body."""
        if (key, message.body.transfer) not in site.depot.wanted:
            self._expect(site, key, message, passive=False)

    def receive(self, actor: Actor, update: Update | Loan, broadcast: bool) -> None:
        """The learner takes in the body of an update or a loan, whose chunks are broadcast or to be asked for."""
        self._expect(actor, m.SYNCER, update, passive=broadcast)

    def _expect(self, process: Process, key: MemberKey, what: m.Fetchable | Update | Loan, passive: bool) -> None:
        depot, place = process.depot, (key, what.body.transfer)
        depot.wanted[place] = what
        last, gentle = isinstance(what, Loan), isinstance(what, Update) and not (passive or what.full)
        try:
            answer = depot.inbox.expect(key, what.body, self.world.now, passive=passive, last=last, gentle=gentle)
        except PeerError as error:
            self._lost(process, place, str(error))
            return
        if answer is Expected.FULL:
            self._lost(process, place, "no room")
        elif answer is Expected.COMPLETE:
            self._whole(process, place)
        for chunk, payload in depot.early.pop(place, []):
            self.on_chunk(process, key, chunk, payload)
        self.pump(process)

    def cancel(self, site: Site, key: MemberKey, name: str) -> None:
        """The syncer needs it no more, complete or not."""
        self._forget(site, (key, name))

    def discard(self, actor: Actor, update: Update | Loan) -> None:
        """The learner needs it no more."""
        self._forget(actor, (m.SYNCER, update.body.transfer))

    def tuned(self, actor: Actor) -> None:
        """What waits on the road to a learner that leaves the broadcast is gone with its connection."""
        if not actor.listening:
            actor.depot.early.clear()
            for name in {transfer for transfer, *_ in actor.link.down.waiting if transfer.startswith("u/")}:
                actor.link.down.drop(name)

    def welcomed(self, actor: Actor, welcome: Welcome) -> None:
        """A silence is over; and another syncer has nothing of what the former was sent."""
        actor.depot.inbox.resume(m.SYNCER, self.world.now)
        if welcome.epoch != actor.machine.epoch:
            actor.depot.outbox.forget_peer(m.SYNCER)
        self.pump(actor)

    def greeted(self, site: Site, key: MemberKey) -> None:
        """It missed us, and what was on its way may be lost."""
        site.depot.inbox.resume(key, self.world.now)
        self.pump(site)

    def reborn(self, actor: Actor) -> None:
        """The learner dials anew: what was on its way to it is lost."""
        actor.depot.inbox.cancel_peer(m.SYNCER)
        actor.depot.wanted.clear()
        actor.depot.early.clear()
        actor.link.up.waiting.clear()
        actor.link.down.waiting.clear()

    def drop(self, process: Process, name: str) -> None:
        """The sender needs it no more."""
        process.depot.drop(name)
        self._drop_waiting(process, m.SYNCER, name)

    def _drop_waiting(self, process: Process, key: MemberKey, name: str) -> None:
        """What waits for the road to that peer is not sent."""
        if isinstance(process, Actor):
            process.link.up.drop(name)
        elif key in self.world.actors and self.world.actors[key].link.behind:
            self.world.relays.drop(key, name)
        elif key in self.world.actors:
            self.world.actors[key].link.down.drop(name)

    def _forget(self, process: Process, place: tuple[MemberKey, str]) -> None:
        process.depot.wanted.pop(place, None)
        process.depot.early.pop(place, None)
        if not process.depot.inbox.release(*place):
            process.depot.inbox.cancel(*place)
        self.pump(process)

    def _lost(self, process: Process, place: tuple[MemberKey, str], reason: str) -> None:
        what = process.depot.wanted.pop(place, None)
        if isinstance(what, Update | Loan) and isinstance(process, Actor):
            self.world.lost_here(process, what)
        elif what is not None and isinstance(process, Site) and not isinstance(what, Update):
            self.world.tell_syncer(process, m.FetchLost(key=place[0], message=what, reason=reason))

    def _whole(self, process: Process, place: tuple[MemberKey, str]) -> None:
        inbox = process.depot.inbox
        what, data = process.depot.wanted.pop(place, None), inbox.take(*place)
        if not isinstance(what, Contribution | Bundle):  # its bytes are held until the syncer frees them
            inbox.release(*place)
        if isinstance(what, Update | Loan) and isinstance(process, Actor):
            nbytes = what.value_bytes if isinstance(what, Update) else NBYTES
            self.world.whole_here(process, what, Parcel.read(data, nbytes))
        elif what is not None and isinstance(process, Site) and not isinstance(what, Update):
            self.world.fetched(process, place[0], what, _parcel_of(what, data))

    # ---- chunks

    def publish(self, site: Site, name: str) -> None:
        """Broadcast a body, chunk by chunk, to all who listen to this syncer."""
        for out in site.depot.outbox.broadcast(name):
            header, nbytes = self.world.carry(out.header)
            for actor in list(self.world.actors.values()):
                if actor.site is site and actor.listening and not actor.link.behind:
                    self._down(actor, header, nbytes, out)
            self.world.relays.cast_chunk(site, header, nbytes + out.view.nbytes, out.view)

    def _send(self, process: Process, key: MemberKey, out: ChunkOut) -> None:
        """A chunk goes to who has asked for it, unless that is not there any more, or follows another syncer."""
        actor = process if isinstance(process, Actor) else self.world.actors.get(key)
        header, nbytes = self.world.carry(out.header)
        if isinstance(process, Actor):
            self._up(process, header, nbytes, out)
        elif self.world.relays.leads(process, key):
            self.world.relays.chunk_down(key, header, out.view)
        elif actor is not None and actor.site is process:
            self._down(actor, header, nbytes, out)

    def _down(self, actor: Actor, header: Chunk, nbytes: int, out: ChunkOut) -> None:
        what = partial(self.chunk_comes, actor, m.SYNCER, header, out.view)
        place = (header.transfer, header.index, None)
        self.queue(actor.link, actor.link.down, place, (nbytes + out.view.nbytes, what))

    def _up(self, actor: Actor, header: Chunk, nbytes: int, out: ChunkOut) -> None:
        if actor.link.behind:
            takes = self.world.relays.takes(actor.link.behind)
        elif actor.site is not None:
            takes = partial(self.chunk_comes, actor.site)
        else:
            return
        place, what = (header.transfer, header.index, None), partial(takes, actor.key, header, out.view)
        self.queue(actor.link, actor.link.up, place, (nbytes + out.view.nbytes, what))

    def queue(self, link: Link, road: Road, place: Place, item: tuple[int, Callable[[], None]]) -> None:
        """A chunk waits for its road: its bytes, and what happens when it arrives. One that waits already keeps its
        place."""
        if place in road.waiting:
            road.stripes.wake()
        else:
            road.stripes.asked_again(*place[:2])
        if len(road.waiting) < MOST_QUEUED:
            road.waiting[place] = item
        if not road.busy:
            self._next(link, road)

    def _next(self, link: Link, road: Road) -> None:
        """The road is free: the next chunk goes out."""
        world = self.world
        place = next(iter(road.waiting), None)
        stripe = road.takes(*place[:2]) if place else None
        road.busy = stripe is not None
        if place is None or stripe is None:  # if all are full, somebody will ask again
            return
        transfer, (nbytes, what) = place[0], road.waiting.pop(place)
        go = link.body_up if road is link.up else link.body_down
        at = go(nbytes, world.now, world.rng, stripe)
        world.at(link.free_at(road) - world.now, partial(self._next, link, road))
        if link.is_cut or road.passage is Passage.CUT or road.is_lost(world.rng) or world.lose("chunk", transfer):
            return
        if stripe == road.dead:
            return
        if road.passage is Passage.OPEN:
            world.at(at - world.now, what)
        elif len(road.held) < MOST_HELD:
            road.held.append(what)

    def chunk_comes(self, process: Process, key: MemberKey, chunk: Chunk, payload: memoryview) -> None:
        """A chunk comes for a learner or a syncer."""
        self.world.into(process, partial(self._take_in, process, key, chunk, payload))

    def _take_in(self, process: Process, key: MemberKey, chunk: Chunk, payload: memoryview) -> None:
        if self.on_chunk(process, key, chunk, payload) and isinstance(process, Actor):
            self.world.bytes_here(process)
        self.pump(process)

    def on_chunk(self, process: Process, key: MemberKey, chunk: Chunk, payload: memoryview) -> bool:
        """A chunk is here. Returns whether its bytes were not."""
        depot, place = process.depot, (key, chunk.transfer)
        outcome = depot.inbox.on_chunk(key, chunk, payload, self.world.now)
        if outcome is Outcome.COMPLETE:
            self._whole(process, place)
        elif outcome is Outcome.UNKNOWN and isinstance(process, Actor):
            depot.early.setdefault(place, []).append((chunk, payload))
            while sum(len(chunks) for chunks in depot.early.values()) > EARLY_MAX_CHUNKS:
                depot.early.popitem(last=False)
        return outcome.brings

    # ---- credit

    def pump(self, process: Process) -> None:
        """Say what is to be said of transfers, and look again when the inbox wants to."""
        if not process.alive:
            return
        inbox, depot = process.depot.inbox, process.depot
        turn = inbox.turn(self.world.now)
        for peer, word in turn.to_send:
            assert isinstance(peer, MemberKey)
            self._say(process, peer, word)
        for given_up in turn.given_up:
            assert isinstance(given_up.peer, MemberKey)
            self._lost(process, (given_up.peer, given_up.transfer), given_up.why)
        due = inbox.deadline()
        if due is not None and due < depot.due:
            depot.due = due
            self.world.at(due - self.world.now, partial(self._fire, process, due))

    def _fire(self, process: Process, due: float) -> None:
        if process.depot.due == due:
            process.depot.due = float("inf")
            if not process.stopped:
                self.pump(process)

    def _say(self, process: Process, key: MemberKey, message: Credit | Gone) -> None:
        """A word about a transfer, to the other end of a learner's link."""
        world = self.world
        word, nbytes = world.carry(message)
        if isinstance(process, Actor):
            self._say_up(process, word, nbytes)
            return
        actor = world.actors.get(key)
        if world.relays.leads(process, key):
            world.relays.down(key, word, nbytes)
        elif actor is not None and actor.site is process and not world.lose("credit", word):
            world.send(actor.link.down, nbytes, actor.link.is_cut, partial(self.hear, actor, m.SYNCER, word))

    def _say_up(self, actor: Actor, word: Credit | Gone, nbytes: int) -> None:
        if actor.link.behind:
            what = partial(self.world.relays.hears(actor.link.behind), actor.key, word)
        elif actor.site is not None:
            what = partial(self.hear, actor.site, actor.key, word)
        else:
            return
        if not self.world.lose("credit", word):
            self.world.send(actor.link.up, nbytes, actor.link.is_cut, what)

    def hear(self, process: Process, key: MemberKey, word: Any) -> None:
        """A word about a transfer comes for a learner or a syncer."""
        self.world.into(process, partial(self.on_word, process, key, word))

    def on_word(self, process: Process, key: MemberKey, word: Credit | Gone) -> None:
        """A credit asks for chunks; a good-bye ends a transfer."""
        if isinstance(word, Gone):
            if not word.by_sender:
                process.depot.outbox.on_gone(key, word)
                self._drop_waiting(process, key, word.transfer)
            elif process.depot.inbox.on_gone(key, word):
                self._lost(process, (key, word.transfer), word.reason)
            return
        answer = process.depot.outbox.on_credit(key, word)
        if isinstance(answer, Gone):
            self._say(process, key, answer)
            return
        if isinstance(process, Site):
            self.world.credited(process, key, word)
        if isinstance(process, Actor):
            process.meter.credited(word, self.world.now)
            if process.depot.outbox.is_through(word):
                process.link.up.stripes.arrived(word.transfer)
        for out in answer:
            self._send(process, key, out)
        offered = process.depot.bodies.get(word.transfer)
        once = isinstance(process, Actor) and not word.transfer.startswith("c/")
        if once and offered is not None and word.received >= offered.nbytes:
            process.depot.drop(word.transfer)


def _parcel_of(message: m.Fetchable, data: memoryview) -> Parcel:
    """What a body says that has come to a syncer."""
    if isinstance(message, LayoutOffer):
        decode_map(data, 2**20)
        return Parcel(0, 0)
    if isinstance(message, Contribution | Bundle):
        return Parcel.read(data, BYTES[message.codec])
    return Parcel.read(data, message.value_bytes if isinstance(message, Handback) else NBYTES)
