"""Who only watches, in virtual time: it holds what is published and has no say in anything."""

from typing import Any

import pytest

from zdiloco.core.machine import Boundary, LeaveRequested
from zdiloco.core.membership import MemberState
from zdiloco.core.messages import Goodbye, Heartbeat, Hello, Pull, Receipt, Update
from zdiloco.core.params import SyncParams
from zdiloco.core.status import status
from zdiloco.core.syncer import SyncerMachine
from zdiloco.sim.actors import Actor, Site
from zdiloco.sim.world import World
from zdiloco.units import NO_EPOCH, MemberKey


def fleet(num_fragments: int = 3, **params: Any) -> tuple[World, Actor, list[Any]]:
    """One that watches, there before everybody else, and all that it will say."""
    syncer = {name: params.pop(name) for name in ("target_tokens",) if name in params}
    world = World(SyncParams(**params), num_fragments, **syncer)
    said: list[Any] = []
    send = world.up

    def up(actor: Actor, message: Any) -> None:
        if actor.machine.watching:
            said.append(message)
        send(actor, message)

    world.up = up
    watcher = world.join("eval", watching=True)

    def look() -> None:
        world.tell(watcher, Boundary())
        world.at(0.5, look)

    look()
    return world, watcher, said


def syncer_of(world: World) -> SyncerMachine:
    assert world.site is not None
    return world.site.machine


def assert_follows(world: World, watcher: Actor) -> None:
    """It holds a published state of every fragment, of this epoch and at most two versions old."""
    assert world.site is not None
    for fragment, state in enumerate(world.site.body.states):
        seen = watcher.machine.duties[fragment].progress.seen
        assert seen.epoch == state.stamp.epoch
        assert state.stamp.version - 2 <= seen.version <= state.stamp.version
        assert watcher.body.values[fragment] == world.history[fragment, seen].value


def assert_has_no_say(said: list[Any]) -> None:
    """Of all that members may say it says hello, lives, pulls, receives and leaves; it tells no epoch and no states."""
    assert {type(message) for message in said} <= {Hello, Heartbeat, Pull, Receipt, Goodbye}
    for message in said:
        if isinstance(message, Hello | Heartbeat):
            assert message.epoch == NO_EPOCH
        if isinstance(message, Hello):
            assert (message.watching, message.stamps) == (True, ())


def test_it_follows_and_is_not_counted() -> None:
    """C-45: who only measures is no trainer. K = 2 is not reached by one learner and one that watches."""
    world, watcher, said = fleet(min_quorum=2)
    world.run(5.0)
    world.join("l0")
    world.run(20.0)
    syncer = syncer_of(world)
    assert (syncer.rounds, world.calls) == (0, [])
    found = status(syncer, world.now)
    assert (found["live"], found["quorum"]) == (1, 2)
    assert {each["name"]: each["state"] for each in found["learners"]} == {"eval": "watching", "l0": "live"}
    world.join("l1")
    world.run(60.0)
    assert syncer.rounds > 20
    assert_follows(world, watcher)
    assert_has_no_say(said)
    assert sorted(key.name for key in syncer.fleet.waited_for()) == ["l0", "l1"]
    assert all(entry.key.name != "eval" for state in world.history.values() for entry in state.map)


def test_it_gives_no_initial_values_and_waits_until_somebody_does() -> None:
    world, watcher, said = fleet()
    world.run(30.0)
    assert syncer_of(world).epoch == NO_EPOCH
    hellos = [message for message in said if isinstance(message, Hello)]
    assert 6 <= len(hellos) <= 12  # less and less often: every 5 s in the end
    world.join("l0")
    world.run(45.0)
    assert_follows(world, watcher)
    assert_has_no_say(said)


@pytest.mark.slow
def test_it_lives_through_lost_updates_and_a_syncer_that_comes_back() -> None:
    world, watcher, said = fleet(num_fragments=2)
    world.join("l0")
    deaf = [True]
    world.run(10.0)
    world.lose = lambda road, message: deaf[0] and road == "update body" and world.now % 3 < 2
    world.run(30.0)
    deaf[0] = False
    world.run(40.0)
    assert watcher.machine.counts["update lost"] > 0
    assert_follows(world, watcher)
    first = world.site
    assert first is not None
    world.kill_syncer(first)
    world.run(60.0)
    world.start_syncer(first.disk)
    world.run(90.0)
    assert syncer_of(world).epoch.counter == first.machine.epoch.counter + 1
    assert_follows(world, watcher)
    assert_has_no_say(said)
    assert world.returned  # the learner was asked for what it held; the one that watches was not
    assert {key.name for key, _, _ in world.returned} == {"l0"}


