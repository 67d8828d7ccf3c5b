"""Whole runs through relays: what is learned is the same, whoever dies meanwhile, and every token has one fate."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.net.test_losses import BULK, MakeLink
from tests.node.conftest import Run, Trainer
from tests.node.relays import Region, Regions
from tests.node.test_loopback import assert_balanced, crash, node_of
from zdiloco.core.machine import SYNCER
from zdiloco.node.relay_lanes import Lane
from zdiloco.node.sockets import Road
from zdiloco.node.syncer import SyncerNode

pytestmark = pytest.mark.net
MakeRun = Callable[..., Run]


def join(run: Run, region: Region, name: str, **options: Any) -> Trainer:
    """A learner of a run that dials a relay."""
    trainer = Trainer(replace(run.config, net=region.behind), name, seed=len(run.trainers), **options)
    run.trainers.append(trainer)
    return trainer


def merged(run: Run, name: str) -> int:
    """Tokens of a learner, whatever its incarnation, in the fragment that has the fewest of them."""
    assert run.syncer is not None
    states = run.syncer.body.states.values()
    return min((sum(e.tokens for e in s.map_.values() if e.name == name) for s in states), default=0)


def merged_again(run: Run, *trainers: Trainer) -> None:
    """Wait for merged work of each that was trained from now on."""
    trained = {trainer.name: 4 * trainer.steps for trainer in trainers}
    for name, tokens in trained.items():
        run.until(lambda name=name, tokens=tokens: merged(run, name) > tokens, f"merged work of {name}")


def stripes_used(lane: Lane) -> set[int]:
    """The stripes on which this lane is sending chunks from now on; the set grows."""
    used, offer = set[int](), lane.roads._offer

    def watched(road: Road, key: Any, frames: Any, stripe: int = 0) -> Any:
        if road is Road.BULK:
            used.add(stripe)
        return offer(road, key, frames, stripe)

    lane.roads._offer = watched
    return used


def end(run: Run, syncer: SyncerNode) -> None:
    """Everybody leaves; every token has one fate."""
    for trainer in run.trainers:
        trainer.stop()
        assert trainer.error is None
    run.stop_syncer()
    assert_balanced(run.config.run.path, syncer)


def wide_model(seed: int) -> nn.Sequential:
    """Fragments of some hundred chunks each."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 256), nn.Linear(256, 256), nn.Linear(256, 8))


