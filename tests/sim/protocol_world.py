"""The exactly-once protocol alone: two learners, a syncer, one fragment; a world so small that all of it is looked at.

Rule: whatever was said once is said for ever. That is how loss, delay, disorder and repetition are covered without
bounds: an offer, a published state or a word of what is stable may, once it was said, arrive at any later moment, any
number of times, or never. It is left out of a world only where the production code makes nothing of it, from here on.

By symmetry the learner that dies is the first: before it they are alike. It returns with what is published then:
whoever adopts a state late, and does nothing between, might as well have come later. A checkpoint is durable at once:
one that takes long is the same as a later word of it, or as none. A merge takes no time: what comes meanwhile is judged
as after it. Of what is stable only the newest word of each epoch is kept: an older one frees less of what was there
when it might have come. A contribution that is sent back for lack of room is the same as one that has not arrived yet.

Not covered here, but by `explore.py` and the random histories: time and timers, membership, rounds and quorums, the
budget, transfers and encoding that take a while, the boundary between Prepare and Adopt, refusals for what a
contribution holds, more than `MOST_UNSETTLED` contributions without a fate, and a learner that adopts otherwise than by
`carry`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.sim.frozen import clone, freeze
from tests.sim.protocol_sides import FIRST, NAMES, LearnerSide, Published, SyncerSide
from zdiloco.units import Epoch, MemberKey, Stamp

DEAD = -1
WORDS = {
    "adopt_full": "a pulled state reaches", "adopt_next": "a broadcast reaches", "hear_stable": "a beat reaches",
    "offer": "an offer arrives", "close": "round closes", "void": "merge fails", "save": "saved",
    "restart": "syncer returns", "step": "a step", "cut": "a cut", "drop": "a drop",
}  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """How much may happen on one path: inner steps and contributions of both learners together, and misfortunes."""

    steps: int = 3
    contributions: int = 3
    learner_crashes: int = 1
    syncer_crashes: int = 1
    drops: int = 0


class Spent(NamedTuple):
    """What of the bounds is used up."""

    steps: int = 0
    contributions: int = 0
    learner_crashes: int = 0
    syncer_crashes: int = 0
    drops: int = 0


Numbers = tuple[int, ...]


class World(NamedTuple):
    """One state. Numbers of parts, and of what was said: states published, contributions offered, what is stable."""

    learners: Numbers
    syncer: int
    news: Numbers
    offers: Numbers
    stables: Numbers
    spent: Spent


Way = tuple[str, World]


class Rules:
    """All worlds within the bounds. What an event makes of a part is worked out once."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.things: list[Any] = []
        self.numbers: dict[Any, int] = {}
        self.memo: dict[tuple[Any, ...], tuple[int, Any]] = {}
        self.lasting: dict[tuple[int, int], bool] = {}
        self.moves: dict[int, tuple[bool, ...]] = {}
        self.doing = ""

    def number(self, thing: Any) -> int:
        """The number of a part, or of what is said; a new part is audited."""
        is_part = isinstance(thing, LearnerSide | SyncerSide)
        key = freeze(thing, set()) if is_part else (type(thing).__name__, thing)
        if key not in self.numbers:
            self.numbers[key] = len(self.things)
            self.things.append(thing)
            if is_part:
                thing.audit()
        return self.numbers[key]

    def act(self, part: int, what: str, *said: int) -> tuple[int, Any]:
        """What an event makes of a part, and what it says."""
        key = (part, what, *said)
        if key not in self.memo:
            self.doing = WORDS.get(what, what)
            made = clone(self.things[part], {})
            out = getattr(made, what)(*(self.things[number] for number in said))
            plain = out is None or isinstance(out, str)
            self.memo[key] = self.number(made), out if plain else self.number(out)
        return self.memo[key]

    def start(self) -> World:
        """A run that has begun: both learners have adopted the first state."""
        first = Published(Stamp(Epoch(1, FIRST), 0), 0)
        syncer = self.number(SyncerSide(first, True, first))
        learners = tuple(self.newcomer(name, 1, first) for name in NAMES)
        return World(learners, syncer, (), (), (), Spent())

    def newcomer(self, name: str, incarnation: int, state: Published) -> int:
        learner = LearnerSide(MemberKey(name, incarnation))
        learner.adopt_full(state)
        return self.number(learner)

    # ---- what may come next

    def ways(self, world: World) -> Iterator[Way]:
        """Every event that may come next, with the world after it."""
        for index, part in enumerate(world.learners):
            if part != DEAD:
                yield from self.deeds(world, index)
                yield from self.news(world, index)
        yield from self.syncer_ways(world)
        yield from self.learner_crash(world)

    def deeds(self, world: World, index: int) -> Iterator[Way]:
        """What a learner does by itself."""
        spent, bounds, part, name = world.spent, self.bounds, world.learners[index], NAMES[index]
        has_work, has_sent = self.menu(part)
        if spent.steps < bounds.steps:
            made, _ = self.act(part, "step")
            yield f"{name} steps", self.with_learner(world, index, made, spent._replace(steps=spent.steps + 1))
        if has_work and spent.contributions < bounds.contributions:
            made, offer = self.act(part, "cut")
            after = spent._replace(contributions=spent.contributions + 1)
            world_after = self.with_learner(world, index, made, after)
            yield f"{name} cuts", self.say(world_after, offers=(*world_after.offers, offer))
        if (has_work or has_sent) and spent.drops < bounds.drops:
            made, _ = self.act(part, "drop")
            yield f"{name} drops", self.with_learner(world, index, made, spent._replace(drops=spent.drops + 1))

    def news(self, world: World, index: int) -> Iterator[Way]:
        """What reaches a learner, now or once more."""
        part = world.learners[index]
        for what, road in (("adopt_full", world.news), ("adopt_next", world.news), ("hear_stable", world.stables)):
            for number in road:
                made, _ = self.act(part, what, number)
                if made != part:
                    yield f"{WORDS[what]} {NAMES[index]}", self.with_learner(world, index, made, world.spent)

    def syncer_ways(self, world: World) -> Iterator[Way]:
        syncer, spent = world.syncer, world.spent
        is_up, has_held, has_new = self.menu(syncer)
        if not is_up:
            yield from self.restarts(world)
            return
        for number in world.offers:
            made, _ = self.act(syncer, "offer", number)
            if made != syncer:
                yield f"an offer of {self.things[number].key.name} arrives", self.with_syncer(world, made)
        if has_held:
            made, state = self.act(syncer, "close")
            yield WORDS["close"], self.with_syncer(self.say(world, news=(*world.news, state)), made)
            yield WORDS["void"], self.with_syncer(world, self.act(syncer, "void")[0])
        if has_new:
            made, stable = self.act(syncer, "save")
            yield WORDS["save"], self.with_syncer(self.say(world, stables=self.newest(world, stable)), made)
        if spent.syncer_crashes < self.bounds.syncer_crashes:
            after = self.with_syncer(world, self.act(syncer, "crash")[0])
            yield "syncer dies", after._replace(spent=spent._replace(syncer_crashes=spent.syncer_crashes + 1))

    def restarts(self, world: World) -> Iterator[Way]:
        """The syncer returns, with any part of the living learners reached."""
        handed = [self.number(self.things[part].handed()) for part in world.learners if part != DEAD]
        sets = [(), *((each,) for each in handed)] + ([tuple(handed), tuple(handed[::-1])] if len(handed) > 1 else [])
        for reached in sets:
            yield f"{WORDS['restart']}, {len(reached)} reached", self.restart(world, reached)

    def restart(self, world: World, reached: Numbers) -> World:
        made, state = self.act(world.syncer, "restart", *reached)
        stable = self.number(self.things[state].stamp)
        said = self.say(world, news=(*world.news, state), stables=self.newest(world, stable))
        return self.with_syncer(said, made)

    def learner_crash(self, world: World) -> Iterator[Way]:
        spent = world.spent
        if world.learners[0] != DEAD:
            if spent.learner_crashes < self.bounds.learner_crashes:
                after = spent._replace(learner_crashes=spent.learner_crashes + 1)
                yield f"{NAMES[0]} dies", self.with_learner(world, 0, DEAD, after)
        elif self.things[world.syncer].up:
            made = self.newcomer(NAMES[0], spent.learner_crashes + 1, self.things[world.syncer].state)
            yield f"{NAMES[0]} returns", self.with_learner(world, 0, made, spent)

    def menu(self, part: int) -> tuple[bool, ...]:
        """What a part may do by itself."""
        if part not in self.moves:
            thing = self.things[part]
            if isinstance(thing, LearnerSide):
                self.moves[part] = bool(thing.u), bool(thing.progress.sent)
            else:
                self.moves[part] = thing.up, bool(thing.intake.held), thing.state.stamp > thing.disk.stamp
        return self.moves[part]

    # ---- the world after it

    def with_learner(self, world: World, index: int, part: int, spent: Spent) -> World:
        learners = (part, world.learners[1]) if index == 0 else (world.learners[0], part)
        return self.trimmed(World(learners, world.syncer, world.news, world.offers, world.stables, spent))

    def with_syncer(self, world: World, part: int) -> World:
        offers = tuple([number for number in world.offers if self.lasts(part, number)])
        return self.trimmed(World(world.learners, part, world.news, offers, world.stables, world.spent))

    def say(self, world: World, **said: Numbers) -> World:
        """More is said; each thing once, in the order of its number."""
        return world._replace(**{road: tuple(sorted(set(numbers))) for road, numbers in said.items()})

    def newest(self, world: World, stable: int) -> Numbers:
        """The words of what is stable, with a newer one of its epoch."""
        epoch = self.things[stable].epoch
        return (*(number for number in world.stables if self.things[number].epoch != epoch), stable)

    def trimmed(self, world: World) -> World:
        """Without what no living learner can make anything of, now and ever."""
        living = [part for part in world.learners if part != DEAD]
        news, stables = [
            tuple([number for number in road if any([self.lasts(part, number) for part in living])])
            for road in (world.news, world.stables)
        ]
        return World(world.learners, world.syncer, news, world.offers, stables, world.spent)

    def lasts(self, part: int, number: int) -> bool:
        """Whether this may still change this part, now or later: stamps and epochs only grow."""
        place = (part, number)
        if place not in self.lasting:
            thing, said = self.things[part], self.things[number]
            if isinstance(thing, SyncerSide):
                self.lasting[place] = not thing.is_refused_for_ever(said)
            else:
                self.lasting[place] = self.may_matter(part, number, thing.progress.seen)
        return self.lasting[place]

    def may_matter(self, part: int, number: int, seen: Stamp) -> bool:
        """Whether a published state, or a word of what is stable, may still change this learner."""
        said = self.things[number]
        is_stable = isinstance(said, Stamp)
        is_newer = said.epoch >= seen.epoch if is_stable else said.stamp > seen
        ops = ("hear_stable",) if is_stable else ("adopt_full", "adopt_next")
        return is_newer or any(self.act(part, what, number)[0] != part for what in ops)
