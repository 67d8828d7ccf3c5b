"""A slow link beside ordinary ones, with the production's transfers in virtual time: it joins, contributes, keeps up,
and holds nobody up. Sizes and rates are scaled: 480,000 bytes of values stand for 100 MB of parameters, sent as bf16.
"""

from collections.abc import Callable

import pytest

from zdiloco.core.params import SyncParams
from zdiloco.sim import chunks
from zdiloco.sim.links import Link
from zdiloco.sim.sizes import NBYTES
from zdiloco.sim.world import World

pytestmark = pytest.mark.slow
STEP_S = 0.5
FRAGMENTS = 24
STATE_S = 50e6 * 8 / 2e6
"""What 50 MB take at 2 Mbit/s."""


@pytest.mark.timeout(180)
def test_a_2_mbit_link_joins_a_run_of_100_mb_and_contributes(
    monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    """B-27, B-33: a fleet of four trains meanwhile; nobody is held up, and what the newcomer cannot use is not sent."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1024)
    world = World(SyncParams(), FRAGMENTS, exact=False, chunked=True)
    for number in range(4):
        world.join(f"l{number}", STEP_S * (1 + number / 10), Link(latency_s=0.02))
    world.run(100.0)
    assert world.site is not None
    before = world.gaps(STEP_S, after_s=40.0)
    rate = FRAGMENTS * NBYTES / STATE_S
    began = world.now
    slow = world.join("slow", STEP_S, Link(latency_s=0.04, up_bytes_s=rate, down_bytes_s=rate))
    world.run_until(lambda: slow.machine.step > 0, 3 * STATE_S)
    joined_s = world.now - began
    states = world.site.body.states
    world.run_until(lambda: any(entry.key == slow.key for state in states for entry in state.map), STATE_S)
    merged_s = world.now - began
    world.calls.clear()
    world.run(world.now + STATE_S)
    world.audit()
    after = world.gaps(STEP_S, after_s=0.0)
    lags = [
        state.stamp.version - duty.progress.seen.version
        for state, duty in zip(states, slow.machine.duties, strict=True)
    ]
    say(f"2 Mbit/s, 100 MB of parameters: joined after {joined_s:.0f} s, first merged after {merged_s:.0f} s")
    say(f"its values are {sum(lags) / len(lags):.0f} versions old; rounds of a fragment every "
        f"{sum(after) / len(after):.1f} steps, {sum(before) / len(before):.1f} before it came")  # fmt: skip
    assert joined_s < 1.5 * STATE_S
    assert merged_s < joined_s + 60.0
    assert sum(after) / len(after) < 1.05 * sum(before) / len(before)
    assert max(lags) <= 2 + 1.5 * STATE_S / (24 * STEP_S)
    assert slow.link.down.nbytes < 1.3 * rate * (world.now - began)
