"""Every interleaving of a small world: two learners, one fragment, a few steps, crashes, loss and repetition.

Rule: a world is a handful of numbers: the parts (interned, so what one event does to one part is worked out once), the
messages in flight, and what of the bounds is used up. Each way on is followed from each world, each world once.

Within the bounds nothing is left to chance. What they are: roads keep their order, and each learner has three (up, down
to it alone, broadcast), which overtake each other at will; the first message of a road may be lost, or come once more
behind the others. Unless words are slow, a learner's short ones (SHORT) are heard as they are said. A beat tells what
is when it arrives. Unless bodies are slow, encoding, screening and preparing take no time; transfers, merges,
checkpoints and the bodies of updates always do. A question is asked again where neither it nor its answer is on the
way. Whoever lives is not taken for dead, and while a syncer runs its beats are heard. Unless hellos are late, a dead
learner's comes before that of its successor; two syncers never live at once. Nobody runs out of memory, sends what
cannot be merged, or leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.sim.parts import LearnerPart, Out, Part, is_mute
from tests.sim.syncer_part import SyncerPart
from zdiloco.core.duty import DutyState
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.messages import Beat, Contribution, Decline, Hello, Pull, Report, Update
from zdiloco.core.start import SyncerPhase
from zdiloco.sim.bodies import SyncerDisk
from zdiloco.units import MemberKey

NAMES = ("a", "b")
DEAD = -1
SHORT = (Hello, Report, Decline, Pull)
"""What a learner says in a few bytes."""
WORKING = (LearnerPhase.TRAINING, LearnerPhase.ADRIFT)
WELCOME = (LearnerPhase.TRAINING, LearnerPhase.RESTORING)


@dataclass(frozen=True)
class Bounds:
    """How much of everything may happen on one path.

    `steps`: inner steps of both learners together, among them the one that each has made before the first world.
    """

    steps: int = 3
    learner_crashes: int = 1
    syncer_crashes: int = 1
    losses: int = 1
    repeats: int = 1
    min_quorum: int = 1
    slow_bodies: bool = False
    slow_words: bool = False
    late_hellos: bool = False


class Spent(NamedTuple):
    """What of the bounds is used up; steps per learner, in the order of NAMES."""

    steps: tuple[int, ...] = (0, 0)
    learner_crashes: int = 0
    syncer_crashes: int = 0
    losses: int = 0
    repeats: int = 0


Net = tuple[tuple[int, ...], ...]
"""Messages in flight, first come first: per learner up, direct down, broadcast; then up from whoever has died."""
UP, DOWN, CAST, GHOST = 0, len(NAMES), 2 * len(NAMES), 3 * len(NAMES)
QUIET: Net = ((),) * (GHOST + 1)


def put(net: Net, road: int, number: int) -> Net:
    """A message enters a road behind all others, unless it would say once more what the last one says."""
    if net[road][-1:] == (number,):
        return net
    return (*net[:road], (*net[road], number), *net[road + 1 :])


def take(net: Net, road: int) -> Net:
    """The first message of a road is there."""
    return (*net[:road], net[road][1:], *net[road + 1 :])


class World(NamedTuple):
    """One state. Numbers of parts; DEAD for a learner that is no more; a disk's number where `up` is False."""

    learners: tuple[int, ...]
    syncer: int
    up: bool
    net: Net
    spent: Spent


@dataclass
class Down:
    """A syncer that is no more: its disk is all that is left."""

    disk: SyncerDisk


Way = tuple[str, World]


