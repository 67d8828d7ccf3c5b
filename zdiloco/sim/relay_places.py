"""The relay processes of a world: where they stand, whom they reach, and how they die and return.

Rule: a relay's name is that of its region: who is in a region dials its relay, and so does a relay that is in another
one's. Everybody behind a relay reaches the syncer that it reaches. A relay that returns knows nothing.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from zdiloco.sim.actors import Actor, Process, Running, Site
from zdiloco.sim.links import Link, Trunk
from zdiloco.units import MemberKey
from zdiloco.wire.cache import UPSTREAM, Cache
from zdiloco.wire.lag import Lag
from zdiloco.wire.lane_life import LaneLife, lanes_over

if TYPE_CHECKING:
    from zdiloco.sim.scenario import RelaySpec
    from zdiloco.sim.world import World

SWEEP_S = 1.0
DIAL_WAYS = 2
"""So often there and back until a new connection carries something: TCP, then the greetings of ZMTP."""
REDIAL_S = 0.5
"""Who has lost a connection has dialled again within so long."""


@dataclass(slots=True, eq=False, kw_only=True)
class Lane(LaneLife):
    """The way up of one process. `ready_at`: when its connections stand."""

    ready_at: float


@dataclass(kw_only=True)
class Relay(Running):
    """One relay process. `site`: the syncer that it reaches, itself or by others; `open_at`: when its region has
    dialled it again, `dialled_at`: when it has dialled upstream; `taken`: whether it takes the bulk broadcast;
    `dropped`: chunks for which there was no room.
    """

    spec: "RelaySpec"
    key: MemberKey
    link: Link
    site: Site | None
    cache: Cache
    open_at: float
    dialled_at: float
    lag: Lag = field(default_factory=Lag)
    lanes: dict[MemberKey, Lane] = field(default_factory=dict)
    taken: bool = False
    dropped: int = 0


Hop = Actor | Relay


class RelayPlaces(ABC):
    """The relays of a world, by name. `seen`: what occurred, without what those that live have counted themselves."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.by_name: dict[str, Relay] = {}
        self.seen: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Relay]:
        return iter(self.by_name.values())

    # ---- life

    def start(self, spec: "RelaySpec", link: Link) -> Relay:
        """Start a relay process on its far link, perhaps again: it knows nothing, and its region dials it."""
        world, before = self.world, self.by_name.get(spec.name)
        assert before is None or not before.alive
        above = self.by_name.get(link.behind)
        params = replace(world.inbox_params, budget_bytes=spec.cache_bytes)
        relay = Relay(
            spec=spec, key=MemberKey("relay", world.rng.getrandbits(60) + 1), link=link,
            site=above.site if above else world.site, cache=Cache(params, idle_s=2 * params.stall_s),
            open_at=world.now + (world.rng.random() * REDIAL_S if before else 0.0),
            dialled_at=world.now + dials_s(link),
        )  # fmt: skip
        self.by_name[spec.name] = relay
        if before:
            self._lead(relay, relay.site)
        self._sweep(relay)
        return relay

    def kill(self, relay: Relay) -> None:
        """SIGKILL: the cache, the lanes and all that is on its way through it are gone."""
        if not relay.alive:
            return
        relay.alive = False
        relay.waiting.clear()
        self.seen += occurred(relay)
        for link in (relay.link, *(hop.link for hop in self.region(relay))):
            link.down.waiting.clear()
        relay.link.up.waiting.clear()

    def _sweep(self, relay: Relay) -> None:
        """Look every second whose lane is over, and who listens."""
        if not relay.alive:
            return
        if not relay.stopped:
            for lane, _ in lanes_over(relay.lanes.values(), self.world.now, relay.spec.forget_after_s):
                self.hang_up(relay, lane)
            self.tune(relay)
        self.world.at(SWEEP_S, partial(self._sweep, relay))

    def hang_up(self, relay: Relay, lane: Lane) -> None:
        """A lane is closed."""
        del relay.lanes[lane.key]
        relay.cache.forget_peer(lane.key)
        relay.lag.forget(lane.key)
        self.seen["relay: lanes over"] += 1

    # ---- where they stand

    def above(self, hop: Hop) -> Relay | None:
        """The relay that a learner or a relay dials; None: it dials the syncer."""
        return self.by_name[hop.link.behind] if hop.link.behind else None

    def root(self, hop: Hop) -> Relay | None:
        """The relay nearest to the syncer on the way of a learner or a relay, which may be that relay itself."""
        found = hop if isinstance(hop, Relay) else None
        while (above := self.above(found or hop)) is not None:
            found = above
        return found

    def region(self, relay: Relay) -> list[Hop]:
        """Who dials this relay."""
        name = relay.spec.name
        return [hop for hop in (*self.world.actors.values(), *self) if hop.link.behind == name]

    def hop(self, place: Relay | None, key: MemberKey) -> Hop | None:
        """Who is next on the way down from a relay (None: from the syncer) to this process; None: it is not there."""
        end = self.world.actors.get(key) or next((relay for relay in self if relay.key == key), None)
        while end is not None and (above := self.above(end)) is not place:
            end = above
        return end

    def passes(self, actor: Actor, trunk: Trunk) -> bool:
        """Whether what a learner says to the syncer crosses this trunk."""
        hop: Hop | None = actor
        while hop is not None and hop.link.trunk is not trunk:
            hop = self.above(hop)
        return hop is not None

    def leads(self, site: Process, key: MemberKey) -> bool:
        """Whether a syncer reaches this process by a relay."""
        hop = self.hop(None, key) if self.by_name else None
        return isinstance(hop, Relay) and hop.site is site

    def site_of(self, link: Link) -> Site | None:
        """The syncer that a newcomer on this link reaches."""
        return self.by_name[link.behind].site if link.behind else self.world.site

    def follow(self, hop: Hop, site: Site | None) -> None:
        """A learner reaches another syncer from now on; behind a relay everybody does who shares its far link."""
        root = self.root(hop)
        if root is not None:
            self._lead(root, site)
        elif isinstance(hop, Actor):
            hop.site = site

    def syncer_is_here(self, site: Site) -> None:
        """A syncer has started: relays that have none reach it."""
        for relay in list(self):
            if not relay.link.behind and (relay.site is None or not relay.site.alive):
                self._lead(relay, site)

    def _lead(self, relay: Relay, site: Site | None) -> None:
        """This relay, and everybody behind it, reaches this syncer; it asks that for what it lacks."""
        if relay.site is not site:
            relay.site = site
            relay.cache.inbox.resume(UPSTREAM, self.world.now)
            self.pump(relay)
        for hop in self.region(relay):
            if isinstance(hop, Relay):
                self._lead(hop, site)
            else:
                hop.site = site

    def count(self) -> Counter[str]:
        """What occurred at all relays so far."""
        return sum((occurred(relay) for relay in self if relay.alive), Counter(self.seen))

    @abstractmethod
    def tune(self, relay: Relay) -> None:
        """See whether this relay is to take the bulk broadcast."""

    @abstractmethod
    def pump(self, relay: Relay) -> None:
        """Look at what is due."""


def dials_s(link: Link) -> float:
    """Seconds until a connection over this link stands."""
    return DIAL_WAYS * (link.up.latency_s + link.down.latency_s)


def occurred(relay: Relay) -> Counter[str]:
    """What a relay did since it was started."""
    counters = relay.cache.counters
    return Counter({
        "relay: chunks from its cache": counters.handed_out, "relay: evicted": counters.evicted,
        "relay: passed over": counters.passed, "relay: asked again": relay.cache.inbox.counters.asked_again,
        "relay: no room": relay.dropped,
    })  # fmt: skip
