"""What must hold of a world, looked at after every event and at its end.

Rule: nothing here is taken from the machines' own judgement of themselves: ids are counted in the bodies, tokens by the
ledger's own rule from what each process wrote down, and no term is a remainder. What does not hold is raised as Broken.
"""

from zdiloco.core.ledger import Fates, row_of, settle, total
from zdiloco.core.start import SyncerPhase
from zdiloco.sim.actors import Actor, Process, Site
from zdiloco.sim.agenda import Broken
from zdiloco.sim.bodies import NBYTES
from zdiloco.sim.learner_side import TOKENS
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
        world.on_event = self.look

    def look(self, process: Process) -> None:
        """After an event of one process: what it may have broken."""
        self.looks += 1
        if isinstance(process, Actor):
            if process.alive:
                audit_learner(process, self.world.exact)
        elif isinstance(process, Site) and process.alive:
            self._look_at_syncer(process)

    def _look_at_syncer(self, site: Site) -> None:
        machine, budget = site.machine, self.world.params.budget_bytes
        held = len(site.body.payloads) * NBYTES
        if machine.intakes.used_bytes > budget or held > budget + MOST_SCREENED * NBYTES:
            raise Broken("memory", f"{machine.intakes.used_bytes} counted, {held} held, {budget} allowed")
        if site.depot.inbox.reserved_bytes > budget + (MOST_SCREENED + 2 * len(self.world.actors)) * NBYTES * 2:
            raise Broken("memory", f"{site.depot.inbox.reserved_bytes} reserved, {budget} allowed")
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
        """Every id and every token has exactly one fate. For a healed world with one syncer that all follow."""
        site = self.world.site
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
