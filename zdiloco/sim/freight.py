"""How bodies travel: whole, as one item on a serial road (here), or in the production's chunks (`chunks.py`).

Rule: whichever way, a body that is asked for ends in exactly one of two events, and what it carries is read from what
was sent. Whole bodies are for stories in which only time and loss matter, and for large fleets.
"""

from typing import TYPE_CHECKING

from zdiloco.core import machine as m
from zdiloco.core.messages import Body, Contribution, Loan, Update, Welcome
from zdiloco.sim.actors import Actor, Process, Site
from zdiloco.sim.links import Passage
from zdiloco.sim.work import Parcel
from zdiloco.units import MemberKey

if TYPE_CHECKING:
    from zdiloco.sim.world import World

GIVE_UP_S = 5.0
"""A body that stops arriving is given up after so long."""
BROKEN = "the link broke"


class WholeFreight:
    """Each body is one item: it takes its share of the road, and arrives or is lost as a whole.

    `credited`: whether receivers tell how far they are, without which nobody can be paced.
    """

    credited = False

    def __init__(self, world: "World") -> None:
        self.world = world

    def put(self, process: Process, name: str, parcel: Parcel) -> Body:
        """Offer a parcel; under a name in use, say again what is offered."""
        known = process.depot.bodies.get(name)
        if known is not None:
            return known
        body = Body(transfer=name, nbytes=parcel.nbytes, chunk_bytes=1 << 20, digest=0)
        process.depot.hold(name, parcel, body)
        return body

    def drop(self, process: Process, name: str) -> None:
        """The sender needs it no more."""
        process.depot.drop(name)

    # ---- up

    def fetch(self, site: Site, key: MemberKey, message: m.Fetchable) -> None:
        """The syncer grants credit; the learner sends what it has under that name."""
        actor, name = self.world.actors.get(key), message.body.transfer
        if actor is None or not actor.alive or name in actor.sending:
            return
        actor.sending.add(name)
        granted = max(self.world.now + actor.link.up.latency_s, actor.link.up.free_at)
        at = actor.link.body_up(message.body.nbytes, granted, self.world.rng)
        self.world.at(at - self.world.now, lambda: self._arrive(site, actor, message))

    def _arrive(self, site: Site, actor: Actor, message: m.Fetchable) -> None:
        world, key, name = self.world, actor.key, message.body.transfer
        actor.sending.discard(name)
        if not actor.alive or not site.alive:
            return
        parcel = actor.depot.offered.get(name)
        if not isinstance(message, Contribution):
            self.drop(actor, name)
        elif world.lose("body", message):
            parcel = None
        if actor.link.up.passage is not Passage.OPEN or actor.link.is_cut:
            lost = m.FetchLost(key=key, message=message, reason=BROKEN)
            world.at(GIVE_UP_S, lambda: world.tell_syncer(site, lost))
        elif parcel is None:
            world.tell_syncer(site, m.FetchLost(key=key, message=message, reason=BROKEN))
        else:
            world.fetched(site, key, message, parcel)

    def cancel(self, site: Site, key: MemberKey, name: str) -> None:
        """The syncer wants it no more, or has looked at it: nothing is left of it in the road."""

    # ---- down

    def publish(self, site: Site, name: str) -> None:
        """Broadcast a body: whole ones go when they are received."""

    def receive(self, actor: Actor, update: Update | Loan, broadcast: bool) -> None:
        """The learner takes in the body of an update, or of a loan."""
        parcel = self.world.published.get(update.body.transfer)
        at = actor.link.body_down(update.body.nbytes, self.world.now - actor.link.down.latency_s, self.world.rng)
        self.world.at(at - self.world.now, lambda: self._here(actor, update, parcel))

    def _here(self, actor: Actor, update: Update | Loan, parcel: Parcel | None) -> None:
        world = self.world
        if actor.link.down.passage is not Passage.OPEN or actor.link.is_cut:
            world.at(GIVE_UP_S, lambda: world.lost_here(actor, update))
        elif parcel is None or world.lose("update body", update):
            world.lost_here(actor, update)
        else:
            world.bytes_here(actor)
            world.whole_here(actor, update, parcel)

    def discard(self, actor: Actor, update: Update | Loan) -> None:
        """The learner needs it no more."""

    def tuned(self, actor: Actor) -> None:
        """The learner listens to the broadcast, or has left it."""

    def welcomed(self, actor: Actor, welcome: Welcome) -> None:
        """A syncer takes a learner in: perhaps another one than the former."""

    def greeted(self, site: Site, key: MemberKey) -> None:
        """A learner says hello: perhaps again, since it missed the syncer."""

    def reborn(self, actor: Actor) -> None:
        """The learner goes on under another name: its roads are new."""

    def pump(self, process: Process) -> None:
        """A process goes on: look at what is due."""
