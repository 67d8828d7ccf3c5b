"""Relays in virtual time: what crosses a far link, who answers, and what is left of one that dies, stops or is full."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from zdiloco.agenda import Broken
from zdiloco.core import downlink as downlinks
from zdiloco.core.params import SyncParams
from zdiloco.sim.actors import Actor
from zdiloco.sim.audit import Audit
from zdiloco.sim.links import Link
from zdiloco.sim.relay_places import Relay
from zdiloco.sim.scenario import RelaySpec
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World

STEP_S = 0.1
PARAMS = SyncParams(sync_period=10, min_quorum=2)
FAR_S = 0.05


def behind(name: str, latency_s: float = 0.001, **kinds: float) -> Link:
    """A link that leads to the relay of this region."""
    link = Link(latency_s, **kinds)
    link.behind = name
    return link


def world_of(seed: int = 0, fragments: int = 2, **kinds: int) -> World:
    """A world in which every rule is looked at after every event."""
    world = World(PARAMS, fragments, seed, chunked=True, **kinds)
    Audit(world)
    return world


def relay_in(world: World, name: str = "east", **spec: int) -> Relay:
    return world.relays.start(RelaySpec(name=name, **spec), Link(FAR_S))


def merged(world: World, actor: Actor) -> int:
    assert world.site is not None
    return sum(entry.seq for state in world.site.body.states for entry in state.map if entry.key == actor.key)


def far_bytes(regions: int, each: int, *, relays: bool) -> tuple[int, int]:
    """Bytes that crossed to and from all regions, each with so many learners, in half a minute of training."""
    world = world_of()
    world.join("near", STEP_S)
    far = []
    for region in range(regions):
        name = f"r{region}"
        far += [relay_in(world, name).link] if relays else []
        for number in range(each):
            link = behind(name) if relays else Link(FAR_S)
            world.join(f"{name}l{number}", STEP_S, link)
            far += [] if relays else [link]
    world.run(30.0)
    assert min(merged(world, actor) for actor in world.actors.values()) > 2 * 20
    return sum(link.down.nbytes for link in far), sum(link.up.nbytes for link in far)


@pytest.mark.slow
def test_what_is_published_crosses_once_for_each_region(say: Callable[[str], None]) -> None:
    """Four regions of two: as measured on interfaces of real namespaces, half of the bytes towards each region."""
    (down, up), (flat_down, flat_up) = (far_bytes(4, 2, relays=relays) for relays in (True, False))
    say(f"4 regions of 2 learners, bytes with relays / without: towards the regions {down / flat_down:.3f}, "
        f"from them {up / flat_up:.3f}")  # fmt: skip
    assert down / flat_down == pytest.approx(0.5, abs=0.03)
    assert up / flat_up == pytest.approx(1.0, abs=0.05), "what goes up crosses once for each learner"


def test_what_learners_lack_of_a_broadcast_comes_from_the_relay() -> None:
    world = world_of()
    world.join("near", STEP_S)
    relay = relay_in(world)
    actors = [world.join(name, STEP_S, behind("east")) for name in ("a", "b")]
    world.run(5.0)
    asked = relay.cache.inbox.counters.asked_again
    for actor in actors:
        actor.link.down.loss = 0.2
    world.run(25.0)
    assert sum(actor.depot.inbox.counters.asked_again for actor in actors) > 10
    assert relay.cache.counters.handed_out > 10
    assert relay.cache.inbox.counters.asked_again == asked, "the relay lacks nothing"
    assert world.sites[0].depot.outbox.counters.resent_bytes == 0, "and nobody asks the syncer"
    assert all(merged(world, actor) > 10 for actor in actors)


def test_who_joins_gets_its_values_from_the_relay_if_they_are_there() -> None:
    """Of several that come at once, each state crosses the far link once."""
    world = world_of(fragments=8)
    world.join("near", STEP_S)
    relay = relay_in(world)
    world.run(5.0)
    crossed = relay.link.down.nbytes
    newcomers = [world.join(f"e{number}", STEP_S, behind("east")) for number in range(4)]
    world.run_until(lambda: all(actor.training for actor in newcomers), 10.0)
    joined_bytes, whole = relay.link.down.nbytes - crossed, 8 * NBYTES
    assert joined_bytes < 2.2 * whole, "whole values once, and what was published meanwhile"
    assert sum(actor.link.down.nbytes for actor in newcomers) > 4 * whole


@pytest.mark.slow
def test_each_far_link_of_stacked_relays_is_crossed_once() -> None:
    world = world_of()
    world.join("near", STEP_S)
    land = relay_in(world, "land")
    city = world.relays.start(RelaySpec(name="city", region="land"), behind("land", 0.02))
    actors = [world.join(name, STEP_S, behind("city")) for name in ("a", "b", "c")]
    world.run(20.0)
    assert all(merged(world, actor) > 20 for actor in actors)
    heard = actors[0].link.down.nbytes
    assert heard < land.link.down.nbytes < 1.3 * heard
    assert heard < city.link.down.nbytes < 1.3 * heard
    assert len(land.lanes) >= 3
    world.audit()


def test_what_a_region_asks_for_instead_of_the_broadcast_crosses_its_far_link_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One update would hold the far link: nobody there takes the broadcast, and both learners get every update."""
    monkeypatch.setattr(downlinks, "LEAST_BURST", 0)
    monkeypatch.setattr(downlinks, "TELLING_BYTES", 0)
    world = world_of()
    world.join("near", STEP_S)
    relay = world.relays.start(RelaySpec(name="east"), Link(FAR_S, down_bytes_s=6 * NBYTES))
    actors = [world.join(name, STEP_S, behind("east")) for name in ("l0", "l1")]
    world.run(15.0)
    assert all(actor.machine.inflow.downlink.asks for actor in actors)
    assert not relay.taken
    assert world.site is not None

    def published() -> int:
        assert world.site is not None
        return sum(state.stamp.version for state in world.site.body.states)

    before, crossed = published(), relay.link.down.nbytes
    pulled = [actor.machine.counts["pulled"] for actor in actors]
    world.run(45.0)
    assert published() > before + 40
    assert [actor.machine.counts["pulled"] for actor in actors] == pulled
    assert relay.link.down.nbytes - crossed < 1.3 * (published() - before) * NBYTES


