"""The search through every world within the bounds, and what must hold in each and after each.

Rule: a fault is told with the whole path that leads to it. After every world comes the worst that may follow: all that
is in flight is lost. From there on without faults, whatever the living have done is merged.
"""

from collections import Counter, deque
from typing import Any

from tests.sim.explore import DEAD, NAMES, QUIET, WELCOME, Bounds, Explorer, Spent, World, take
from tests.sim.parts import TOKENS, LearnerPart
from tests.sim.syncer_part import SyncerPart
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.ledger import row_of, settle
from zdiloco.core.start import SyncerPhase
from zdiloco.sim.bodies import State, SyncerDisk
from zdiloco.sim.work import ids_of
from zdiloco.units import Epoch, Stamp


class Search(Explorer):
    """Breadth first, so that the path to a fault is as short as can be.

    `resting`: where what was left alone has come to rest. `contributions`: the most that were cut on one path.
    """

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.audited: set[Any] = set()
        self.healed: set[Any] = set()
        self.resting: dict[World, World] = {}
        self.came: dict[World, tuple[World | None, str]] = {}
        self.ways_taken: Counter[str] = Counter()
        self.contributions = 0
        self.is_complete = False

    def run(self, most: int = 1 << 60) -> int:
        """Follow every way. Returns how many worlds there are; more than `most` are not looked at."""
        first = self.start()
        self.came[first] = (None, "")
        queue = deque([first])
        while queue and len(self.came) < most:
            world = queue.popleft()
            try:
                self.audit(world)
                self.heal(world)
                queue += self.new_ones(world)
            except Exception as fault:
                raise AssertionError(f"{fault}\n{self.story(world)}") from fault
        self.is_complete = not queue
        return len(self.came)

    def new_ones(self, world: World) -> list[World]:
        """The worlds one step from here to which no other way has led."""
        found = []
        for what, after in self.ways(world):
            self.ways_taken[what] += 1
            if after not in self.came and not self.is_covered(after):
                self.came[after] = (world, what)
                found.append(after)
        return found

    def is_covered(self, world: World) -> bool:
        """Whether the same with fewer losses or repetitions is known: all that may follow here may follow there."""
        spent = world.spent
        return any(
            world._replace(spent=spent._replace(losses=losses, repeats=repeats)) in self.came
            for losses in range(spent.losses + 1)
            for repeats in range(spent.repeats + 1)
        )

    def story(self, world: World | None) -> str:
        """How it came to this, event by event."""
        lines: list[str] = []
        while world is not None:
            world, what = self.came[world]
            lines.append(what)
        return " > ".join(lines[::-1])

    def start(self) -> World:
        """A run that has begun: both learners train on the first published state and have told of one step."""
        disk = SyncerDisk("run", (1.0,), [State(Stamp(Epoch(1, 1), 0), 0, ())])
        quorum = self.bounds.min_quorum
        world = World((DEAD, DEAD), self.number(SyncerPart.start(disk, quorum, 2)), True, QUIET, Spent())
        for index, name in enumerate(NAMES):
            world = self.join(world, index, LearnerPart.start(name, 1, quorum))
        world = self.calm(world)
        assert all(self.parts[each].machine.phase is LearnerPhase.TRAINING for each in world.learners)
        for index in range(len(NAMES)):
            world = self.step(world, index)
        return self.settle_down(world)

    # ---- what must hold

    def audit(self, world: World) -> None:
        """Of no living learner's work anything is gone, and the ledger of each balances."""
        place = (world.learners, world.syncer)
        if place in self.audited:
            return
        self.audited.add(place)
        cuts = [0 if part == DEAD else self.parts[part].duty.progress.seq for part in world.learners]
        self.contributions = max(self.contributions, sum(cuts))
        holder = self.parts[world.syncer]
        durable = (holder.body.disk if world.up else holder.disk).states[0]
        for part in world.learners:
            if part == DEAD:
                continue
            learner: LearnerPart = self.parts[part]
            gone = learner.trained & ~(learner.remembered() | learner.dropped | durable.value)
            assert not gone, f"ids {ids_of(gone)} are nowhere but in what a crash would take"
            for state in [durable, *(holder.body.states if world.up else ())]:
                self.balance(learner, state)

    def balance(self, learner: LearnerPart, state: State) -> None:
        """The books balance whether the run goes on from what is durable or from what is published."""
        entry = next((each for each in state.map if each.key == learner.machine.key), None)
        progress = learner.duty.progress
        seq, tokens = (entry.seq, entry.tokens) if entry else (0, 0)
        fates = settle(progress.tally.trained, row_of(progress), seq, tokens, "living")
        assert fates.gap == 0, f"the ledger does not balance: {fates}"
        mine = (learner.trained & state.value).bit_count() * TOKENS
        assert tokens == mine, "the map does not say what of this learner is merged"

    # ---- healing

    def calm(self, world: World) -> World:
        """A while without faults: everything owed comes, everything in flight arrives, every timer runs out."""
        self.is_calm, passed = True, list[World]()
        for _ in range(50):
            world = self.settle_down(world)
            if world in self.resting:
                world = self.resting[world]
                break
            before, world = world, self.pass_time(world)
            if world == before:
                break
            passed.append(before)
        else:
            raise AssertionError("it never comes to rest")
        self.is_calm = False
        self.resting.update(dict.fromkeys(passed, world))
        self.resting[world] = world
        return world

    def pass_time(self, world: World) -> World:
        """Every timer that runs runs out once, and everybody comes to a boundary."""
        for index in range(len(NAMES)):
            if self.menu(world.learners[index])[3] in WELCOME:
                world = self.settle_down(self.learner(world, index, world.net, "boundary"))
                world = self.settle_down(self.heartbeat(world, index))
            for what in self.menu(world.learners[index])[2]:
                for _, after in self.learner_timer(world, index, what):
                    world = self.settle_down(after)
        for what in self.parts[world.syncer].timers():
            world = self.settle_down(self.syncer(world, world.net, "timer", what))
        if self.parts[world.syncer].machine.phase is SyncerPhase.RUNNING:
            for index in range(len(NAMES)):
                world = self.settle_down(self.beat(world, index))
        return world

    def settle_down(self, world: World) -> World:
        """Whoever is dead returns; then the first thing that is owed or in flight comes, until there is none."""
        for _ in range(500):
            after = self.first_owed(world)
            if after is None:
                return world
            world = after
        raise AssertionError("the messages never end")

    def first_owed(self, world: World) -> World | None:
        if DEAD in world.learners:
            return self.restart_learner(world)
        if not world.up:
            return self.restart_syncer(world)
        for index, part in enumerate(world.learners):
            local, coming = self.menu(part)[:2]
            if local or coming:
                return self.learner(world, index, world.net, "answer" if local else "arrive", 0)
        syncer = self.parts[world.syncer]
        if syncer.local:
            return self.syncer(world, world.net, "answer", 0)
        for i, (key, message) in enumerate(syncer.fetching):
            ids = self.bytes_of(world, key, message)
            op = ("fetch_lost", i) if ids is None else ("fetched", i, ids)
            return self.syncer(world, world.net, *op)
        if syncer.saving:
            return self.syncer(world, world.net, "saved")
        for road, queue in enumerate(world.net):
            if queue:
                return self.deliver(world, queue[0], take(world.net, road))
        return None

    def heal(self, world: World) -> None:
        """From here on without faults, all that is in flight lost: everybody's work is merged in the end."""
        place = (world.learners, world.syncer)
        if place in self.healed:
            return
        self.healed.add(place)
        world = world._replace(net=QUIET, spent=world.spent._replace(losses=0, repeats=0))
        wanted = self.work_of(world)
        for _ in range(LIMIT):
            world = self.calm(world)
            if not wanted & ~self.merged(world):
                return
            for index in range(len(NAMES)):
                world = self.settle_down(self.step(world, index))
        gone = ids_of(wanted & ~self.merged(world))
        raise AssertionError(f"ids {gone} are not merged though nothing stands in their way")

    def work_of(self, world: World) -> int:
        """Ids of all that the living have done, but for what they gave up by a declared rule."""
        ids = 0
        for part in world.learners:
            ids |= 0 if part == DEAD else self.parts[part].trained & ~self.parts[part].dropped
        return ids

    def merged(self, world: World) -> int:
        value: int = self.parts[world.syncer].body.states[0].value
        return value


LIMIT = 6
"""Inner steps of each within which all that was done before is merged: a few rounds of H = 1."""