def test_it_follows_a_syncer_that_goes_on_from_an_older_copy_and_never_fences_it() -> None:
    """All learners are dead, and the run starts again from a copy made before its last epochs."""
    world, watcher, said = fleet(num_fragments=2)
    learner = world.join("l0")
    world.run(5.0)
    copied = world.sites[0].disk.copy()
    for _ in range(2):
        assert world.site is not None
        disk = world.site.disk
        world.kill_syncer(world.site)
        world.run(world.now + 5.0)
        world.start_syncer(disk)
        world.run(world.now + 20.0)
    newest = watcher.machine.epoch
    assert world.site is not None
    world.kill(learner)
    world.kill_syncer(world.site)
    world.run(world.now + 5.0)
    site = world.start_syncer(copied)
    world.join("l1")
    world.run(world.now + 60.0)
    assert site.alive
    assert site.machine.epoch < newest
    assert site.machine.rounds > 10
    assert_follows(world, watcher)
    assert_has_no_say(said)


def test_who_watched_and_left_or_fell_silent_leaves_no_trace() -> None:
    world, watcher, _ = fleet()
    silent = world.join("eval-2", watching=True)
    world.join("l0")
    world.run(10.0)
    syncer = syncer_of(world)
    world.tell(watcher, LeaveRequested(reason="seen enough"))
    world.kill(silent)
    world.run(30.0)
    assert [(member.key.name, member.state) for member in syncer.fleet] == [("l0", MemberState.LIVE)]
    assert any("eval leaves (seen enough)" in note for note in world.notes)
    assert any("eval-2 is gone" in note for note in world.notes)


def test_it_holds_the_last_values_before_it_leaves() -> None:
    """Every broadcast of an update near the end is lost: it fetches what the farewell names, and only that."""
    world, watcher, said = fleet(target_tokens=4000)
    world.join("l0")
    syncer = syncer_of(world)
    world.run_until(lambda: syncer.progress > 0.8, 60.0)
    world.lose = lambda road, message: isinstance(message, Update) and not message.full
    world.run_until(lambda: watcher.machine.farewell is not None, 60.0)
    said.clear()
    last = watcher.machine.farewell.versions
    seen = [duty.progress.seen.version for duty in watcher.machine.duties]
    assert any(mine < theirs for mine, theirs in zip(seen, last, strict=True))
    world.run_until(lambda: not watcher.alive, 10.0)
    assert tuple(duty.progress.seen.version for duty in watcher.machine.duties) == last
    assert watcher.body.values == [state.value for state in world.sites[0].body.states]
    assert sum(isinstance(message, Pull) for message in said) <= len(last)
    world.run_until(lambda: not world.sites[0].alive, 2.0)
    assert_has_no_say(said)


@pytest.mark.parametrize(("heard", "most_s"), [(True, 8.0 + 1.1), (False, 3.0 + 1.1)])
def test_one_that_never_gets_the_last_values_holds_the_end_up_no_longer_than_it_may(heard: bool, most_s: float) -> None:
    """While it is heard `drain_s`, else `suspect_after_s`, and a beat."""
    world, watcher, _ = fleet(target_tokens=4000, drain_s=8.0)
    world.join("l0")
    syncer = syncer_of(world)
    world.run_until(lambda: syncer.progress > 0.8, 60.0)
    send_down = world.send_down

    def deaf(site: Site, key: MemberKey, word: Any, nbytes: int, road: str) -> None:
        if key != watcher.key or not isinstance(word, Update):
            send_down(site, key, word, nbytes, road)

    world.send_down = deaf
    if not heard:
        world.kill(watcher)
    world.run_until(lambda: syncer.farewell is not None, 60.0)
    began = world.now
    world.run_until(lambda: not world.sites[0].alive, 30.0)
    assert world.now - began <= most_s
    assert (world.now - began > 7.5) is heard
    if heard:
        world.run_until(lambda: not watcher.alive, 2.0)


def test_it_hears_of_the_end() -> None:
    world, watcher, said = fleet(target_tokens=2000)
    world.join("l0")
    world.run_until(lambda: not watcher.alive, 60.0)
    world.run(world.now + 1.0)
    assert watcher.machine.farewell is not None
    assert watcher.machine.global_progress >= 1.0
    assert "eval: the target is reached" in world.stops
    assert any(stop.startswith("syncer: the target is reached") for stop in world.stops)
    assert_has_no_say(said)


def test_another_model_is_told_so() -> None:
    world, watcher, _ = fleet()
    watcher.machine.layout_digest = "another"
    world.join("l0")
    world.run(20.0)
    assert not watcher.alive
    assert any(stop.startswith("eval: your model's layout is another") for stop in world.stops)
