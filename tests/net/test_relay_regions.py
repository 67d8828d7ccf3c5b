"""Eight learners in four regions: what each far link carries with relays, and without (interface counters)."""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.net.namespaces import Regions, why_not
from tests.node.conftest import BASE, LIMIT_S, Run, Trainer
from tests.node.test_loopback import assert_balanced, node_of
from zdiloco.config import RunConfig, from_tree
from zdiloco.node.params import RelayParams
from zdiloco.node.relay import RelayNode
from zdiloco.node.syncer import SyncerNode

pytestmark = [pytest.mark.net, pytest.mark.wan, pytest.mark.slow, pytest.mark.timeout(240)]
REGIONS, EACH, ROUNDS, WIDTH = 4, 2, 10, 192
PORT, RELAY_PORT = 5700, 5710
MOST = 0.55
"""What a far link carries towards its region, with a relay ÷ without; one of two copies, and all headers, is 0.5."""


@pytest.fixture
def regions() -> Iterator[Regions]:
    reason = why_not()
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    made = Regions(REGIONS)
    yield made
    made.close()


class There(Trainer):
    """A learner in a region."""

    def __init__(self, world: "World", region: int, config: RunConfig, name: str) -> None:
        self._world, self._region = world, region
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(8)), nn.Linear(WIDTH, 8))
        super().__init__(config, name, seed=0, model=model, pace_s=0.005)

    def _run(self) -> None:
        self._world.regions.enter(self._region)
        super()._run()

    def _step(self, *args: Any) -> None:
        while not self._world.going.wait(0.05) and not self.stopping.is_set():
            continue
        super()._step(*args)


class World:
    """The syncer in the first region, two learners in each, and perhaps a relay in each of the others."""

    def __init__(self, regions: Regions, folder: Path, relays: bool) -> None:
        self.regions = regions
        self.relays: list[tuple[RelayNode, threading.Thread]] = []
        self.going = threading.Event()
        self.going.set()
        tree: dict[str, dict[str, Any]] = {**BASE, "run": {"dir": str(folder)}}
        tree["sync"] = {
            **BASE["sync"], "sync_period": 24, "num_fragments": 4, "min_quorum": 4, "beat_every_s": 1.0,
            "report_every_s": 0.1, "suspect_after_s": 10.0, "gone_after_s": 20.0,
        }  # fmt: skip
        tree["learner"] = {"silent_after_s": 20.0}
        tree["net"] = {"listen": "0.0.0.0", "insecure": True, "port": PORT, "stall_s": 5.0, "chunk_bytes": 65_536}
        self.run = Run(from_tree(tree))
        self._in(0, lambda: self.run.start_syncer())
        for region in range(REGIONS):
            port = RELAY_PORT if relays and region else PORT
            net = replace(self.run.config.net, connect=f"10.77.{region}.1" if region else "127.0.0.1")
            if relays and region:
                self._in(region, lambda net=net: self._relay(net))
            behind = replace(net, connect="127.0.0.1", port=port) if relays and region else net
            for number in range(EACH):
                there = There(self, region, replace(self.run.config, net=behind), f"r{region}-{number}")
                self.run.trainers.append(there)

    @property
    def syncer(self) -> SyncerNode:
        assert self.run.syncer is not None
        return self.run.syncer

    def _relay(self, net: Any) -> None:
        node = RelayNode(net, RelayParams(port=RELAY_PORT))
        self.relays.append((node, node.start()))

    def _in(self, region: int, job: Callable[[], object]) -> None:
        """Do something in a region: what it opens stays there."""
        thread = threading.Thread(target=self.regions.inside(region, lambda: job() and None), name="there")
        thread.start()
        thread.join(LIMIT_S)
        assert not thread.is_alive()

    def versions(self) -> list[int]:
        return [state.stamp.version for _, state in sorted(self.syncer.body.states.items())]

    def carried(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Hold everybody's steps until nothing is on its way down; return the versions that everybody has got, and what
        each far link has carried for them. Steps go on afterwards."""
        found: list[tuple[list[int], list[tuple[int, int]]]] = []

        def settled() -> bool:
            versions = self.versions()
            duties = [zip(node_of(trainer).machine.duties, versions, strict=True) for trainer in self.run.trainers]
            if any(duty.receiving or duty.tip.version < version for each in duties for duty, version in each):
                return False
            found[:] = [(versions, [self.regions.carried(region) for region in range(1, REGIONS)])]
            return versions == self.versions()

        self.going.clear()
        self.run.until(settled, "everybody has what is published")
        self.going.set()
        return found[0]

    def measure(self) -> list[tuple[float, float]]:
        """Let rounds pass; return for each far link what it carried towards its region and away from it, in units of
        what was published meanwhile."""
        trainers = self.run.trainers
        self.run.until(lambda: all(trainer.steps > 0 for trainer in trainers), "everybody is there")
        self.run.until(lambda: min(self.versions()) > 1, "rounds of every fragment")
        links = [node_of(trainer).machine.inflow.downlink for trainer in trainers]
        self.run.until(lambda: all(link.listening for link in links), "everybody takes updates, not whole states")
        begun, before = self.carried()
        self.run.until(lambda: sum(self.versions()) >= sum(begun) + ROUNDS, "rounds")
        ended, after = self.carried()
        sizes = [state.value.nbytes for _, state in sorted(self.syncer.body.states.items())]
        unit = sum(size * (e - b) for size, e, b in zip(sizes, ended, begun, strict=True))
        return [((a[0] - b[0]) / unit, (a[1] - b[1]) / unit) for a, b in zip(after, before, strict=True)]

    def close(self) -> None:
        for trainer in self.run.trainers:
            trainer.stopping.set()
        for trainer in self.run.trainers:
            trainer.stop()
            assert trainer.error is None
        self.run.stop_syncer()
        for node, thread in self.relays:
            node.stop("the test stops it")
            thread.join(LIMIT_S)
            assert not thread.is_alive()
            assert node.failure is None


def test_an_update_crosses_each_far_link_once(
    regions: Regions, tmp_path: Path, say: Callable[[str], None]
) -> None:  # fmt: skip
    """Bytes towards each region without the syncer, with relays ÷ without, all headers included."""
    found, worst = {}, []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for relays in (False, True):
        world = World(regions, tmp_path / f"run-{relays}", relays)
        try:
            found[relays] = world.measure()
        finally:
            world.close()
        assert_balanced(world.run.config.run.path, world.syncer)
    torch.set_num_threads(threads)
    for region, (flat, relayed) in enumerate(zip(found[False], found[True], strict=True), 1):
        ratios = [with_ / without for with_, without in zip(relayed, flat, strict=True)]
        say(
            f"region {region} of {EACH} learners, in units of what was published: towards it {flat[0]:.3f} without a "
            f"relay, {relayed[0]:.3f} with ({ratios[0]:.3f}); away {flat[1]:.3f} and {relayed[1]:.3f}"
        )
        worst.append(ratios[0])
    assert max(worst) <= MOST
