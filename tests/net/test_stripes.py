"""A learner with several bulk stripes over loopback: all are used, and one that is stalled or cut holds nobody up."""

from collections.abc import Callable

import pytest

from tests.net.test_losses import BULK, BULK_CAST, Far, MakeLink
from tests.node.conftest import Run
from tests.node.test_loopback import node_of

pytestmark = pytest.mark.net
MakeRun = Callable[..., Run]
STRIPES = 4


@pytest.fixture
def there(run_of: MakeRun, link_to: MakeLink) -> Far:
    """Both learners and the syncer with four stripes; the far one's are there."""
    made = Far(run_of(net={"stripes": STRIPES, "stall_s": 0.2, "chunk_bytes": 1024, "window_bytes": 8192}), link_to)
    made.run.until(lambda: made.proxy.connections(BULK) == STRIPES, "every stripe")
    return made


def test_one_stripe_that_stalls_and_one_that_is_cut(there: Far) -> None:
    """Up: a stalled one keeps what it took, and rests; a cut one comes back, and is not all of them."""
    stripes = node_of(there.far)._roads.more
    assert len(stripes) == STRIPES - 1
    there.proxy.stop_one(BULK, 1)
    for _ in range(3):
        there.merged_again("far")
    there.proxy.cut_one(BULK, 0)
    there.merged_again("far")
    there.run.until(lambda: there.proxy.connections(BULK) == STRIPES, "the one that was cut, again")
    there.proxy.heal()
    there.merged_again("far")
    assert not there.syncer.roads.strangers
    there.end()


def test_what_comes_down_comes_on_the_stripes_that_flow(there: Far) -> None:
    """Down: chunks of broadcasts never come, so all is repaired, beside a stripe that is stalled."""
    there.proxy.stop_one(BULK, 2)
    there.proxy.stop((BULK_CAST,))
    seen = [duty.progress.seen.version for duty in there.duties()]

    def moved_on() -> bool:
        return all(duty.progress.seen.version > v + 2 for duty, v in zip(there.duties(), seen, strict=True))

    there.run.until(moved_on, "newer versions of every fragment")
    there.proxy.heal()
    there.merged_again("far")
    there.end()
