"""A syncer that sleeps while its successor takes the run over, fleet and all: it wakes up, and does no harm."""

import signal
from collections.abc import Callable

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Stage, assert_balanced
from zdiloco.chaos.proxy import Proxy
from zdiloco.rundir.audit import audit

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]


def test_a_sleeper_that_lost_its_fleet_is_fenced_and_merges_nothing_twice(
    stage: Stage, free_ports: Callable[[int], int]
) -> None:
    """Its lock is lost, the learners are moved to the successor; what it does after that is nobody's."""
    ports = [free_ports(4) for _ in range(2)]
    elsewhere = [("--set", f"net.port={port}") for port in ports]
    link = Proxy(stage.port, ports[0])
    try:
        old = stage.sync(*elsewhere[0])
        learner = stage.script("a", pace_s=0.01)
        stage.until(lambda: stage.rounds() >= 10, "rounds", old, learner)
        old.send(signal.SIGSTOP)
        (stage.run_dir / "syncer.lock").unlink()
        link.forward_to(ports[1])
        link.cut()
        new = stage.sync(*elsewhere[1])
        stage.until(lambda: stage.rounds() >= 10, "rounds of the successor", new, learner)
        old.send(signal.SIGCONT)
        assert old.wait() == 3, old.errors
        assert "a newer syncer runs this run" in old.errors
        assert "Traceback" not in old.errors
        rounds = stage.rounds()
        stage.until(lambda: stage.rounds() >= rounds + 5, "rounds after that", new, learner)
        stage.end(learner, new)
    finally:
        link.close()
    assert_balanced(stage.fates())
    found = audit(stage.run_dir)
    assert found.balanced, (found.gaps, found.differences)
