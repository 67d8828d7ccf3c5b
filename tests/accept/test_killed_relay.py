"""SIGKILL of a relay while it works: those behind it train on, the others go on, and everything is merged after it."""

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.accept.stage import LEAVE_S, SLOW_MACHINE_S, Child, Stage, assert_balanced
from zdiloco.chaos.proxy import Proxy
from zdiloco.config import to_toml
from zdiloco.errors import LinkError
from zdiloco.node.query import Query
from zdiloco.rundir.audit import audit

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]
BULK = 1


class Behind:
    """A relay process on a link to the syncer, and scripts that dial it."""

    def __init__(self, stage: Stage, free_ports: Callable[[int], int]) -> None:
        self.stage, self.port, between = stage, free_ports(4), free_ports(4)
        self.proxy = Proxy(between, stage.port)
        self._dials = ["--set", f"net.port={between}", "--set", f"relay.port={self.port}"]
        self.net = replace(stage.config.net, port=self.port)
        self._toml = stage.folder / "behind.toml"
        self._toml.write_text(to_toml(replace(stage.config, net=self.net)))

    def relay(self) -> Child:
        return self.stage.command("relay", str(self.stage.toml), *self._dials)

    def script(self, name: str, seed: int) -> Child:
        """A user's own script behind the relay."""
        return self.stage.script(name, seed=seed, toml=self._toml)

    def learners(self) -> set[str]:
        """Whom the relay says to be behind it; empty: it does not answer."""
        with Query(self.net) as query:
            try:
                return {each["name"] for each in query.ask(1.0, relay=True)["learners"]}
            except LinkError:
                return set()


def merged(stage: Stage) -> float:
    """Merged tokens, by a syncer that may be too busy to answer."""
    return float(stage.status().get("ledger", {}).get("merged", 0.0))


def test_the_region_outlives_its_relay(
    stage: Stage, free_ports: Callable[[int], int], say: Callable[[str], None]
) -> None:
    """A-3: what its learners contribute is half-way on the far link, and goes no further, when the relay is killed."""
    stage.write(net={"chunk_bytes": 1024, "window_bytes": 8192, "stall_s": 0.5})
    syncer = stage.sync()
    stage.until(stage.status, "the syncer answers", syncer)
    near = stage.script("near", seed=1)
    stage.until(lambda: stage.member("near").get("rounds", 0) > 1, "it is merged", syncer, near)
    behind = Behind(stage, free_ports)
    try:
        relay = behind.relay()
        far: list[Child] = []
        for seed, name in ((2, "a"), (3, "b")):
            far.append(behind.script(name, seed))
            stage.until(lambda n=name: stage.member(n).get("rounds", 0) > 1, f"{name} is merged", near, relay, *far)
        stage.until(lambda: behind.learners() >= {"a", "b"}, "both are behind the relay", relay)
        behind.proxy.stop((BULK,))
        stage.until(lambda: behind.proxy.halfway(BULK, up=True), "a contribution is half-way", syncer, relay, *far)
        relay.kill()
        steps, rounds = {name: stage.steps(name) for name in ("near", "a", "b")}, stage.rounds()
        stage.until(lambda: all(stage.steps(n) > k + 50 for n, k in steps.items()), "steps without it", *far)
        stage.until(lambda: stage.rounds() > rounds + 4, "rounds without it", syncer, near)
        behind.proxy.heal((BULK,))
        relay = behind.relay()
        done = stage.trained()
        stage.until(lambda: merged(stage) >= done, "what was done meanwhile is merged", syncer)
        stage.end(*far, near)
        assert relay.leave(signal.SIGTERM, within_s=LEAVE_S) == 0
        stage.end(syncer)
    finally:
        behind.proxy.close()
    fates = stage.fates()
    assert len(fates) == 3
    assert_balanced(fates)
    assert audit(stage.run_dir).balanced
    everything = [row for rows in fates.values() for row in rows]
    wasted, trained = sum(row.lost + row.dropped for row in everything), sum(row.trained for row in everything)
    say(f"a relay killed half-way: of {trained} tokens of all fragments {wasted} were lost or dropped")
    assert not wasted
