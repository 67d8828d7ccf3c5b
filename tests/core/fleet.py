"""A fleet in virtual time: the real machines, id bodies, and links with latency and one serial road each way.

Everything is an entry of one heap of (time, number, callable), so the same seed gives the same trace. A test may lose
messages and bodies by a rule. Steps go on whatever happens: a learner's loop never waits.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.core.bodies import LearnerBody, State, SyncerBody, SyncerDisk, body_of, ids_of
from zdiloco.core import machine as m
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.messages import Call, Contribution, Handback, InitialOffer, LayoutOffer, Update
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.core.syncer import SyncerMachine
from zdiloco.units import MemberKey, Merged, Stamp

TOKENS = 10


@dataclass
class Link:
    """One learner's road to the syncer: one-way latency, and seconds per body up and down (serial)."""

    latency_s: float = 0.001
    up_s: float = 0.001
    down_s: float = 0.001
    up_free: float = 0.0
    down_free: float = 0.0


@dataclass
class Site:
    """One syncer process with its disk."""

    machine: SyncerMachine
    body: SyncerBody
    disk: SyncerDisk
    due: float = math.inf
    alive: bool = True


@dataclass
class Actor:
    """One learner process. `site`: the syncer that its messages reach, if it lives."""

    key: MemberKey
    machine: LearnerMachine
    body: LearnerBody
    link: Link
    step_s: float
    site: Site | None
    alive: bool = True
    training: bool = False
    due: float = math.inf
    work_at: dict[int, float] = field(default_factory=dict)
    sending: set[str] = field(default_factory=set)