def test_learners_behind_a_relay_and_beside_it_end_with_the_same_bytes(run_of: MakeRun, region_of: Regions) -> None:
    """A-19: one of them is there before its relay has an upstream."""
    run = run_of(run={"target_tokens": 400})
    region = region_of(run.config.net)
    trainers = [join(run, region, "a")]
    syncer = run.start_syncer()
    trainers += [run.join("near"), join(run, region, "b", pace_s=0.004)]
    run.until(lambda: all(t.node is not None and t.node.finished for t in trainers), "the target")
    for trainer in trainers:
        trainer.stop()
    run.stop_syncer()
    assert [node_of(trainer).reached_target for trainer in trainers] == [True] * 3
    assert "everybody has left" in syncer.reason
    for other in trainers[1:]:
        for mine, theirs in zip(trainers[0].model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    assert_balanced(run.config.run.path, syncer)


@pytest.mark.slow
def test_two_stacked_relays_are_as_one(run_of: MakeRun, region_of: Regions) -> None:
    run = run_of()
    syncer = run.start_syncer()
    outer = region_of(run.config.net)
    inner = region_of(outer.behind)
    trainers = [run.join("near"), join(run, outer, "middle"), join(run, inner, "a"), join(run, inner, "b")]
    merged_again(run, *trainers)
    run.until(lambda: len(inner.relay.lanes) == 2, "two lanes of the inner one")
    names = {lane.key.name for lane in outer.relay.lanes}
    assert names >= {"middle", "a", "b"}
    late = join(run, inner, "late")
    merged_again(run, late)
    end(run, syncer)


@pytest.mark.slow
def test_stripes_go_through_a_relay(run_of: MakeRun, region_of: Regions) -> None:
    """Each learner's bulk traffic crosses on as many connections as it would without a relay, and all carry chunks."""
    run = run_of(net={"stripes": 3, "window_bytes": 65_536})
    syncer = run.start_syncer()
    region = region_of(run.config.net)
    trainers = [join(run, region, name, model=wide_model(7)) for name in ("a", "b")]
    merged_again(run, *trainers)
    lanes = list(region.relay.lanes)
    assert [len(lane.roads.ends(Road.BULK)) for lane in lanes] == [3, 3]
    used = [stripes_used(lane) for lane in lanes]
    run.until(lambda: all(stripes == {0, 1, 2} for stripes in used), "chunks on all stripes of both")
    merged_again(run, *trainers)
    end(run, syncer)


@pytest.mark.slow
def test_a_crowd_joins_through_a_relay_and_each_state_crosses_once(run_of: MakeRun, region_of: Regions) -> None:
    """With rounds that never come the published state stays the same, so all join from the same bytes."""
    run = run_of(sync={"min_quorum": 9}, net={"stall_s": 5.0})
    syncer = run.start_syncer()
    near = run.join("near", model=wide_model(0))
    run.until(lambda: near.steps > 0, "the state with which the run begins")
    region = region_of(run.config.net)
    trainers = [join(run, region, name, model=wide_model(7)) for name in "abcd"]
    run.until(lambda: all(trainer.steps > 0 for trainer in trainers), "all of them join")
    state = sum(value.value.nbytes for value in syncer.body.states.values())
    inbox = region.relay.cache.inbox.counters
    assert state <= inbox.received_bytes < 1.1 * state
    lanes = [lane.counts.bytes_down for lane in region.relay.lanes]
    assert len(lanes) == 4
    assert max(lanes) < state / 10
    for trainer in trainers:
        assert all(torch.equal(x, y) for x, y in zip(near.initial, trainer.initial, strict=True))
    end(run, syncer)


class Cut:
    """Learners behind a relay on a far link that is slow, so that something is always half-way; and one beside."""

    def __init__(self, run: Run, link_to: MakeLink, region_of: Regions) -> None:
        self.run = run
        self.syncer = run.start_syncer()
        self.near = run.join("near", model=wide_model(0))
        self.proxy, port = link_to(run.config.net.port)
        self.region = region_of(replace(run.config.net, port=port))
        self.far = [join(run, self.region, name, model=wide_model(7)) for name in ("a", "b")]
        merged_again(run, self.near, *self.far)
        self.proxy.slow(BULK, 150_000)

    def until_halfway(self) -> None:
        """Until a contribution of one behind the relay has come in part."""
        keys = [node_of(trainer).key for trainer in self.far]

        def halfway() -> bool:
            entries = list(self.syncer.transfers.inbox._entries.values())
            return any(e.peer in keys and 0 < e.assembly.received_bytes < e.assembly.body.nbytes for e in entries)

        self.run.until(halfway, "a contribution that is half-way")

    def pace_of_others(self, what: str) -> None:
        """The others go on, and so do the steps of those that are cut off."""
        steps = [trainer.steps for trainer in self.far]
        merged_again(self.run, self.near)
        self.run.until(lambda: all(t.steps > s + 10 for t, s in zip(self.far, steps, strict=True)), what)


@pytest.fixture
def cut(run_of: MakeRun, link_to: MakeLink, region_of: Regions) -> Cut:
    # A far link this slow makes who is behind it late: nobody is to be taken for gone while the test waits for it.
    return Cut(run_of(net={"window_bytes": 16_384, "stall_s": 0.5}), link_to, region_of)


@pytest.mark.slow
def test_a_relay_that_dies_half_way_costs_nothing_but_time(cut: Cut) -> None:
    """A-3: killed in the middle of a contribution; its successor knows nothing, and everything is merged."""
    for _ in range(2):
        cut.until_halfway()
        cut.region.stop(crash=True)
        cut.pace_of_others("steps without a relay")
        cut.region.start()
        merged_again(cut.run, *cut.far)
    cut.proxy.slow(BULK, 1e9)
    merged_again(cut.run, cut.near, *cut.far)
    end(cut.run, cut.syncer)


@pytest.mark.slow
def test_a_syncer_that_dies_behind_a_relay_is_found_again(cut: Cut) -> None:
    """A-8: its successor is dialled by the same lanes, and hears the same learners."""
    cut.until_halfway()
    crash(cut.run)
    steps = [trainer.steps for trainer in cut.far]
    cut.run.until(lambda: all(t.steps > s + 10 for t, s in zip(cut.far, steps, strict=True)), "steps without a syncer")
    cut.run.until(lambda: not cut.region.relay.connected, "the relay misses it")
    cut.proxy.slow(BULK, 1e9)
    second = cut.run.start_syncer()
    cut.run.until(lambda: second.machine.rounds >= 4, "rounds of the successor")
    assert cut.region.relay.lost >= 1
    merged_again(cut.run, cut.near, *cut.far)
    end(cut.run, second)


@pytest.mark.slow
def test_a_relay_may_be_left_out(run_of: MakeRun, region_of: Regions) -> None:
    """A learner that was behind one comes again without it, as a new process; the old one's place is given up."""
    run = run_of()
    syncer = run.start_syncer()
    region = region_of(run.config.net)
    first = join(run, region, "a")
    merged_again(run, first)
    old = node_of(first).key
    first.stop()
    region.stop()
    second = run.join("a")
    run.until(lambda: second.steps > 5, "steps of the newer one")
    trained = 4 * first.steps
    run.until(lambda: merged(run, "a") > trained, "its merged work")
    assert old != node_of(second).key
    end(run, syncer)


@pytest.mark.slow
def test_a_far_link_that_loses_its_broadcasts_is_made_up_for_once(
    run_of: MakeRun, link_to: MakeLink, region_of: Regions
) -> None:
    """E-75: announcements come, the chunks themselves never: the relay fetches each once, for both behind it."""
    run = run_of(net={"stall_s": 0.3})
    syncer = run.start_syncer()
    proxy, port = link_to(run.config.net.port)
    region = region_of(replace(run.config.net, port=port))
    far = [join(run, region, name) for name in ("a", "b")]
    merged_again(run, *far)
    proxy.stop((3,))
    own = region.relay.cache.inbox.counters
    before = own.asked_again

    def versions() -> list[int]:
        return [duty.progress.seen.version for t in far for duty in node_of(t).machine.duties]

    seen = versions()

    def moved_on() -> bool:
        return all(now > then + 2 for now, then in zip(versions(), seen, strict=True))

    run.until(moved_on, "newer versions of every fragment")
    assert own.asked_again > before
    assert all(lane.roads.of(SYNCER).dropped == 0 for lane in region.relay.lanes)
    proxy.heal()
    end(run, syncer)
