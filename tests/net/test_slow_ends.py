"""The end of a run on a slow link: who takes in the last values beats meanwhile, and is waited for while bytes come."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.node.conftest import Run, Trainer
from tests.node.test_loopback import assert_balanced, node_of
from zdiloco.chaos.proxy import Proxy
from zdiloco.core import downlink
from zdiloco.core.membership import MemberState
from zdiloco.wire import vain

pytestmark = [pytest.mark.net, pytest.mark.slow]
BULK, BULK_CAST = 1, 3
SYNC = {"suspect_after_s": 0.5, "gone_after_s": 1.0, "drain_s": 20.0}
BYTES_S = 700
CAST_BYTES_S = 4096
"""One piece of the link a second."""


def test_who_takes_long_over_the_last_values_is_alive_and_ends_with_them(
    run_of: Callable[..., Run], link_to: Callable[[int], tuple[Proxy, int]]
) -> None:
    """D-67: they take longer than a silent learner lives, three times over; it is never gone, nor left behind."""
    run = run_of(run={"target_tokens": 3000}, net={"stall_s": 2.0}, sync=SYNC)
    syncer = run.start_syncer()
    proxy, port = link_to(run.config.net.port)
    config = replace(run.config, net=replace(run.config.net, port=port))
    far = Trainer(config, "far", seed=9, pace_s=0.02)
    run.trainers.append(far)
    run.until(far.joined.is_set, "the far one joins")
    proxy.slow(BULK, BYTES_S)
    near = run.join("near")
    run.until(lambda: node_of(far).machine.phase == "finishing", "the end of the run")
    told_at, states = time.monotonic(), set()

    def has_ended() -> bool:
        states.add(syncer.machine.fleet.members["far"].state)
        return not far.thread.is_alive()

    run.until(has_ended, "the far one has the last values")
    assert time.monotonic() - told_at > 3 * SYNC["gone_after_s"]
    assert MemberState.GONE not in states
    assert_ended_alike(run, near, far)


def test_a_link_that_is_busy_with_broadcasts_of_before_is_waited_for(
    run_of: Callable[..., Run], link_to: Callable[[int], tuple[Proxy, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D-67: for longer than `sync.drain_s` nothing of the last values comes, but what was broadcast before does.

    It has noticed yet neither that it is behind, nor that its bulk road is dead: it would leave the one, and dial the
    other anew.
    """
    monkeypatch.setattr(downlink, "BEHIND_BEATS", 10**6)
    monkeypatch.setattr(vain, "MOST_VAIN", 10**6)
    run = run_of(run={"target_tokens": 3000}, sync={"suspect_after_s": 5.0, "gone_after_s": 20.0, "drain_s": 3.0})
    syncer = run.start_syncer()
    proxy, port = link_to(run.config.net.port)
    far = Trainer(replace(run.config, net=replace(run.config.net, port=port)), "far", seed=9, pace_s=0.02)
    run.trainers.append(far)
    run.until(far.joined.is_set, "the far one joins")
    run.until(lambda: all(d.progress.seen.version > 2 for d in node_of(far).machine.duties), "broadcasts reach it")
    proxy.stop((BULK, BULK_CAST))
    near = run.join("near")
    run.until(lambda: syncer.machine.progress > 0.9, "most of the run")
    proxy.slow(BULK_CAST, CAST_BYTES_S)
    proxy.heal((BULK_CAST,))
    run.until(lambda: node_of(far).machine.phase == "finishing", "the end of the run")
    ends = time.monotonic() + 2 * run.config.sync.drain_s
    run.until(lambda: time.monotonic() > ends or syncer.machine.phase == "stopped", "twice drain_s")
    assert syncer.machine.phase != "stopped", syncer.reason
    proxy.slow(BULK_CAST, math.inf)
    proxy.heal((BULK,))
    run.until(lambda: not far.thread.is_alive(), "the far one has the last values")
    assert_ended_alike(run, near, far)


def assert_ended_alike(run: Run, near: Trainer, far: Trainer) -> None:
    """Both have left with the same values, and the syncer after them."""
    near.stop()
    syncer = run.stop_syncer()
    assert "everybody has left" in syncer.reason
    assert [node_of(trainer).exit_code for trainer in (near, far)] == [0, 0]
    assert all(torch.equal(x, y) for x, y in zip(near.model.parameters(), far.model.parameters(), strict=True))
    assert_balanced(run.config.run.path, syncer)
