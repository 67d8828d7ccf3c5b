"""Sixteen join at once where the syncer's uplink takes 4 s for a whole model, with the production's transfers and pulls
in virtual time. Sizes are scaled: 160,000 bytes of values, credits of 4096 bytes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from zdiloco.core.finishing import NO_LAST_VALUES
from zdiloco.core.params import SyncParams
from zdiloco.sim import chunks, world
from zdiloco.sim.actors import Actor
from zdiloco.sim.learner_side import TOKENS
from zdiloco.sim.links import Link, Trunk
from zdiloco.sim.scenario import RelaySpec
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World
from zdiloco.wire.pulls import Pulls

pytestmark = pytest.mark.slow
FRAGMENTS, STEP_S, MODEL_S, JOINERS, SLOW = 8, 2.0, 4.0, 16, 3


def crowd(fleet: World, uplink: Trunk, many: int = JOINERS) -> list[Actor]:
    """Newcomers behind the same uplink; one of them takes a hundredth of what that gives."""
    slow = {SLOW: uplink.down_bytes_s / 100}
    return [
        fleet.join(f"j{n:02}", STEP_S, Link(latency_s=0.02, trunk=uplink, down_bytes_s=slow.get(n, 2e7)))
        for n in range(many)
    ]


@pytest.fixture
def fleet_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[World, Trunk]]:
    """Makes a world of four that train, and the uplink of its syncer, which takes `MODEL_S` for all values."""

    def make(fragments: int = FRAGMENTS, **syncer: Any) -> tuple[World, Trunk]:
        monkeypatch.setattr(chunks, "CHUNK_BYTES", 1024)
        monkeypatch.setattr(world, "CHUNKED", replace(chunks.CHUNKED, window_bytes=4096))
        uplink = Trunk("uplink", down_bytes_s=fragments * NBYTES / MODEL_S)
        fleet = World(SyncParams(), fragments, exact=False, chunked=True, delta_codec="4bit", **syncer)
        assert fleet.site is not None
        fleet.site.pulls = Pulls(0)  # these states are no small ones
        for number in range(4):
            fleet.join(f"t{number}", STEP_S, Link(latency_s=0.02, trunk=uplink))
        return fleet, uplink

    return make


@pytest.mark.timeout(180)
def test_a_crowd_of_joiners_costs_no_rounds_and_the_first_does_not_wait_for_the_last(
    fleet_of: Callable[..., tuple[World, Trunk]], say: Callable[[str], None]
) -> None:
    fleet, uplink = fleet_of()
    assert fleet.site is not None
    fleet.run(60.0)
    rounds = fleet.site.machine.rounds
    fleet.run(160.0)
    before = (fleet.site.machine.rounds - rounds) / 100.0
    rounds, began = fleet.site.machine.rounds, fleet.now
    joiners = crowd(fleet, uplink)
    joined: list[float] = []
    for joiner in joiners[:SLOW] + joiners[SLOW + 1 :]:
        fleet.run_until(lambda who=joiner: who.machine.step > 0, JOINERS * 2 * MODEL_S)
        joined.append(fleet.now - began)
    during = (fleet.site.machine.rounds - rounds) / (fleet.now - began)
    say(f"16 join at once, 4 s a model: {during / before - 1:+.1%} rounds; the first is in after {joined[0]:.0f} s, "
        f"the last after {joined[-1]:.0f} s; the fourth takes 1/100 of the speed")  # fmt: skip
    grain = 1.0 / (fleet.now - began)  # one round more or less
    assert during > 0.9 * before - grain
    assert joined[0] < 5 * MODEL_S
    assert joined[0] < joined[-1] / 3
    assert fleet.site.pulls.waiting == 0
    fleet.audit()


def test_a_syncer_that_starts_again_serves_the_crowd_that_waited(fleet_of: Callable[..., tuple[World, Trunk]]) -> None:
    fleet, uplink = fleet_of(2)
    fleet.run(60.0)
    old, few = fleet.site, crowd(fleet, uplink, SLOW)
    assert old is not None
    fleet.run(fleet.now + MODEL_S)
    assert old.pulls.waiting > 0, "else nothing was tried"
    fleet.kill_syncer(old)
    fleet.run(fleet.now + 10.0)
    fleet.start_syncer(old.disk).pulls = Pulls(0)
    fleet.run_until(lambda: all(actor.machine.step > 0 for actor in few), 10 * JOINERS * MODEL_S)
    fleet.audit()


def test_behind_a_relay_a_crowd_is_one_joiner(fleet_of: Callable[..., tuple[World, Trunk]]) -> None:
    """What it pulls crosses the far link once, and who joins beside the relay does not wait for its members."""
    fleet, uplink = fleet_of(2)
    fleet.run(60.0)
    relay = fleet.relays.start(RelaySpec(name="east"), Link(latency_s=0.02, trunk=uplink))
    fleet.run(fleet.now + 5.0)
    before, members = relay.link.down.nbytes, []
    for number in range(8):
        link = Link()
        link.behind = "east"
        members.append(fleet.join(f"e{number}", STEP_S, link))
    beside = fleet.join("beside", STEP_S, Link(latency_s=0.02, trunk=uplink))
    fleet.run_until(lambda: beside.machine.step > 0, 4 * MODEL_S)
    fleet.run_until(lambda: all(member.machine.step > 0 for member in members), 4 * MODEL_S)
    assert relay.link.down.nbytes - before < 4 * 2 * NBYTES
    fleet.audit()


def test_the_last_values_wait_for_nobodys_turn(
    fleet_of: Callable[..., tuple[World, Trunk]], say: Callable[[str], None]
) -> None:
    """All are told at once that the run is over, and share the uplink: nobody is late for the sake of an order."""
    lasted, waited = dict[bool, float](), dict[bool, int]()
    for paced in (True, False):
        fleet, uplink = fleet_of(2, target_tokens=4 * 40 * TOKENS)
        site = fleet.site
        assert site is not None
        if not paced:
            site.pulls.open()
        fleet.run(70.0)
        hasty = [joiner for number, joiner in enumerate(crowd(fleet, uplink, 12)) if number != SLOW]
        fleet.run_until(lambda site=site: site.machine.farewell is not None, 300.0)
        waited[paced], over_at = site.pulls.waiting, fleet.now
        fleet.run_until(lambda those=hasty: not any(joiner.alive for joiner in those), 600.0)
        lasted[paced] = fleet.now - over_at
        assert not any(NO_LAST_VALUES in stop for stop in fleet.stops)
    say(f"{waited} waited when the run was over; the last one had the last values after {lasted}")
    assert waited[True] > waited[False] == 0, "else nothing was tried"
    assert lasted[True] < 1.2 * lasted[False]
