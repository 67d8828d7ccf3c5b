"""What can go wrong in a world: every fault by its name, done to a world and undone.

Rule: a fault that meets nobody (its process is dead, or another syncer has taken over) does nothing. What chance it
needs comes from its own seed, so that one fault that is left out of a story changes nothing else in it.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import nan
from typing import TYPE_CHECKING, ClassVar

from zdiloco import trace
from zdiloco.core import machine as m
from zdiloco.core.messages import Call, Contribution, Heartbeat
from zdiloco.core.start import SyncerPhase
from zdiloco.sim import relay_faults
from zdiloco.sim.actors import Actor, Site
from zdiloco.sim.bodies import SyncerDisk
from zdiloco.sim.fault_names import FaultName
from zdiloco.sim.links import Link, Passage
from zdiloco.sim.world import World
from zdiloco.units import ContributionId

if TYPE_CHECKING:
    from zdiloco.sim.scenario import Fault


SLOWER = 4.0
REACHED_AGAIN_S = 3.0
"""So long after a syncer has started again all can reach it."""


class Faults:
    """Does faults to a world. `rejoin` starts a learner of this name again; `done` counts them."""

    def __init__(self, world: World, seed: int, rejoin: Callable[[str], None]) -> None:
        self.world, self.seed, self.rejoin = world, seed, rejoin
        self.done: Counter[str] = Counter()
        self.over = False

    def do(self, fault: "Fault") -> None:
        """Do one fault now."""
        if self.over:
            return
        rng = random.Random(f"{self.seed}/{fault.at_s}/{fault.name}/{fault.who}")
        if self._DEEDS[fault.name](self, fault, rng):
            self.done[fault.name] += 1
            what = f"{fault.name} for {fault.for_s:g} s" if fault.for_s else str(fault.name)
            self.world.record(trace.Fault(t=self.world.now, who=fault.who or trace.SYNCER, what=what))

    def heal(self) -> None:
        """Everything is well from now on: links open, processes running, one syncer that all reach."""
        world, self.over = self.world, True
        for trunk in world.trunks.values():
            trunk.cut = False
        for relay in list(world.relays):
            self.open(relay.link)
            self.clean(relay.link)
            relay_faults.start_again(world, relay.spec.name)
        for actor in list(world.actors.values()):
            self.open(actor.link)
            self.clean(actor.link)
            actor.link.up.revive()
            actor.speed.slow = 1.0
        for site in world.sites:
            site.disk.full = False
            if site is not world.site:
                world.kill_syncer(site)
        if world.site is None:
            disks = [site.disk for site in world.sites]
            world.start_syncer(max(disks, key=lambda disk: max((s.stamp for s in disk.states), default=())))
        for process in [*world.actors.values(), *world.relays, *world.sites]:
            if process.stopped and process.alive:
                world.resume(process)
        for hop in [*world.actors.values(), *world.relays]:
            world.relays.follow(hop, world.site)

    # ---- who and what

    def _actor(self, name: str) -> Actor | None:
        return next((actor for actor in self.world.actors.values() if actor.key.name == name), None)

    def after(self, fault: "Fault", what: Callable[[], None]) -> None:
        """Undo something when the fault is over; healing has done so already."""
        if fault.for_s:
            self.world.at(fault.for_s, lambda: None if self.over else what())

    def open(self, link: Link) -> None:
        """Both roads of a link are open: what they held back arrives."""
        self.world.open_road(link.up)
        self.world.open_road(link.down)

    def clean(self, link: Link) -> None:
        """A link loses no more than it does by itself, and is as fast as it is."""
        link.up.extra_loss = link.down.extra_loss = 0.0
        link.up.slow = link.down.slow = 1.0

    # ---- learners

    def _kill(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        if actor is None:
            return False
        self.world.kill(actor)
        if self.world.site is None:
            self.done["kill while no syncer was there"] += 1
        if fault.for_s:
            self.world.at(fault.for_s, lambda: self._return(fault.who))
        return True

    def _return(self, name: str) -> None:
        """A learner of this name starts, unless there is one."""
        if self._actor(name) is None:
            self.rejoin(name)

    def _stop(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        if actor is None or actor.stopped:
            return False
        self.world.stop(actor)
        self.after(fault, lambda: self.world.resume(actor))
        return True

    def _slow(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        if actor is None:
            return False
        actor.speed.slow = SLOWER
        self.after(fault, lambda: setattr(actor.speed, "slow", 1.0))
        return True

    def _leave(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        if actor is None or actor.stopped:
            return False
        self.world.tell(actor, m.LeaveRequested(reason="asked to"))
        if fault.for_s:
            self.world.at(fault.for_s, lambda: self._return(fault.who))
        return True

    def _twin(self, fault: "Fault", rng: random.Random) -> bool:
        if self._actor(fault.who) is None:
            return False
        self.rejoin(fault.who)
        return True

    def _poison(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        if actor is None or actor.site is None:
            return False
        norm, under_way = rng.choice([nan, 1e9, 100.0, 0.0]), [duty for duty in actor.machine.duties if duty.way]
        for duty in under_way:
            actor.site.body.norms[ContributionId(*actor.key, duty.index, duty.way)] = norm
        return bool(under_way)

    def _give_up(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        under_way = [duty for duty in actor.machine.duties if duty.way] if actor else []
        for duty in under_way:
            assert actor is not None
            lost = m.ContributionLost(fragment=duty.index, seq=duty.way, reason="the link broke")
            self.world.tell(actor, lost)
        return bool(under_way)

    def _repeat(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        offers = [duty.offer for duty in actor.machine.duties if duty.offer] if actor else []
        if not offers or actor is None:
            return False
        offer = rng.choice(offers)
        event = m.Received(key=actor.key, message=_spoilt(offer, rng))
        delay_s = max(fault.for_s, 0.1) if event.message == offer else 0.1
        self.world.at(delay_s, lambda: self.world.tell_syncer(self.world.site, event))
        return True

    # ---- links

    def _cut(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        if actor is None:
            return False
        link, name = actor.link, fault.name
        if name is FaultName.HALF_OPEN:
            link.up.passage, link.down.passage = Passage.HELD, Passage.CUT
        for road, ways in ((link.up, (FaultName.CUT_OFF, FaultName.CUT_UP)), (link.down, _DOWN)):
            if name in ways:
                road.passage = Passage.CUT
        self.after(fault, lambda: self.open(link))
        return True

    def _lossy(self, fault: "Fault", rng: random.Random) -> bool:
        return self._spoil(fault, "extra_loss", 0.3)

    def _slow_link(self, fault: "Fault", rng: random.Random) -> bool:
        return self._spoil(fault, "slow", 10.0)

    def _spoil(self, fault: "Fault", what: str, value: float) -> bool:
        actor = self._actor(fault.who)
        if actor is None:
            return False
        for road in (actor.link.up, actor.link.down):
            setattr(road, what, value)
        self.after(fault, lambda: self.clean(actor.link))
        return True

    def _dead_stripe(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        if actor is None or actor.link.up.stripes.count == 1:
            return False
        actor.link.up.dead, actor.link.up.swallowed = rng.randrange(actor.link.up.stripes.count), 0
        self.after(fault, actor.link.up.revive)
        return True

    def _lost_call(self, fault: "Fault", rng: random.Random) -> bool:
        actor = self._actor(fault.who)
        if actor is None:
            return False
        actor.link.down.deaf_to = Call
        return True

    def _cut_region(self, fault: "Fault", rng: random.Random) -> bool:
        trunk = self.world.trunks.get(fault.who)
        if trunk is None or trunk.cut:
            return False
        trunk.cut = True
        self.done["cut_region of a relay"] += fault.who in self.world.relays.by_name
        self.after(fault, lambda: setattr(trunk, "cut", False))
        return True

    def _half_gone(self, fault: "Fault", rng: random.Random) -> bool:
        """The region that `who` names, or else every second learner."""
        world, trunk = self.world, self.world.trunks.get(fault.who)
        actors = sorted(world.actors.values(), key=lambda actor: actor.key.name)
        gone = [actor for actor in actors if world.relays.passes(actor, trunk)] if trunk else actors[::2]
        if len(actors) < 2 or not gone:
            return False
        for actor in gone:
            world.kill(actor)
            if fault.for_s:
                world.at(fault.for_s, partial(self._return, actor.key.name))
        if trunk:
            trunk.cut = True
            self.after(fault, lambda: setattr(trunk, "cut", False))
        return True

    # ---- syncers

    def _split(self) -> bool:
        """Whether some learner still follows another syncer that lives."""
        site = self.world.site
        return any(a.site is not site and a.site and a.site.alive for a in self.world.actors.values())

    def _crash(self, fault: "Fault", rng: random.Random) -> bool:
        site = self.world.site
        if site is None or self._split():
            return False
        self.world.kill_syncer(site)
        self.after(fault, lambda: self._start_again(site.disk))
        return True

    def _start_again(self, disk: SyncerDisk) -> None:
        if self.world.site is None:
            self.world.start_syncer(disk)

    def _unreachable(self, fault: "Fault", rng: random.Random) -> bool:
        actors = sorted(self.world.actors.values(), key=lambda actor: actor.key.name)
        if not self._crash(fault, rng):
            return False
        for actor in rng.sample(actors, (len(actors) + 1) // 2):
            actor.link.up.passage = actor.link.down.passage = Passage.CUT
            self.world.at(fault.for_s + REACHED_AGAIN_S, partial(self.open, actor.link))
        return True

    def _syncer_stop(self, fault: "Fault", rng: random.Random) -> bool:
        site = self.world.site
        if site is None or site.stopped:
            return False
        self.world.stop(site)
        self.after(fault, lambda: self.world.resume(site))
        return True

    def _disk_full(self, fault: "Fault", rng: random.Random) -> bool:
        site = self.world.site
        if site is None:
            return False
        site.disk.full = True
        self.after(fault, lambda: setattr(site.disk, "full", False))
        return True

    def _take_over(self, fault: "Fault", rng: random.Random) -> bool:
        world, old = self.world, self.world.site
        actors = sorted(world.actors.values(), key=lambda actor: actor.key)
        if old is None or old.machine.phase is not SyncerPhase.RUNNING or any(a.site is not old for a in actors):
            return False
        new = world.take_over([actor for actor in actors if rng.random() < 0.5])
        ends = max(fault.for_s, 2.0)
        for actor in actors:
            tells = rng.random() < 0.5
            world.at(ends * (0.4 + 0.6 * rng.random()), partial(self._follow, actor, new, tells))
        world.at(ends + 1.0, lambda: None if old is world.site else world.kill_syncer(old))
        return True

    def _follow(self, actor: Actor, new: Site, tells: bool) -> None:
        """One more learner reaches the new syncer; its last word to the old one may fence that."""
        if new is not self.world.site or self.over:
            return  # it is dead, or has been taken over itself
        old = actor.site
        self.world.relays.follow(actor, new)
        if tells and old is not None and old.alive and new.machine.phase is SyncerPhase.RUNNING:
            word = Heartbeat(epoch=new.machine.epoch)
            self.world.tell_syncer(old, m.Received(key=actor.key, message=word))

    _DEEDS: ClassVar[dict[FaultName, Callable[["Faults", "Fault", random.Random], bool]]] = {
        FaultName.KILL: _kill, FaultName.STOP: _stop, FaultName.SLOW: _slow, FaultName.LEAVE: _leave,
        FaultName.TWIN: _twin, FaultName.POISON: _poison, FaultName.GIVE_UP: _give_up, FaultName.REPEAT: _repeat,
        FaultName.CUT_OFF: _cut, FaultName.CUT_UP: _cut, FaultName.CUT_DOWN: _cut, FaultName.HALF_OPEN: _cut,
        FaultName.LOSSY: _lossy, FaultName.SLOW_LINK: _slow_link, FaultName.LOST_CALL: _lost_call,
        FaultName.DEAD_STRIPE: _dead_stripe,
        FaultName.CUT_REGION: _cut_region, FaultName.HALF_GONE: _half_gone, FaultName.CRASH: _crash,
        FaultName.UNREACHABLE: _unreachable, FaultName.SYNCER_STOP: _syncer_stop, FaultName.DISK_FULL: _disk_full,
        FaultName.TAKE_OVER: _take_over, **relay_faults.DEEDS,
    }  # fmt: skip


_DOWN = (FaultName.CUT_OFF, FaultName.CUT_DOWN)


def _spoilt(offer: Contribution, rng: random.Random) -> Contribution:
    """An offer as it was, or with counters, a fragment or a seq that cannot be."""
    kind = rng.random()
    if kind < 0.2:
        return replace(offer, steps=offer.cut_step + 5, seq=10**6)
    if kind < 0.4:
        return replace(offer, fragment=7, seq=10**6)
    if kind < 0.7 and offer.after > 1:
        return replace(offer, seq=offer.after - 1)
    return offer
