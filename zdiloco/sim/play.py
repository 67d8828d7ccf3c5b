"""A scenario played from its beginning to its end, with every check on the way.

Rule: faults come as written; then all is healed, everybody's work must be merged, and the books must be right; then the
syncer is asked to leave. A run with a target ends by itself instead. What does not hold is raised as it is found.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from zdiloco import trace
from zdiloco.agenda import Broken
from zdiloco.core import machine as m
from zdiloco.core.finishing import NO_LAST_VALUES
from zdiloco.core.ledger import Fates
from zdiloco.errors import MachineError
from zdiloco.sim.audit import Audit
from zdiloco.sim.faults import Faults
from zdiloco.sim.links import Link
from zdiloco.sim.scenario import LearnerSpec, RelaySpec, Scenario
from zdiloco.sim.speeds import Speed
from zdiloco.sim.world import World
from zdiloco.wire.stripes import Stripes

LOOK_EVERY_S = 1.0
SETTLE_S = 10.0
LEAVE_S = 5.0
OF_LEARNERS = (
    "declined", "repaired", "gap", "offered again", "given up", "given_up", "rolled_back", "update lost", "dropped",
    "lent", "loan lost", "misfit",
)  # fmt: skip


@dataclass
class Outcome:
    """What a story came to: how often each fault and each branch of the protocol occurred, what became of all tokens
    (weighed by parameter share), and its world.
    """

    seen: Counter[str] = field(default_factory=Counter)
    fates: Fates | None = None
    world: World | None = None


class Story:
    """One scenario under way. `world` may be looked at by whoever plays it."""

    def __init__(self, scenario: Scenario, on_record: Callable[[trace.Record], None] | None = None) -> None:
        self.scenario = scenario
        self.specs = {spec.name: spec for spec in scenario.learners}
        self.world = World(
            scenario.params(), scenario.fragments, scenario.seed, exact=scenario.exact, chunked=scenario.chunked,
            on_record=on_record, target_tokens=scenario.target_tokens,
            delta_codec=scenario.delta_codec, premerge=any(relay.premerge for relay in scenario.relays),
        )  # fmt: skip
        self.audit = Audit(self.world)
        self.faults = Faults(self.world, scenario.seed, self.join)
        for relay in outermost_first(scenario.relays):
            self.world.relays.start(relay, self._link(relay))
        for spec in scenario.learners:
            self.world.at(spec.joins_at_s, partial(self.join, spec.name))
        for fault in scenario.faults:
            self.world.at(fault.at_s, partial(self.faults.do, fault))
        self._look()

    def join(self, name: str) -> None:
        """A learner starts, perhaps again: with an empty memory, on the link that it had."""
        spec, world = self.specs[name], self.world
        world.join(
            name, link=self._link(spec), speed=_speed(spec), max_unmerged_steps=spec.max_unmerged_steps,
            **{"region": spec.region, **self.scenario.learner},
        )  # fmt: skip

    def _link(self, spec: LearnerSpec | RelaySpec) -> Link:
        """The link of a learner, or the far one of a relay: its region's uplink."""
        relays = {relay.name for relay in self.scenario.relays}
        region = spec.name if isinstance(spec, RelaySpec) else "" if spec.region in relays else spec.region
        link = Link(
            spec.latency_s, spec.link_jitter_s, up_bytes_s=spec.up_bytes_s, down_bytes_s=spec.down_bytes_s,
            loss=spec.loss, trunk=self.world.trunk(region) if region else None,
        )  # fmt: skip
        link.behind = spec.region if spec.region in relays else ""
        if isinstance(spec, LearnerSpec):
            link.up.stripes = Stripes(spec.stripes)
        return link

    def _look(self) -> None:
        self.audit.look_at_rounds()
        self.world.at(LOOK_EVERY_S, self._look)

    # ---- from the beginning to the end

    def play(self) -> Outcome:
        """Play it to its end. Raises: Broken, or another MachineError, where a rule does not hold."""
        self.world.run(self.scenario.seconds)
        self.heal()
        if self.scenario.ends:
            self.wait_for_the_end()
        else:
            self.wait_for_everybody()
        self.world.audit()
        self.audit.settle()
        if not self.scenario.ends:
            self.close_down()
        outcome = Outcome(self.count(), self.audit.fates, self.world)
        for branch, least in self.scenario.expect.items():
            if outcome.seen[branch] < least:
                raise Broken("expected", f"{branch!r} occurred {outcome.seen[branch]} times, {least} were expected")
        return outcome

    def heal(self) -> None:
        """Everything is well from now on, and nothing is lost any more."""
        self.faults.heal()
        for hop in [*self.world.actors.values(), *self.world.relays]:
            hop.link.up.loss = hop.link.down.loss = 0.0
        self.audit.calm_since = self.world.now

    def wait_for_everybody(self) -> None:
        """Everybody's work is merged, on every fragment. Raises: Broken where somebody starves."""
        world, ends = self.world, self.world.now + self.scenario.heal_s
        if not world.actors:
            return
        world.run(min(ends, world.now + SETTLE_S))
        while starved := self.audit.starved():
            if world.now >= ends:
                raise Broken("starved", f"nothing of {', '.join(starved)} is merged since {self.scenario.seconds:g} s")
            world.run(min(ends, world.now + 2.0))

    def wait_for_the_end(self) -> None:
        """The target is reached and everybody goes. Raises: Broken where somebody stays."""
        world, ends = self.world, self.world.now + self.scenario.heal_s
        while world.actors or world.site is not None:
            if world.now >= ends:
                left = ", ".join(actor.key.name for actor in world.actors.values()) or "the syncer"
                raise Broken("does not end", f"{left} is there {self.scenario.heal_s:g} s after the healing")
            if world.site is None:  # whoever was away when the run ended comes back to a syncer that tells it so
                world.start_syncer(world.sites[-1].disk)
            world.run(min(ends, world.now + 2.0))
        world.finish()

    def close_down(self) -> None:
        """The syncer is asked to leave: late offers are refused, it saves what it has published, and goes."""
        world, site = self.world, self.world.site
        assert site is not None
        world.tell_syncer(site, m.LeaveRequested(reason="the end"))
        for actor in list(world.actors.values()):
            for duty in actor.machine.duties:
                if duty.offer:
                    world.tell_syncer(site, m.Received(key=actor.key, message=duty.offer))
        ends = world.now + LEAVE_S
        while site.alive and world.now < ends:
            world.run(min(world.now + 0.1, ends))
        world.finish()
        world.run(ends)
        if site.alive:
            raise Broken("does not leave", f"the syncer is {site.machine.phase} {LEAVE_S:g} s after it was asked")
        if [state.stamp for state in site.disk.states] != [desk.stamp for desk in site.machine.desk]:
            raise Broken("last checkpoint", "what was published last is not on the disk")

    # ---- what occurred

    def count(self) -> Counter[str]:
        """How often each fault and each branch occurred."""
        seen = Counter({f"fault: {name}": count for name, count in self.faults.done.items()})
        for actor in self.world.everybody:
            for what, times in actor.machine.counts.items():
                if what in OF_LEARNERS:
                    seen[what] += times
            seen["ended with the run"] += actor.machine.farewell is not None and not actor.alive
            seen["without last values"] += actor.machine.leave_reason == NO_LAST_VALUES
            seen["chunks asked again"] += actor.depot.inbox.counters.asked_again
            seen["transfers given up"] += actor.depot.inbox.counters.given_up
        for site in self.world.sites:
            intakes = site.machine.intakes
            seen += Counter({f"refused: {reason}": count for reason, count in intakes.refused.items()})
            seen += Counter({f"remark: {remark}": count for remark, count in intakes.remarks.items()})
            parked = site.machine.desk.parked
            seen += Counter({"late held": intakes.late, "replaced": intakes.replaced, "parked": parked})
            seen["chunks asked again"] += site.depot.inbox.counters.asked_again
            seen["transfers given up"] += site.depot.inbox.counters.given_up
            seen["rounds"] += site.machine.rounds
            seen["recovered"] += site.number > 0 and site.machine.rounds > 0
            seen += Counter({"bundles taken": intakes.bundles.counts["taken"]})
            seen["farewells"] += site.machine.farewell is not None
        seen += self.world.seen
        seen += self.world.relays.count()
        return seen


def play(scenario: Scenario, on_record: Callable[[trace.Record], None] | None = None) -> Outcome:
    """Play a scenario. Raises: Broken, or another MachineError, where a rule does not hold."""
    return Story(scenario, on_record).play()


def failure(scenario: Scenario) -> MachineError | None:
    """What does not hold in a scenario; None: all is well."""
    try:
        play(scenario)
    except MachineError as error:
        return error
    return None


def outermost_first(relays: Sequence[RelaySpec]) -> list[RelaySpec]:
    """Relays in such an order that each comes after the one that it dials."""
    regions = {spec.name: spec.region for spec in relays}

    def depth(name: str) -> int:
        return 1 + depth(regions[name]) if name else 0

    return sorted(relays, key=lambda spec: depth(spec.name))


def _speed(spec: LearnerSpec) -> Speed:
    return Speed(spec.step_s, spec.jitter, spec.drift, spec.stalls, spec.stall_s)
