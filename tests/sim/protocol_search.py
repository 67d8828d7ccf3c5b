"""The search through every world of the exactly-once protocol, and what must hold in each and after each.

Rule: a fault is told with the shortest path that leads to it. After every world comes the worst that may follow: all
that is in flight is lost, and what is held is merged. From there on without faults, whatever the living have done is
merged too.
"""

from collections import Counter, deque

from tests.sim.protocol_sides import LearnerSide, SyncerSide
from tests.sim.protocol_world import DEAD, Bounds, Rules, World
from zdiloco.agenda import Broken
from zdiloco.sim.work import ids_of


class Found(Exception):
    """A rule is broken: how, and by which events."""


FAULTS = (AssertionError, Broken)


class ProtocolSearch(Rules):
    """Breadth first, so that the path to a fault is as short as can be."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.came: dict[World, tuple[World | None, str]] = {}
        self.sound: set[tuple[int, int]] = set()
        self.healed: set[tuple[int, int]] = set()
        self.steps = 0

    def run(self) -> int:
        """Follow every way from every world. Returns how many worlds there are. Raises Found."""
        first = self.start()
        self.came[first] = (None, "")
        queue = deque([first])
        while queue:
            world = queue.popleft()
            try:
                queue += self.new_ones(world)
            except FAULTS as fault:
                raise Found(f"{fault}\n{self.story(world, self.doing)}") from fault
        return len(self.came)

    def new_ones(self, world: World) -> list[World]:
        """The worlds one event from here to which no other way has led."""
        found = []
        for what, after in self.ways(world):
            self.steps += 1
            if after not in self.came:
                self.came[after] = (world, what)
                self.check(after)
                found.append(after)
        return found

    def check(self, world: World) -> None:
        """What must hold here and after it. Raises Found."""
        last: tuple[str, ...] = ()
        try:
            self.audit(world)
            last = ("all goes well from here on",)
            self.heal(world)
        except FAULTS as fault:
            raise Found(f"{fault}\n{self.story(world, *last)}") from fault

    def story(self, world: World | None, *last: str) -> str:
        """How it came to this, event by event."""
        lines: list[str] = []
        while world is not None:
            world, what = self.came[world]
            lines.append(what)
        return " > ".join([*lines[-2::-1], *last])

    def fates(self) -> Counter[str]:
        """Each fate of an update, and of an offer: met by so many different parts with so many different ones."""
        return Counter(out for _, out in self.memo.values() if isinstance(out, str))

    # ---- what must hold

    def audit(self, world: World) -> None:
        """Of no living learner's work anything is gone: it can give it, or it is durable, or given up."""
        for part in world.learners:
            place = (part, world.syncer)
            if part == DEAD or place in self.sound:
                continue
            self.sound.add(place)
            learner: LearnerSide = self.things[part]
            syncer: SyncerSide = self.things[world.syncer]
            gone = learner.trained & ~(learner.remembered() | learner.given | syncer.disk.value)
            assert not gone, f"ids {ids_of(gone)} are nowhere but in what a crash would take"

    def heal(self, world: World) -> None:
        """From here on without faults: everybody's work is merged, whether the others do anything or not."""
        if not self.things[world.syncer].up:
            handed = tuple(self.number(self.things[part].handed()) for part in world.learners if part != DEAD)
            world = world._replace(syncer=self.act(world.syncer, "restart", *handed)[0])
        for part in world.learners:
            place = (part, world.syncer)
            if part != DEAD and place not in self.healed:
                self.healed.add(place)
                self.be_calm(*place)

    def be_calm(self, part: int, syncer: int) -> None:
        """What is held is merged, the learner follows, cuts what is left, and that is merged."""
        syncer, part = self.closed(syncer, part)
        if self.things[part].u:
            part, offer = self.act(part, "cut")
            syncer, _ = self.act(syncer, "offer", offer)
            syncer, part = self.closed(syncer, part)
        learner, value = self.things[part], self.things[syncer].state.value
        gone = learner.trained & ~(value | learner.dropped)
        assert not gone, f"ids {ids_of(gone)} are not merged though nothing stands in their way"

    def closed(self, syncer: int, part: int) -> tuple[int, int]:
        """A round closes, and the learner adopts what is published."""
        if self.menu(syncer)[1]:
            syncer, _ = self.act(syncer, "close")
        part, _ = self.act(part, "adopt_full", self.number(self.things[syncer].state))
        return syncer, part
