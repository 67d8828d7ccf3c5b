"""A learner on a slow link, over real sockets: it joins, contributes, keeps up by pulls, and holds nobody up."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.node.conftest import Run, Trainer, tiny_model
from tests.node.test_loopback import assert_balanced, node_of
from zdiloco.chaos.proxy import Proxy

pytestmark = [pytest.mark.net, pytest.mark.slow]
BULK, BULK_CAST = 1, 3
STATE_S = 4.0
"""What the values of all fragments take on the slow link."""


def test_a_slow_link_joins_a_run_and_contributes(
    run_of: Callable[..., Run], link_to: Callable[[int], tuple[Proxy, int]], say: Callable[[str], None]
) -> None:
    """B-33: rates are scaled so that its values take 4 s, while others publish them several times over."""
    run = run_of(net={"chunk_bytes": 1024})
    syncer = run.start_syncer()
    near = run.join("near")
    run.until(lambda: syncer.machine.rounds > 8, "rounds")
    proxy, port = link_to(run.config.net.port)
    state_bytes = 2 * sum(parameter.numel() for parameter in tiny_model(0).parameters())
    for road in (BULK, BULK_CAST):
        proxy.slow(road, state_bytes / STATE_S)
    began, rounds = time.monotonic(), syncer.machine.rounds
    slow = Trainer(replace(run.config, net=replace(run.config.net, port=port)), "slow", seed=9, pace_s=0.05)
    run.trainers.append(slow)
    run.until(slow.joined.is_set, "the slow one joins")
    joined_s = time.monotonic() - began

    def merged() -> bool:
        states = syncer.body.states.values()
        return any(entry.name == "slow" for state in states for entry in state.map_.values())

    run.until(merged, "work of the slow one is merged")
    say(f"a link that takes {STATE_S:g} s for all values joins after {joined_s:.1f} s, is merged after "
        f"{time.monotonic() - began:.1f} s; {syncer.machine.rounds - rounds} rounds meanwhile")  # fmt: skip
    assert not node_of(slow).machine.inflow.downlink.listening
    assert syncer.machine.rounds > rounds + 8
    proxy.slow(BULK, 1e9)
    proxy.slow(BULK_CAST, 1e9)
    for trainer in (near, slow):
        trainer.stop()
        assert trainer.error is None
    run.stop_syncer()
    assert_balanced(run.config.run.path, syncer)