@pytest.mark.slow
def test_a_relay_that_dies_takes_nothing_with_it_but_what_was_on_its_way() -> None:
    """Killed at every tenth of a second of a period, in the middle of whatever is going: nobody loses a step."""
    for tenth in range(10):
        world = world_of(seed=tenth)
        world.join("near", STEP_S)
        relay = relay_in(world)
        actors = [world.join(name, STEP_S, behind("east", up_bytes_s=1e5)) for name in ("a", "b")]
        world.run(5.0 + tenth / 10)
        steps = [actor.steps for actor in actors]
        world.relays.kill(relay)
        world.run(world.now + 2.0)
        made = [actor.steps - count for actor, count in zip(actors, steps, strict=True)]
        assert made == [pytest.approx(20, abs=1)] * 2
        before = [merged(world, actor) for actor in actors]
        again = world.relays.start(relay.spec, relay.link)
        assert (len(again.cache), again.lanes, again.key != relay.key) == (0, {}, True)
        world.run(world.now + 8.0)
        assert all(merged(world, actor) > seq for actor, seq in zip(actors, before, strict=True))
        assert {actor.machine.phase for actor in actors} == {"training"}
        world.audit()


@pytest.mark.slow
def test_a_region_that_is_cut_off_holds_nobody_up_and_is_merged_whole(say: Callable[[str], None]) -> None:
    """Sixty seconds: the others keep their pace, those behind the relay make every step, and all of it is merged."""
    world = world_of()
    near = [world.join(name, STEP_S) for name in ("n0", "n1")]
    relay = relay_in(world)
    relay.link.trunk = world.trunk("east")
    far = [world.join(name, STEP_S, behind("east")) for name in ("f0", "f1")]
    world.run(20.0)
    before = world.gaps(STEP_S, after_s=5.0)
    world.calls.clear()
    relay.link.trunk.cut = True
    steps = [actor.steps for actor in far]
    world.run(80.0)
    during = world.gaps(STEP_S, after_s=20.0)
    relay.link.trunk.cut = False
    trained = [actor.steps - count for actor, count in zip(far, steps, strict=True)]
    world.run(100.0)
    say(f"a region with a relay cut off for 60 s: rounds of the others every {sum(during) / len(during):.2f} steps, "
        f"{sum(before) / len(before):.2f} before; those behind it made {trained} steps meanwhile")  # fmt: skip
    assert sum(during) / len(during) < 1.05 * sum(before) / len(before)
    assert trained == [pytest.approx(600, abs=2)] * 2
    old = [(actor, [work for work, at in actor.work_at.items() if at < 80.0]) for actor in (*near, *far)]
    for actor, works in old:
        assert all((fragment, work) in world.merged_at for work in works for fragment in range(2)), actor.key.name