class Explorer:
    """All worlds within the bounds, and what must hold in each."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.parts: list[Any] = []
        self.numbers: dict[Any, int] = {}
        self.items: list[Out] = []
        self.item_numbers: dict[Out, int] = {}
        self.memo: dict[Any, tuple[int, tuple[int, ...]]] = {}
        self.menus: dict[int, Any] = {}
        self.is_calm = False

    def number(self, part: Any) -> int:
        """The number of a part; a new one is audited."""
        key = part.fingerprint() if isinstance(part, Part) else ("down", tuple(part.disk.states), part.disk.replaced)
        if key not in self.numbers:
            self.numbers[key] = len(self.parts)
            self.parts.append(part)
            if isinstance(part, Part):
                part.audit()
        return self.numbers[key]

    def item(self, out: Out) -> int:
        """The number of a message."""
        if out not in self.item_numbers:
            self.item_numbers[out] = len(self.items)
            self.items.append(out)
        return self.item_numbers[out]

    def act(self, part: int, *op: Any) -> tuple[int, tuple[int, ...]]:
        """What an event makes of a part, and what it sends: worked out once."""
        key = (part, op)
        if key not in self.memo:
            full = op
            if op[0] == "hear":
                road, who, message, content = self.items[op[1]]
                full = ("hear", who, message, content) if road == "up" else ("hear", message, content)
            made, sent = self.parts[part].apply(self.bounds.slow_bodies, *full)
            self.memo[key] = self.number(made), tuple(self.item(out) for out in sent)
        return self.memo[key]

    def send(self, world: World, net: Net, sent: tuple[int, ...]) -> Net:
        """The messages in flight after these were sent; what is for nobody who lives is gone."""
        living = {self.key(world, i): i for i in range(len(NAMES)) if world.learners[i] != DEAD}
        for number in sent:
            road, who, message, content = self.items[number]
            if road == "up":
                net = put(net, UP + NAMES.index(who.name), number)
            elif road == "down" and who in living and not is_mute(message):
                net = put(net, DOWN + living[who], number)
            elif road == "cast" and not isinstance(message, Beat):  # those come when they come: see `beat`
                for key, index in living.items():
                    net = put(net, CAST + index, self.item(("down", key, message, content)))
        return net

    def key(self, world: World, index: int) -> MemberKey:
        key: MemberKey = self.parts[world.learners[index]].machine.key
        return key

    def learner(self, world: World, index: int, net: Net, *op: Any) -> World:
        """The world after an event of a learner."""
        made, sent = self.act(world.learners[index], *op)
        learners = (*world.learners[:index], made, *world.learners[index + 1 :])
        world = world._replace(learners=learners)
        net = self.send(world, net, sent)
        if net[DOWN + index] or net[CAST + index]:
            net = self.prune(made, index, net)
        return self.flush(world._replace(net=net), index)

    def flush(self, world: World, index: int) -> World:
        """Short words at the head of a road up are heard at once; by nobody, where no syncer is."""
        road = UP + index
        while not self.bounds.slow_words and world.net[road]:
            number = world.net[road][0]
            if not isinstance(self.items[number][2], SHORT):
                break
            if world.up:
                world = self.syncer(world, take(world.net, road), "hear", number)
            else:
                world = world._replace(net=take(world.net, road))
        return world

    def prune(self, part: int, index: int, net: Net) -> Net:
        """Leave out what this learner would pass over whenever it came: whether it arrives makes no difference."""
        learner: LearnerPart = self.parts[part]
        roads = list(net)
        for road in (DOWN + index, CAST + index):
            roads[road] = tuple(n for n in net[road] if not learner.is_past(self.items[n][2]))
        return tuple(roads)

    def syncer(self, world: World, net: Net, *op: Any) -> World:
        """The world after an event of the syncer."""
        made, sent = self.act(world.syncer, *op)
        return world._replace(syncer=made, net=self.send(world, net, sent))

    def join(self, world: World, index: int, part: LearnerPart) -> World:
        learners = (*world.learners[:index], self.number(part), *world.learners[index + 1 :])
        return self.learner(world._replace(learners=learners), index, world.net, "started")

    def ways(self, world: World) -> Iterator[Way]:
        """Every event that may come next, with the world after it."""
        yield from self.messages(world)
        for index, part in enumerate(world.learners):
            if part != DEAD:
                yield from self.learner_ways(world, index)
        if world.up:
            yield from self.syncer_ways(world)
        yield from self.crashes(world)

    def messages(self, world: World) -> Iterator[Way]:
        """The first of a road arrives; or arrives, and comes once more behind all others; or is lost."""
        spent, bounds = world.spent, self.bounds
        for road, queue in enumerate(world.net):
            if not queue or (self.items[queue[0]][0] == "up" and not world.up):
                continue
            rest = take(world.net, road)
            yield "deliver", self.deliver(world, queue[0], rest)
            if spent.repeats < bounds.repeats:
                again = world._replace(spent=spent._replace(repeats=spent.repeats + 1))
                yield "deliver and repeat", self.deliver(again, queue[0], put(rest, road, queue[0]))
            if spent.losses < bounds.losses:
                yield "lose", world._replace(net=rest, spent=self.lost(spent))

    def lost(self, spent: Spent) -> Spent:
        return spent._replace(losses=spent.losses + 1)

    def deliver(self, world: World, number: int, net: Net) -> World:
        road, who = self.items[number][:2]
        if road == "up":
            return self.flush(self.syncer(world, net, "hear", number), NAMES.index(who.name))
        return self.learner(world, NAMES.index(who.name), net, "hear", number)

    def in_flight(self, world: World, index: int, kinds_up: Any, kinds_down: Any) -> bool:
        """Whether a question of this learner, or its answer, is on its way."""
        up, down = world.net[UP + index], world.net[DOWN + index]
        return any(isinstance(self.items[n][2], kinds_up) for n in up) or any(
            isinstance(self.items[n][2], kinds_down) for n in down
        )

    def menu(self, part: int) -> Any:
        """What a learner may do by itself.

        Events owed, updates coming, timers, phase, whether a contribution is under way, whether a boundary has work.
        """
        if part not in self.menus:
            learner: LearnerPart = self.parts[part]
            phase, duty = learner.machine.phase, learner.duty
            self.menus[part] = (
                len(learner.local), len(learner.coming), learner.timers(), phase, bool(duty.way),
                learner.has_business(),
            )  # fmt: skip
        return self.menus[part]

    def learner_ways(self, world: World, index: int) -> Iterator[Way]:
        spent, bounds, net = world.spent, self.bounds, world.net
        part = world.learners[index]
        local, coming, timers, phase, on_way, boundary = self.menu(part)
        for i in range(local):
            yield "body", self.learner(world, index, net, "answer", i)
        for i in range(coming):
            yield "update here", self.learner(world, index, net, "arrive", i)
        if spent.losses < bounds.losses:
            lossy = world._replace(spent=self.lost(spent))
            for i in range(coming):
                yield "update lost", self.learner(lossy, index, net, "miss", i)
            if on_way:
                yield "gives up", self.learner(lossy, index, net, "give_up")
        if phase in WORKING and sum(spent.steps) < bounds.steps:
            yield "step", self.step(world, index)
        if boundary:
            yield "boundary", self.learner(world, index, net, "boundary")
        for what in timers:
            yield from self.learner_timer(world, index, what)

    def step(self, world: World, index: int) -> World:
        """One inner step; its id says whose it is and the how-manieth."""
        steps = list(world.spent.steps)
        steps[index] += 1
        work = steps[index] * len(NAMES) + index
        after = world._replace(spent=world.spent._replace(steps=tuple(steps)))
        return self.learner(after, index, world.net, "step", work)

    def learner_timer(self, world: World, index: int, what: str) -> Iterator[Way]:
        """A question is asked again where it or its answer is no longer on its way; silence is heard where it is."""
        syncer = self.parts[world.syncer]
        questions: Any = {"hello": Hello, "offer": Contribution, "pull": ()}.get(what, ())
        answers: Any = {"pull": Update}.get(what, object if what != "silence" else ())
        if what == "silence":
            if world.up and syncer.machine.phase is SyncerPhase.RUNNING:
                return  # beats come; one of another epoch does what silence does
        elif self.in_flight(world, index, questions, answers) or (what == "offer" and not self.is_open(world, index)):
            return
        yield what, self.learner(world, index, world.net, "timer", what)

    def is_open(self, world: World, index: int) -> bool:
        """Whether a contribution of this learner is answered no more by itself, so that it asks again.

        One that is known to be held it asks after only where everything is calm: before that it is a repetition.
        """
        duty = self.parts[world.learners[index]].duty
        if duty.state is DutyState.HELD:
            return self.is_calm
        key = self.key(world, index)
        return not world.up or (key, 0) not in self.parts[world.syncer].machine.intakes.incoming

    def heartbeat(self, world: World, index: int) -> World:
        """A heartbeat, which takes no time on its way."""
        made, sent = self.act(world.learners[index], "timer", "beat")
        assert made == world.learners[index], "a heartbeat has changed the learner"
        for number in sent:
            world = self.deliver(world, number, world.net)
        return world

    def syncer_ways(self, world: World) -> Iterator[Way]:
        syncer, net, spent = self.parts[world.syncer], world.net, world.spent
        for i in range(len(syncer.local)):
            yield "syncer's body", self.syncer(world, net, "answer", i)
        for i, (key, message) in enumerate(syncer.fetching):
            ids = self.bytes_of(world, key, message)
            if ids is not None:
                yield "fetched", self.syncer(world, net, "fetched", i, ids)
            if ids is None or spent.losses < self.bounds.losses:
                lossy = world if ids is None else world._replace(spent=self.lost(spent))
                yield "fetch lost", self.syncer(lossy, net, "fetch_lost", i)
        if syncer.saving:
            yield "saved", self.syncer(world, net, "saved")
        for what in syncer.timers():
            yield what, self.syncer(world, net, "timer", what)
        for member in syncer.machine.fleet:
            is_gone = all(world.learners[i] == DEAD or self.key(world, i) != member.key for i in range(len(NAMES)))
            if is_gone:
                yield "silence at the syncer", self.syncer(world, net, "timer", "silence", member.key.name)
        if syncer.machine.phase is SyncerPhase.RUNNING:
            for index, part in enumerate(world.learners):
                if part != DEAD and not world.net[CAST + index]:
                    yield "beat", self.beat(world, index)

    def bytes_of(self, world: World, key: MemberKey, message: Any) -> int | None:
        """What a body that is being fetched holds; None: there is nobody any more who has it."""
        index = NAMES.index(key.name)
        if world.learners[index] == DEAD or self.key(world, index) != key:
            return None
        if not isinstance(message, Contribution):
            return 0
        ids: int | None = self.parts[world.learners[index]].body.encoded.get((0, message.seq))
        return ids

    def beat(self, world: World, index: int) -> World:
        """A beat of this moment reaches one learner; it takes no time on its way."""
        made, sent = self.act(world.syncer, "timer", "beat")
        assert made == world.syncer, "a beat has changed the syncer"
        for number in sent:
            item = self.item(("down", self.key(world, index), *self.items[number][2:]))
            world = self.deliver(world, item, world.net)
        return world

    def crashes(self, world: World) -> Iterator[Way]:
        """Deaths and returns. By symmetry the learner that dies is the first: before it they are alike.

        What is in flight to or from the dead is lost with them, or arrives all the same.
        """
        spent, bounds = world.spent, self.bounds
        if world.learners[0] == DEAD:
            yield "learner returns", self.restart_learner(world)
        elif spent.learner_crashes < bounds.learner_crashes:
            yield "learner killed", self.kill_learner(world, True)
            yield "learner killed with its words", self.kill_learner(world, False)
        if not world.up:
            yield "syncer returns", self.restart_syncer(world)
        elif spent.syncer_crashes < bounds.syncer_crashes:
            yield "syncer killed", self.kill_syncer(world)
            yield "syncer killed with all in flight", self.kill_syncer(world._replace(net=QUIET))

    def kill_learner(self, world: World, heard: bool) -> World:
        """What it said arrives later, from beyond; its hello does not, nor does what waits for a syncer to come."""
        net = list(world.net)
        late = self.bounds.late_hellos
        said = [n for n in net[UP] if late or not isinstance(self.items[n][2], Hello)] if heard and world.up else []
        net[GHOST] += tuple(said)
        net[UP] = net[DOWN] = net[CAST] = ()
        spent = world.spent._replace(learner_crashes=world.spent.learner_crashes + 1)
        return world._replace(learners=(DEAD, *world.learners[1:]), net=tuple(net), spent=spent)

    def restart_learner(self, world: World) -> World:
        incarnation = world.spent.learner_crashes + 1
        return self.join(world, 0, LearnerPart.start(NAMES[0], incarnation, self.bounds.min_quorum))

    def kill_syncer(self, world: World) -> World:
        disk = self.parts[world.syncer].body.disk
        spent = world.spent._replace(syncer_crashes=world.spent.syncer_crashes + 1)
        return world._replace(syncer=self.number(Down(disk)), up=False, spent=spent)

    def restart_syncer(self, world: World) -> World:
        disk: SyncerDisk = self.parts[world.syncer].disk
        part = SyncerPart.start(disk.copy(), self.bounds.min_quorum, world.spent.syncer_crashes + 2)
        return world._replace(syncer=self.number(part), up=True)
