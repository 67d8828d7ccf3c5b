"""What must hold of a world, looked at after every event and at its end.

Rule: nothing here is taken from the machines' own judgement of themselves: ids are counted in the bodies, tokens by the
ledger's own rule from what each process wrote down, and no term is a remainder. What does not hold is raised as Broken.
"""

from zdiloco.agenda import Broken
from zdiloco.core.ledger import Fates, row_of, settle, total
from zdiloco.core.start import SyncerPhase
from zdiloco.sim.actors import Actor, Running, Site
from zdiloco.sim.bodies import State
from zdiloco.sim.chunks import CHUNK_BYTES
from zdiloco.sim.learner_side import TOKENS
from zdiloco.sim.relay_places import Relay
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World, audit_learner
from zdiloco.units import Epoch, MemberKey, Merged, Stamp

MOST_SCREENED = 8
"""Contributions that may be looked at while what they took of the budget is free already."""
OPEN_MOST_S = 20.0
"""A round of a healed world closes within so long."""


class Audit:
    """Looks at a world after each event. `calm_since`: when everything was healed; None: not yet. `fates`: what has
    become of all tokens, weighed by parameter share, when it was settled.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.calm_since: float | None = None
        self.looks = 0
        self.fates: Fates | None = None
        self._stamps: dict[tuple[int, int], Stamp] = {}
        self._epochs: dict[Epoch, int] = {}
        self._last: dict[Epoch, tuple[State, ...]] = {}
        world.on_event = self.look

    def look(self, process: Running) -> None:
        """After an event of one process: what it may have broken."""
        self.looks += 1
        if isinstance(process, Actor):
            if process.alive:
                audit_learner(process, self.world.exact)
            else:
                self._look_at_end(process)
        elif isinstance(process, Site) and (process.alive or process.machine.farewell):
            self._look_at_syncer(process)
        elif isinstance(process, Relay):
            self._look_at_relay(process)

    def _look_at_relay(self, relay: Relay) -> None:
        """What a relay holds has its bounds, whoever does not take what is for it."""
        spec, kept, waiting = relay.spec, relay.cache.nbytes, self.world.relays.waiting_bytes(relay)
        if kept > spec.cache_bytes or waiting > spec.budget_bytes + CHUNK_BYTES:
            raise Broken("memory", f"relay {spec.name}: {kept} of {spec.cache_bytes} kept, {waiting} bytes wait")
        names = {key.name for key in relay.lanes}
        if len(names) > spec.most_learners or len(relay.lanes) > spec.most_learners + 1:  # two of one name
            raise Broken("memory", f"relay {spec.name} has {len(relay.lanes)} lanes")

    def _look_at_end(self, actor: Actor) -> None:
        """Who goes because the run is over, and for no other reason, holds the last versions, and nothing else."""
        machine, farewell = actor.machine, actor.machine.farewell
        if farewell is None or not self.world.exact:
            return
        if self.world.stops[-1] != f"{actor.key.name}: {farewell.reason}":
            return
        last = self._last[farewell.epoch]
        if [duty.progress.seen for duty in machine.duties] != [state.stamp for state in last]:
            raise Broken("last values", f"{actor.key.name} goes without the last versions {farewell.versions}")
        if actor.body.values != [state.value for state in last]:
            raise Broken("last values", f"{actor.key.name} ends with other values than the checkpoint's")

    def _look_at_farewell(self, site: Site) -> None:
        """Nobody is told that the run is over before its last versions are durable: Theta and map as they are."""
        farewell = site.machine.farewell
        if farewell is None or farewell.epoch in self._last:
            return
        self._last[farewell.epoch] = tuple(site.disk.states)
        last = [Stamp(farewell.epoch, version) for version in farewell.versions]
        if [state.stamp for state in site.disk.states] != last or site.disk.states != site.body.states:
            raise Broken("last values", "the last versions are not durable when the run is said to be over")

    def _look_at_syncer(self, site: Site) -> None:
        self._look_at_farewell(site)
        machine, budget = site.machine, self.world.params.budget_bytes
        held = sum(site.body.held_bytes[each] for each in site.body.payloads)
        if machine.intakes.used_bytes > budget or held > budget + MOST_SCREENED * NBYTES:
            raise Broken("memory", f"{machine.intakes.used_bytes} counted, {held} held, {budget} allowed")
        if site.depot.inbox.reserved_bytes > budget + (MOST_SCREENED + 2 * len(self.world.actors)) * NBYTES * 2:
            raise Broken("memory", f"{site.depot.inbox.reserved_bytes} reserved, {budget} allowed")
        if sum(name.startswith("l/") for name in site.depot.offered) > 1:
            raise Broken("memory", "two loans are held at once")
        if machine.phase in (SyncerPhase.RUNNING, SyncerPhase.DRAINING):
            if self._epochs.setdefault(machine.epoch, site.number) != site.number:
                raise Broken("epochs", f"two syncers have the epoch {machine.epoch}")
            for desk in machine.desk:
                self._follow_stamp(site, desk.index, desk.stamp)

    def _follow_stamp(self, site: Site, fragment: int, stamp: Stamp) -> None:
        before = self._stamps.get((site.number, fragment))
        if before is not None and stamp < before:
            raise Broken("stamps fall", f"fragment {fragment} at syncer {site.number}: {stamp} after {before}")
        self._stamps[site.number, fragment] = stamp

    def look_at_rounds(self) -> None:
        """In a healed world no round stays open for ever."""
        site, now = self.world.site, self.world.now
        if self.calm_since is None or site is None:
            return
        for desk in site.machine.desk:
            called_at = desk.round.called_at if desk.round else now
            if now - max(called_at, self.calm_since) > OPEN_MOST_S:
                raise Broken("a round stays open", f"fragment {desk.index} since {called_at:.3f}: {desk.why}")

    # ---- the end

    def settle(self) -> None:
        """Every id and every token has exactly one fate. For a healed world with one syncer that all follow, or with
        nobody any more: then by the syncer that has ended the run."""
        ended = [site for site in self.world.sites[-1:] if site.machine.farewell]
        site = self.world.site or next(iter(ended), None)
        if site is None:
            raise Broken("no syncer", "nobody holds the values at the end")
        found: list[Fates] = []
        for fragment in range(self.world.num_fragments):
            map_ = {entry.key: entry for entry in site.body.states[fragment].map}
            found += self._settle_tokens(fragment, map_)
            if self.world.exact:
                self._settle_ids(fragment, site.body.states[fragment].value, map_)
        self.fates = Fates(*(each / self.world.num_fragments for each in total(found)))

    def _settle_tokens(self, fragment: int, map_: dict[MemberKey, Merged]) -> list[Fates]:
        nothing, found = Merged("", 0, 0, 0, 0), []
        for actor in self.world.actors.values():
            row, entry = row_of(actor.machine.duties[fragment].progress), map_.get(actor.key, nothing)
            fates = settle(TOKENS * actor.work, row, entry.seq, entry.tokens, "living")
            found.append(fates)
            if fates.gap:
                raise Broken("ledger", f"{actor.key.name}, fragment {fragment}: {fates.gap} unexplained: {fates}")
        for fallen in self.world.fallen:
            entry = map_.get(fallen.key, nothing)
            fates = settle(TOKENS * fallen.work, fallen.rows[fragment], entry.seq, entry.tokens, fallen.state)
            found.append(fates)
            if fates.gap:
                raise Broken("ledger", f"{fallen.key.name} ({fallen.state}), fragment {fragment}: {fates.gap}: {fates}")
        return found

    def _settle_ids(self, fragment: int, merged: int, map_: dict[MemberKey, Merged]) -> None:
        known = merged
        for actor in self.world.actors.values():
            known |= actor.body.progress(fragment) | actor.body.dropped[fragment]
            self._compare(actor.key, actor.own, merged, map_)
        for fallen in self.world.fallen:
            known |= fallen.held[fragment]
            self._compare(fallen.key, fallen.own, merged, map_)
        lost = (1 << self.world.next_work) - 2 & ~known
        if lost:
            raise Broken("lost", f"fragment {fragment}: {lost.bit_count()} steps are nowhere, and nobody gave them up")

    def _compare(self, key: MemberKey, own: int, merged: int, map_: dict[MemberKey, Merged]) -> None:
        tokens = map_[key].tokens if key in map_ else 0
        if TOKENS * (own & merged).bit_count() != tokens:
            steps = (own & merged).bit_count()
            raise Broken("map", f"the map counts {tokens} tokens of {key}, the value holds {steps} steps")

    def starved(self) -> list[str]:
        """Who has had no work of after the healing merged yet, on some fragment."""
        assert self.calm_since is not None
        world, names = self.world, []
        for actor in world.actors.values():
            newly = [work for work, at in actor.work_at.items() if at > self.calm_since]
            waits = actor.machine.phase != "training" or not all(
                any((fragment, work) in world.merged_at for work in newly) for fragment in range(world.num_fragments)
            )
            names += [actor.key.name] if waits else []
        return names