@pytest.mark.slow
def test_one_learner_too_many_is_told_so_and_comes_in_when_another_has_gone() -> None:
    world = world_of()
    world.join("near", STEP_S)
    relay = relay_in(world, most_learners=2, forget_after_s=10)
    first = [world.join(name, STEP_S, behind("east")) for name in ("a", "b")]
    world.run(3.0)
    late = world.join("late", STEP_S, behind("east"))
    world.run(13.0)
    assert not late.training
    assert {key.name for key in relay.lanes} == {"a", "b"}
    world.kill(first[0])
    world.run(40.0)
    assert late.training
    assert merged(world, late) > 10


@pytest.mark.slow
def test_everybody_behind_a_relay_follows_the_same_syncer() -> None:
    world = world_of()
    near = world.join("near", STEP_S)
    relay = relay_in(world)
    actors = [world.join(name, STEP_S, behind("east")) for name in ("a", "b")]
    world.run(5.0)
    old = world.site
    new = world.take_over([actors[0]])
    assert [actor.site for actor in (near, *actors)] == [old, new, new]
    assert relay.site is new
    world.kill_syncer(new)
    assert world.site is None
    later = world.join("later", STEP_S, behind("east"))
    again = world.start_syncer(new.disk)
    assert all(actor.site is again for actor in (*actors, later))
    world.relays.follow(near, again)
    world.run(30.0)
    assert all(merged(world, actor) > 10 for actor in (near, *actors, later))


@pytest.mark.parametrize("bound", [{"cache_bytes": 2**10}, {"most_learners": 1}])
def test_a_relay_that_keeps_more_than_it_may_is_found(bound: dict[str, int]) -> None:
    world = world_of()
    relay = relay_in(world)
    for name in ("a", "b"):
        world.join(name, STEP_S, behind("east"))
    world.run(2.0)
    relay.spec = replace(relay.spec, **bound)
    with pytest.raises(Broken, match="memory: relay east"):
        world.run(3.0)


@pytest.mark.slow
def test_a_far_link_too_slow_for_the_broadcast_is_left_and_taken_again(
    say: Callable[[str], None],
) -> None:
    """Learners behind it leave the broadcast, the relay with the last of them; when the link is faster all return."""
    world = World(SyncParams(sync_period=8), 4, chunked=True)
    for name in ("n0", "n1"):
        world.join(name, STEP_S)
    relay = relay_in(world)
    far = [world.join(name, STEP_S, behind("east")) for name in ("f0", "f1")]
    world.run_until(lambda: all(actor.listening for actor in far) and relay.taken, 60.0)
    relay.link.down.bytes_s, slow_at = 3e4, world.now
    world.run_until(lambda: not relay.taken, 60.0)
    crossed, heard, at = relay.link.down.nbytes, sum(actor.link.down.nbytes for actor in far), world.now
    world.run(world.now + 8.0)
    assert not relay.taken, "it rests for ten seconds at least"
    pulls = (sum(actor.link.down.nbytes for actor in far) - heard) / (relay.link.down.nbytes - crossed)
    say(f"a far link too slow for the broadcast: left {at - slow_at:.0f} s after it became so; {pulls:.2f} times what "
        "crossed then came to two learners")  # fmt: skip
    assert pulls > 1.0
    assert max(world.gaps(STEP_S, after_s=slow_at)) < 2 * 8, "the others keep their pace"
    relay.link.down.bytes_s = 2e6
    world.run_until(lambda: all(actor.listening for actor in far), 200.0)
    world.run(world.now + 10.0)
    assert relay.taken
    assert min(merged(world, actor) for actor in far) > 10
