"""SIGKILL of the syncer: learners train on, a new one goes on where the old one was, and what was done is merged."""

import signal
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Stage, assert_balanced
from zdiloco.rundir.audit import audit

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.timeout(SLOW_MACHINE_S)]


@pytest.mark.slow
def test_nobody_hangs_on_a_killed_syncer_and_its_place_is_free_at_once(stage: Stage) -> None:
    """D-62: who asks how the run stands gets one line and an end; lock and ports are a successor's without waiting."""
    first = stage.sync()
    stage.until(lambda: stage.status().get("phase") == "empty", "a syncer that waits", first)
    first.send(signal.SIGSTOP)
    asking = stage.command("status", f"127.0.0.1:{stage.port}", "--timeout", "4", label="asking")
    first.kill()
    second = stage.sync()
    stage.until(lambda: stage.status().get("phase") == "empty", "its successor", second)
    second.kill()
    asked = stage.command("status", f"127.0.0.1:{stage.port}", "--timeout", "1", label="asked")
    assert asked.wait() == 3
    (line,) = asked.errors.splitlines()
    assert f"no syncer answers at 127.0.0.1:{stage.port} within 1 s" in line
    assert asking.wait() in (0, 3), "by the successor, or not at all"
    assert "Traceback" not in asking.errors


def versions(status: dict[str, Any]) -> list[int]:
    """Of every fragment, as its syncer says."""
    return [fragment["version"] for fragment in status.get("fragments", ())]


def test_the_fleet_outlives_its_syncer(stage: Stage) -> None:
    stage.write(sync={"checkpoint_every_s": 3600.0, "recover_wait_s": 5.0})  # the disk knows the beginning only
    first = stage.sync()
    learners = [stage.script("a", seed=1), stage.script("b", seed=2)]
    stage.until(lambda: min(versions(stage.status()), default=0) > 2, "some rounds of each", first, *learners)
    both = "both contribute, whoever came first"
    stage.until(lambda: all(stage.member(name).get("rounds") for name in "ab"), both, first, *learners)
    before = stage.status()
    first.kill()

    steps = {name: stage.steps(name) for name in "ab"}
    stage.until(lambda: all(stage.steps(n) >= s + 100 for n, s in steps.items()), "steps without a syncer", *learners)

    at_work = audit(stage.run_dir)
    assert at_work.balanced, (at_work.gaps, at_work.differences)
    assert at_work.books.total.merged == 0  # by the disk; the learners still hold all of it
    assert not at_work.syncer_lives

    second = stage.sync()
    stage.until(lambda: stage.status().get("phase") == "running", "the successor", second, *learners)
    done = stage.trained()
    after = stage.status()
    assert after["run_id"] == before["run_id"]
    assert after["epoch"] > before["epoch"]
    both_versions = [versions(status) for status in (before, after)]
    # The fleet knew what the disk did not; of each fragment the last updates may have died with the syncer.
    assert all(new >= old - 2 > 0 for old, new in zip(*both_versions, strict=True)), both_versions
    stage.until(lambda: stage.status()["ledger"]["merged"] >= done, "what was done meanwhile is merged", second)
    stage.end(*learners, second)

    fates = stage.fates()
    assert len(fates) == 2
    assert_balanced(fates)
    assert audit(stage.run_dir).balanced
    assert sum(row.lost + row.dropped for rows in fates.values() for row in rows) == 0

    fresh = stage.sync("--fresh")
    assert fresh.wait() == 2
    (line,) = fresh.errors.splitlines()
    assert "--fresh" in line
    assert str(stage.run_dir) in line
