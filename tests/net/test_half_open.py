"""Half-open links: packets of one connection vanish one way, and neither end is told; whoever waits in vain redials."""

from collections.abc import Callable

import pytest

from tests.net.test_losses import BULK, BULK_CAST, CONTROL_CAST, Far
from tests.node.conftest import Run
from zdiloco.chaos.proxy import Proxy

pytestmark = [pytest.mark.net, pytest.mark.slow]
CONTROL = 0
NET = {"stall_s": 0.2, "give_up_s": 6.0}
WAYS = [((CONTROL, CONTROL_CAST), True), ((CONTROL, CONTROL_CAST), False), ((BULK,), True), ((BULK, BULK_CAST), False)]


@pytest.mark.parametrize(("roads", "up"), WAYS)
def test_roads_that_are_open_one_way_are_dialled_anew(
    roads: tuple[int, ...], up: bool, run_of: Callable[..., Run], link_to: Callable[[int], tuple[Proxy, int]]
) -> None:
    """A-17: afterwards work of the far one is merged, and it adopts, as before. On the bulk broadcast nothing goes up
    that would be missed, and nothing comes down the bulk road before something is missed on the other."""
    there = Far(run_of(net=NET), link_to, **NET)
    before = there.proxy.dialled(roads[0])
    for road in roads:
        there.proxy.swallow(road, up=up)
    there.run.until(lambda: there.proxy.dialled(roads[0]) > before, "the first road is dialled anew")
    there.merged_again("far")
    seen = [duty.progress.seen.version for duty in there.duties()]
    there.run.until(
        lambda: all(d.progress.seen.version > v + 2 for d, v in zip(there.duties(), seen, strict=True)), "adoptions"
    )
    there.end()
