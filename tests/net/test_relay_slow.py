"""Learners behind a relay whose far link is too slow for what is published: they pull through it, and come back."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.net.test_losses import MakeLink
from tests.net.test_relays import MakeRun, end, join, merged_again
from tests.node.conftest import tiny_model
from tests.node.relays import Regions
from tests.node.test_loopback import node_of
from zdiloco.core import downlink

pytestmark = [pytest.mark.net, pytest.mark.long]
BULK, BULK_CAST = 1, 3
STATE_S = 2.0
"""What the values of all fragments take on the slow link."""


def test_a_far_link_that_is_too_slow_for_the_broadcast_is_left_to_what_is_pulled(
    run_of: MakeRun, link_to: MakeLink, region_of: Regions, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    """B-33: both leave the broadcast, and the relay with them; what both pull crosses once. They come back."""
    monkeypatch.setattr(downlink, "REST_FIRST_S", 1.0)
    monkeypatch.setattr(downlink, "SPAN_S", 3.0)
    run = run_of(net={"chunk_bytes": 1024, "stall_s": 1.0})
    syncer = run.start_syncer()
    near = run.join("near")
    run.until(lambda: syncer.machine.rounds > 8, "rounds")
    proxy, port = link_to(run.config.net.port)
    region = region_of(replace(run.config.net, port=port))
    far = [join(run, region, name, pace_s=0.02) for name in ("a", "b")]
    merged_again(run, *far)
    run.until(lambda: region.relay.far.taken, "the broadcast is taken")
    state_bytes = 2 * sum(parameter.numel() for parameter in tiny_model(0).parameters())
    for road in (BULK, BULK_CAST):
        proxy.slow(road, state_bytes / STATE_S)
    run.until(lambda: not region.relay.far.taken, "the broadcast is left")
    handed, came = region.relay.cache.counters, region.relay.cache.inbox.counters
    before = handed.handed_out_bytes, came.received_bytes
    seen = [duty.progress.seen.version for t in far for duty in node_of(t).machine.duties]

    def moved_on() -> bool:
        now = [duty.progress.seen.version for t in far for duty in node_of(t).machine.duties]
        return all(new > old for new, old in zip(now, seen, strict=True))

    run.until(moved_on, "newer versions of every fragment at both")
    out, crossed = handed.handed_out_bytes - before[0], came.received_bytes - before[1]
    say(f"behind a relay on a slow far link: {out} bytes pulled by two learners, {crossed} crossed")
    for road in (BULK, BULK_CAST):
        proxy.slow(road, 1e9)
    run.until(lambda: region.relay.far.taken, "the broadcast is taken again")
    merged_again(run, near, *far)
    end(run, syncer)
