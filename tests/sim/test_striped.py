"""Stripes in a virtual world: the production's choice of connections, among losses and under the protocol."""

import pytest

from zdiloco.core.params import SyncParams
from zdiloco.sim.audit import Audit
from zdiloco.sim.links import SWALLOWS, Link
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World
from zdiloco.wire.stripes import Stripes


@pytest.mark.parametrize("stripes", [1, 4])
def test_chunks_that_overtake_each_other_are_no_losses(stripes: int) -> None:
    world = World(SyncParams(sync_period=10), 2, chunked=True)
    link = Link(0.02, 0.05, up_bytes_s=2e5)
    link.up.stripes = Stripes(stripes)
    actor = world.join("a", 0.1, link)
    world.run(15.0)
    assert actor.machine.counts["merged"] > 20
    assert world.sites[0].depot.inbox.counters.asked_again == 0


def test_a_stripe_that_dies_holds_up_what_is_in_it_and_is_passed_over_then() -> None:
    world = World(SyncParams(sync_period=10), 2, chunked=True)
    Audit(world)
    link = Link(0.02, up_bytes_s=2e5)
    link.up.stripes = Stripes(4)
    actor = world.join("a", 0.1, link)
    world.run(6.0)
    before, sent = actor.machine.counts["merged"], link.up.nbytes
    link.up.dead = 2
    world.run(26.0)
    merged = actor.machine.counts["merged"] - before
    assert merged > 0.6 * 2 * 20, "two fragments, a period of a second"
    assert 0 < link.up.swallowed <= SWALLOWS
    assert link.up.nbytes - sent < 1.4 * merged * NBYTES
    link.up.revive()
    world.run(45.0)
    carried = [stripe for stripe, at in link.up.bodies_at.items() if at > 35.0]
    assert sorted(carried) == [0, 1, 2, 3], "and it carries again"
