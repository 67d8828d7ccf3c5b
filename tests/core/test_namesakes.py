"""Two processes of one name: the newer wins, and a hello that only comes late replaces nobody."""

import pytest

from zdiloco.core import reception
from zdiloco.core.joining import HELLO_FIRST_S, LearnerPhase
from zdiloco.core.machine import LeaveRequested, Received, Send
from zdiloco.core.messages import Hello, Unwelcome, Welcome
from zdiloco.core.params import SyncParams
from zdiloco.core.reception import AGAIN_AFTER_S
from zdiloco.sim.actors import Actor
from zdiloco.sim.links import Link
from zdiloco.sim.world import World
from zdiloco.units import MemberKey

LATENCY_S = 0.1
A_MOMENT_S = 0.01
GHOST = MemberKey("l0", 1)


def fleet(count: int = 2) -> tuple[World, list[Actor]]:
    """Learners l0, l1, ... that have trained for five seconds."""
    world = World(SyncParams(), 2)
    actors = [join(world, f"l{index}") for index in range(count)]
    world.run(5.0)
    return world, actors


def join(world: World, name: str) -> Actor:
    return world.join(name, link=Link(LATENCY_S))


def hail(world: World, key: MemberKey) -> list[str]:
    """A hello of this process is handled now; returns the kinds of answer, refusals by their words."""
    assert world.site
    hello = Hello(name=key.name, incarnation=key.incarnation, run_id="run", layout_digest="layout")
    actions = world.site.machine.handle(Received(key=key, message=hello), world.now)
    said = [action.message for action in actions if isinstance(action, Send) and action.key == key]
    return [word.reason if isinstance(word, Unwelcome) else type(word).__name__ for word in said]


def test_the_hello_of_a_dead_predecessor_replaces_nobody() -> None:
    """Both sides have crashed; what the dead one had said last is handled after its successor's hello."""
    world, (old, _) = fleet()
    assert world.site
    world.kill_syncer(world.site)
    world.kill(old)
    world.start_syncer(world.sites[0].disk)
    new = join(world, "l0")
    world.run(world.now + 20.0)
    assert new.machine.phase is LearnerPhase.TRAINING
    assert hail(world, old.key) == ["name"]
    world.run(world.now + 10.0)
    assert new.alive
    assert new.machine.phase is LearnerPhase.TRAINING
    assert not world.stops
    assert world.site.machine.fleet.find(new.key)
    assert old.key not in world.site.machine.fleet.replaced
    world.audit()


def test_hellos_that_have_waited_together_are_one() -> None:
    """A syncer that was stopped finds all that the dead one had said."""
    world, (one, _) = fleet()
    assert [hail(world, GHOST) for _ in range(5)] == [["name"]] * 5
    world.run(world.now + AGAIN_AFTER_S - A_MOMENT_S)
    assert hail(world, GHOST) == ["name"]
    world.run(world.now + 5.0)
    assert one.alive


def test_whoever_says_it_again_takes_the_place_and_the_older_one_is_told() -> None:
    world, (one, _) = fleet()
    assert hail(world, GHOST) == ["name"]
    world.run(world.now + AGAIN_AFTER_S + A_MOMENT_S)
    assert one.alive
    assert hail(world, GHOST) == [Welcome.__name__]
    assert one.key in world.site.machine.fleet.replaced
    assert hail(world, one.key) == ["replaced"], "for good"


def test_a_killed_learner_comes_back_at_its_second_hello() -> None:
    world, (one, _) = fleet()
    world.kill(one)
    back = join(world, "l0")
    world.run(world.now + HELLO_FIRST_S)
    assert back.machine.phase is LearnerPhase.HAILING
    world.run(world.now + 2 * LATENCY_S + A_MOMENT_S)
    assert back.machine.phase is not LearnerPhase.HAILING
    world.run(world.now + 1.0)
    assert back.machine.phase is LearnerPhase.TRAINING


@pytest.mark.parametrize("how", ["gone", "finished", "another name"])
def test_where_nobody_lives_under_the_name_the_first_hello_will_do(how: str) -> None:
    world, (one, _) = fleet()
    key = MemberKey("l9", 1) if how == "another name" else GHOST
    if how == "gone":
        world.kill(one)
        world.run(world.now + world.params.gone_after_s + 1.0)
    elif how == "finished":
        world.tell(one, LeaveRequested(reason="over"))
        world.run(world.now + 5.0)
    assert hail(world, key) == [Welcome.__name__]


def test_of_many_that_want_one_name_one_remains() -> None:
    world, (one, other) = fleet()
    newcomers = []
    for _ in range(3):
        newcomers.append(join(world, "l0"))
        world.run(world.now + 0.17)
    world.run(world.now + 10.0)
    alive = [actor for actor in (one, *newcomers) if actor.alive]
    assert len(alive) == 1
    assert alive[0] is not one
    assert alive[0].machine.phase is LearnerPhase.TRAINING
    assert other.alive


def test_those_that_wait_for_a_name_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "MOST_CHALLENGED", 3)
    world, _ = fleet()
    for number in range(1, 9):
        hail(world, MemberKey("l0", number))
    assert [key.incarnation for key in world.site.machine.reception.challenged] == [6, 7, 8]
    world.run(world.now + 1.0)
    assert hail(world, MemberKey("l0", 8)) == [Welcome.__name__]
    assert [key.incarnation for key in world.site.machine.reception.challenged] == [6, 7]