class World:
    """The event heap, one or two syncers, and the learners."""

    def __init__(self, params: SyncParams, num_fragments: int, seed: int = 0, **syncer: Any) -> None:
        self.params, self.num_fragments, self.rng = params, num_fragments, random.Random(seed)
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.same = 0
        self.numbers, self.next_work, self.now = itertools.count(), 1, 0.0
        self.actors: dict[MemberKey, Actor] = {}
        self.syncer_args = {"run_id": "run", **syncer}
        self.lose: Callable[[str, Any], bool] = lambda road, message: False
        self.history: dict[tuple[int, Stamp], State] = {}
        self.records: dict[tuple[int, Stamp], tuple[Merged, ...]] = {}
        self.returned: dict[tuple[MemberKey, int, Stamp], State] = {}
        self.calls: list[tuple[float, int, int]] = []
        self.merged_at: dict[tuple[int, int], float] = {}
        self.notes: list[str] = []
        self.stops: list[str] = []
        self.site: Site | None = None
        self.sites: list[Site] = []
        self.start_syncer(SyncerDisk())

    # ---- time

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now + max(delay_s, 0.0), next(self.numbers), what))

    def run(self, until: float) -> None:
        while self.heap and self.heap[0][0] <= until:
            self.turn()
        self.now = until

    def turn(self) -> None:
        """One entry of the heap; a machine whose deadline does not move on is caught."""
        at, _, what = heapq.heappop(self.heap)
        self.same = self.same + 1 if at == self.now else 0
        assert self.same < 5000, f"time stands still at {at}; last: {self.notes[-5:]}"
        self.now = at
        what()

    def run_until(self, holds: Callable[[], bool], limit_s: float) -> None:
        """Go on until something holds; fails when it does not within `limit_s`."""
        ends = self.now + limit_s
        while not holds():
            assert self.heap, "nothing will happen any more"
            assert self.heap[0][0] <= ends, f"not within {limit_s} s; last: {self.notes[-5:]}"
            self.turn()

    # ---- syncers

    def start_syncer(self, disk: SyncerDisk) -> Site:
        """Start a syncer process on this disk; everybody without a living syncer, and every newcomer, reaches it."""
        ident = self.rng.getrandbits(60) + 1
        machine = SyncerMachine(self.params, ident=ident, now=self.now, known=disk.known(), **self.syncer_args)
        self.site = Site(machine, SyncerBody(disk, self.num_fragments, machine.run_id), disk)
        for actor in self.actors.values():
            if actor.site is None or not actor.site.alive:
                actor.site = self.site
        self.sites.append(self.site)
        self.syncer_timer(self.site)
        return self.site

    def kill_syncer(self, site: Site) -> None:
        site.alive = False
        if self.site is site:
            self.site = None

    def syncer_timer(self, site: Site) -> None:
        """Keep one timer at the machine's deadline; a later event may bring a sooner one."""
        due = site.machine.deadline()
        if due is None or due >= site.due or not site.alive:
            return
        site.due = due

        def fire() -> None:
            if site.due == due:
                site.due = math.inf
                self.tell_syncer(site, m.TimerDue())

        self.at(due - self.now, fire)

    def tell_syncer(self, site: Site | None, event: Any) -> None:
        if site is None or not site.alive:
            return
        for action in site.machine.handle(event, self.now):
            self.do_syncer(site, action)
        self.syncer_timer(site)

    def do_syncer(self, site: Site, action: Any) -> None:
        if isinstance(action, m.Send):
            self.down(site, action.key, action.message, "direct")
        elif isinstance(action, m.Broadcast):
            self.broadcast(site, action.message)
        elif isinstance(action, m.Publish):
            self.broadcast(site, action.update)
        elif isinstance(action, m.Serve):
            self.down(site, action.key, site.body.update(action.fragment, full=True), "direct")
        elif isinstance(action, m.Fetch):
            self.fetch(site, action)
        elif isinstance(action, m.Save):
            self.at(0.01, lambda: self.finish_save(site))
        elif isinstance(action, m.Note):
            self.notes.append(f"{self.now:.3f} syncer: {action.what} ({action.why})")
        elif isinstance(action, m.Stop):
            self.stops.append(f"syncer: {action.reason}")
            self.kill_syncer(site)
        else:
            self.work_syncer(site, action)

    def finish_save(self, site: Site) -> None:
        """A checkpoint is durable now, unless its process has died meanwhile."""
        if site.alive:
            self.tell_syncer(site, site.body.save())

    def work_syncer(self, site: Site, action: Any) -> None:
        if isinstance(action, m.Merge):
            self.on_merge(site, action)
        for event in site.body.do(action, self.returned):
            self.at(0.002, lambda event=event: self.tell_syncer(site, event))
        for fragment, state in enumerate(site.body.states):
            self.history[fragment, state.stamp] = state

    def on_merge(self, site: Site, action: m.Merge) -> None:
        self.records[action.fragment, action.stamp] = action.merged
        for part in action.parts:
            for work in ids_of(site.body.payloads[part.id]):
                self.merged_at[action.fragment, work] = self.now

    def broadcast(self, site: Site, message: Any) -> None:
        if isinstance(message, Call):
            self.calls.append((self.now, message.fragment, message.version))
        for key in list(self.actors):
            self.down(site, key, message, "broadcast")

    def fetch(self, site: Site, action: m.Fetch) -> None:
        actor, message = self.actors.get(action.key), action.message
        if actor is None or not actor.alive:
            return
        if not isinstance(message, Contribution):
            self.at(0.01, lambda: self.tell_syncer(site, m.Fetched(key=action.key, message=message)))
            return
        if message.body.transfer in actor.sending:
            return
        actor.sending.add(message.body.transfer)
        link = actor.link
        link.up_free = max(link.up_free, self.now + link.latency_s) + link.up_s
        self.at(link.up_free + link.latency_s - self.now, lambda: self.arrive(site, actor, message))

    def arrive(self, site: Site, actor: Actor, message: Contribution) -> None:
        actor.sending.discard(message.body.transfer)
        ids = actor.body.encoded.get((message.fragment, message.seq))
        if not actor.alive or not site.alive:
            return
        if ids is None or self.lose("body", message):
            self.tell_syncer(site, m.FetchLost(key=actor.key, message=message, reason="the link broke"))
        else:
            self.tell_syncer(site, site.body.fetched(actor.key, message, ids))

    # ---- learners

    def join(
        self, name: str, step_s: float = 0.05, link: Link | None = None, *, watching: bool = False, **params: Any
    ) -> Actor:
        key = MemberKey(name, self.rng.getrandbits(60) + 1)
        shares = (1 / self.num_fragments,) * self.num_fragments
        machine = LearnerMachine(
            key, self.params, LearnerParams(**params), shares=shares, layout_digest="layout", watching=watching
        )
        actor = Actor(key, machine, LearnerBody(self.num_fragments), link or Link(), step_s, self.site)
        self.actors[key] = actor
        self.tell(actor, m.Started())
        return actor

    def kill(self, actor: Actor) -> None:
        actor.alive = False
        self.actors.pop(actor.key, None)

    def learner_timer(self, actor: Actor) -> None:
        due = actor.machine.deadline()
        if due is None or due >= actor.due:
            return
        actor.due = due

        def fire() -> None:
            if actor.due == due:
                actor.due = math.inf
                self.tell(actor, m.TimerDue())

        self.at(due - self.now, fire)

    def tell(self, actor: Actor, event: Any) -> None:
        if not actor.alive:
            return
        for action in actor.machine.handle(event, self.now):
            self.do_learner(actor, action)
        self.learner_timer(actor)

    def do_learner(self, actor: Actor, action: Any) -> None:
        if isinstance(action, m.Send):
            self.up(actor, action.message)
        elif isinstance(action, m.Ready):
            if not (actor.training or actor.machine.watching):
                actor.training = True
                self.at(actor.step_s, lambda: self.step(actor))
        elif isinstance(action, m.Receive):
            link = actor.link
            link.down_free = max(link.down_free, self.now) + link.down_s
            self.at(link.down_free - self.now, lambda: self.update_arrives(actor, action.update))
        elif isinstance(action, m.SendHandback):
            fragment, stamp = action.fragment, action.stamp
            self.returned[actor.key, fragment, stamp] = actor.body.adopted[fragment]
            self.up(actor, Handback(fragment=fragment, stamp=stamp, codec="fp32", value_bytes=10, body=body_of("h")))
        elif isinstance(action, m.SendLayout):
            self.up(actor, LayoutOffer(digest="layout", body=body_of("layout")))
        elif isinstance(action, m.SendInitial):
            self.up(actor, InitialOffer(fragment=action.fragment, body=body_of(f"i/{action.fragment}")))
        elif isinstance(action, m.Reincarnate):
            self.reincarnate(actor)
        elif isinstance(action, m.Note):
            self.notes.append(f"{self.now:.3f} {actor.key.name}: {action.what} ({action.why})")
        elif isinstance(action, m.Stop):
            self.stops.append(f"{actor.key.name}: {action.reason}")
            self.kill(actor)
        else:
            self.work_learner(actor, action)

    def work_learner(self, actor: Actor, action: Any) -> None:
        for event in actor.body.do(action):
            self.at(0.002, lambda event=event: self.tell(actor, event))
        if isinstance(action, m.Prepare) and not actor.training:
            self.at(0.003, lambda: self.tell(actor, m.Boundary()))

    def reincarnate(self, actor: Actor) -> None:
        del self.actors[actor.key]
        actor.key = MemberKey(actor.key.name, self.rng.getrandbits(60) + 1)
        self.actors[actor.key] = actor
        self.at(0.001, lambda: self.tell(actor, m.Reborn(incarnation=actor.key.incarnation)))

    def update_arrives(self, actor: Actor, update: Update) -> None:
        """All chunks of an update are here, unless they were lost."""
        state = self.history[update.fragment, update.stamp]
        if self.lose("update body", update):
            self.tell(actor, m.UpdateLost(update=update))
            return
        actor.body.learn(update.fragment, state, update.full)
        records = state.map if update.full else self.records[update.fragment, update.stamp]
        self.tell(actor, m.UpdateReady(update=update, records=records))

    def step(self, actor: Actor) -> None:
        if not actor.alive:
            return
        work = self.next_work
        self.next_work += 1
        actor.work_at[work] = self.now
        actor.body.train(work)
        self.tell(actor, m.StepDone(tokens=TOKENS, seconds=actor.step_s))
        self.at(actor.step_s, lambda: self.step(actor))

    # ---- roads

    def up(self, actor: Actor, message: Any) -> None:
        if self.lose("up", message):
            return
        event, site = m.Received(key=actor.key, message=message), actor.site
        self.at(actor.link.latency_s, lambda: self.tell_syncer(site, event))

    def down(self, site: Site, key: MemberKey, message: Any, road: str) -> None:
        actor = self.actors.get(key)
        if actor is None or actor.site is not site or self.lose(road, message):
            return
        self.at(actor.link.latency_s, lambda: self.tell(actor, m.Received(key=m.SYNCER, message=message)))

    # ---- audit

    def audit(self) -> None:
        """Every living learner's counters say what its values hold, and balance (the bodies check the rest)."""
        for fragment in range(self.num_fragments):
            for actor in self.actors.values():
                u = actor.body.progress(fragment)
                progress = actor.machine.duties[fragment].progress
                tally = progress.tally
                assert progress.tokens == TOKENS * u.bit_count(), (actor.key, fragment, progress.tokens)
                assert tally.trained == tally.merged + progress.tokens + tally.dropped + tally.lost

    def gaps(self, step_s: float, after_s: float) -> list[float]:
        """Inner steps between two calls of the same fragment, for calls after a moment."""
        by_fragment: dict[int, list[float]] = {}
        for at, fragment, _ in self.calls:
            by_fragment.setdefault(fragment, []).append(at)
        pairs = [pair for times in by_fragment.values() for pair in itertools.pairwise(times)]
        return [(late - early) / step_s for early, late in pairs if early >= after_s]
