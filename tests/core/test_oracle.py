"""Random histories: machines against the dumb model, with loss, delay, death on both sides, take-overs and drops."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest

from tests.core.lockstep import Lockstep, watch_intakes
from zdiloco.core.machine import ContributionLost, LeaveRequested, Received
from zdiloco.core.messages import Contribution
from zdiloco.core.params import SyncParams
from zdiloco.errors import MachineError
from zdiloco.sim.actors import Actor
from zdiloco.sim.links import Link
from zdiloco.sim.sizes import NBYTES
from zdiloco.units import ContributionId

BRANCHES = (
    "late held", "replaced", "declined", "parked", "rolled_back", "repaired", "fenced", "dropped", "carried", "merged",
    "freed as stable", "recovered", "took over beside a living one", "syncer killed", "learner killed",
    "learner killed while no syncer was there", "given up", "offered again", "gap", "update lost", "sent back",
    "refused: epoch", "refused: after", "refused: seq", "refused: layout", "refused: counters", "refused: non_finite",
    "refused: norm", "refused: budget", "refused: body", "refused: closed", "remark: clipped", "remark: zero",
    "replaced process",
)  # fmt: skip
MANY = int(os.environ.get("ZDILOCO_HISTORIES", "2000"))
PART = 300
"""Histories that are one test: enough of them to take every branch, few enough to share the cores."""
SOME = 400
"""Those before it belong to what CI runs."""
STARTS = range(100, MANY, PART)
STEP_S = 0.2
HEALED_S = 30.0


class History:
    """One random history of about thirty seconds; then everything heals and the books must be right."""

    learner: ClassVar[dict[str, str]] = {}
    """Settings of every learner that are not the usual ones."""
    repeats: ClassVar[float] = 0.03
    """Share of contributions that arrive again later."""

    def __init__(self, seed: int) -> None:
        params = SyncParams(
            sync_period=5, min_quorum=1 + (seed % 5 < 2), checkpoint_every_s=2.0, recover_wait_s=1.0, park_after_s=2.0,
            budget_bytes=110_000 if seed % 5 < 2 and seed % 10 != 1 else 2**16, beat_every_s=0.5,
            suspect_after_s=1.5, gone_after_s=3.0, drain_s=2.0,
            on_lost_quorum="degrade" if seed % 2 else "wait",
        )  # fmt: skip
        self.world = Lockstep(params, 1 + seed % 3, seed, target_tokens=10**9)
        watch_intakes(self.world)
        self.rng = self.world.rng
        self.calm = False
        self.bad: set[tuple] = set()
        self.world.lose = self.lose
        for index in range(3 + seed % 2):
            self.join(f"l{index}")

    def join(self, name: str) -> Actor:
        rng = self.rng
        latency_s, up_s, down_s = rng.choice([0.001, 0.05, 0.15]), rng.choice([0.01, 0.2, 1.5]), rng.choice([0.01, 0.1])
        link = Link(latency_s, up_bytes_s=NBYTES / up_s, down_bytes_s=NBYTES / down_s)
        limit = 40 if rng.random() < 0.2 else 0
        return self.world.join(
            name,
            STEP_S * rng.choice([1, 1, 2]),
            link,
            max_unmerged_steps=limit,
            answer_timeout_s=1.0,
            silent_after_s=2.0,
            **self.learner,
        )

    def lose(self, road: str, message: object) -> bool:
        if self.calm:
            return False
        if isinstance(message, Contribution) and road == "up" and self.rng.random() < self.repeats:
            self.repeat(message)
        return self.rng.random() < (0.15 if road in ("body", "update body") else 0.06)

    def repeat(self, message: Contribution) -> None:
        """A message arrives again much later, perhaps spoilt by a faulty sender."""
        world, rng = self.world, self.rng
        senders = [a for a in world.actors.values() if a.machine.duties[message.fragment].offer == message]
        kind = rng.random()
        if not senders:
            return
        if kind < 0.2:
            message = _with(message, steps=message.cut_step + 5, seq=10**6)
        elif kind < 0.4:
            message = _with(message, fragment=7, seq=10**6)
        elif kind < 0.5 and message.after > 1:
            message = _with(message, seq=message.after - 1)
        event = _received(senders[0].key, message)
        site = world.site
        late_s = rng.random() * (0.1 if 0.4 <= kind < 0.5 else 4)
        world.at(late_s, lambda: world.tell_syncer(site, event))

    def fault(self) -> None:
        """One random misfortune, then the next after a while."""
        world, rng = self.world, self.rng
        if self.calm:
            return
        dice, actors = rng.random(), sorted(world.actors.values(), key=lambda a: a.key)
        actor = rng.choice(actors)
        if dice < 0.35:
            world.seen["learner killed" + ("" if world.site else " while no syncer was there")] += 1
            world.kill(actor)
            world.at(rng.random() * 3, lambda: self.join(actor.key.name))
        elif dice < 0.40:
            world.seen["replaced process"] += 1
            self.join(actor.key.name)
        elif dice < 0.62 and world.site:
            self.crash_syncer()
        elif dice < 0.78 and world.site and world.site.machine.phase == "running":
            self.take_over(actors)
        elif dice < 0.85:
            self.poison(actor)
        else:
            self.give_up(actor)
        world.at(0.5 + rng.random() * 4, self.fault)

    def crash_syncer(self) -> None:
        world, rng = self.world, self.rng
        site = world.site
        if any(a.site is not site and a.site and a.site.alive for a in world.actors.values()):
            return  # only one misfortune of this kind at a time
        world.seen["syncer killed"] += 1
        world.kill_syncer(site)
        world.at(0.2 + rng.random() * 4, lambda: world.site or world.start_syncer(site.disk))

    def take_over(self, actors: list[Actor]) -> None:
        world, rng = self.world, self.rng
        old = world.site
        if any(a.site is not old for a in actors):
            return
        new = world.take_over([a for a in actors if rng.random() < 0.5])
        for actor in actors:
            world.at(1.5 + rng.random() * 3, lambda actor=actor: world.follow(actor, new))
        world.at(5.0, lambda: world.kill_syncer(old) if old.alive and old is not world.site else None)

    def poison(self, actor: Actor) -> None:
        """What this learner has under way holds what cannot be merged, or not as it is."""
        norm = self.rng.choice([float("nan"), 1e9, 100.0, 0.0])
        for duty in actor.machine.duties:
            if actor.site and duty.way:
                key = actor.key
                actor.site.body.norms[ContributionId(key.name, key.incarnation, duty.index, duty.way)] = norm

    def give_up(self, actor: Actor) -> None:
        """The learner's side breaks every transfer off, perhaps after it has arrived, and its offer comes once more."""
        world, site = self.world, self.world.site
        for duty in actor.machine.duties:
            if duty.offer:
                again = _received(actor.key, duty.offer)
                world.at(0.3 + self.rng.random(), lambda again=again: world.tell_syncer(site, again))
            if duty.way:
                lost = ContributionLost(fragment=duty.index, seq=duty.way, reason="the link broke")
                world.tell(actor, lost)

    def run(self) -> Counter[str]:
        world = self.world
        world.at(3.0, self.fault)
        world.run(HEALED_S)
        self.calm = True
        if world.site is None:
            disks = [a.site.disk for a in world.actors.values() if a.site]
            world.start_syncer(max(disks, key=lambda disk: max((s.stamp for s in disk.states), default=())))
        for actor in list(world.actors.values()):
            actor.site = world.site
        world.run(world.now + 10.0)
        while not self.everybody_is_merged():
            assert world.now < 140.0, f"somebody starves: {world.notes[-8:]}"
            world.run(world.now + 5.0)
        world.audit()
        world.finish()
        self.close_down()
        return self.count()

    def everybody_is_merged(self) -> bool:
        """Whether every learner has had work of after the healing merged, on every fragment."""
        world, healed = self.world, HEALED_S + 1
        return all(
            actor.machine.phase == "training"
            and any(at > healed and (fragment, work) in world.merged_at for work, at in actor.work_at.items())
            for actor in world.actors.values()
            for fragment in range(world.num_fragments)
        )

    def close_down(self) -> None:
        """The syncer is asked to leave: late offers are refused, it saves and goes."""
        world = self.world
        site = world.site
        world.tell_syncer(site, LeaveRequested(reason="the end"))
        for actor in list(world.actors.values()):
            for duty in actor.machine.duties:
                if duty.offer:
                    world.tell_syncer(site, _received(actor.key, duty.offer))
        world.run(world.now + 5.0)
        assert not site.alive
        assert [state.stamp for state in site.disk.states] == [desk.stamp for desk in site.machine.desk]

    def count(self) -> Counter[str]:
        seen = self.world.seen
        for actor in self.world.actors.values():
            for what, times in actor.machine.counts.items():
                if what in ("declined", "repaired", "gap", "offered again", "given up", "update lost"):
                    seen[what] += times
        seen["parked"] += sum(site.machine.desk.parked for site in self.world.sites)
        seen["sent back"] += seen["refused: budget"]
        return seen


def _with(message: Contribution, **changes: int) -> Contribution:
    return replace(message, **changes)


def _received(key: object, message: Contribution) -> object:
    return Received(key=key, message=message)


def play(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += History(seed).run()
        except (AssertionError, MachineError) as fault:
            raise AssertionError(f"seed {seed}: {fault}") from fault
    return seen


def report(seen: Counter[str], say: Callable[[str], None], seeds: range) -> None:
    say(f"random histories {seeds.start} to {seeds.stop - 1} agree with the model; branches taken:")
    for branch in sorted({*BRANCHES, *seen}):
        say(f"  {seen[branch]:8d}  {branch}")
    assert not [branch for branch in BRANCHES if not seen[branch]]


@pytest.mark.timeout(600)
def test_the_machines_agree_with_the_model(say: Callable[[str], None]) -> None:
    seeds = range(100)
    report(play(seeds), say, seeds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "start",
    [pytest.param(start, marks=pytest.mark.slow if start < SOME else pytest.mark.long) for start in STARTS],
)
def test_the_machines_agree_with_the_model_on_many_histories(say: Callable[[str], None], start: int) -> None:
    seeds = range(start, min(start + PART, MANY))
    report(play(seeds), say, seeds)
