"""SIGKILL of the syncer: learners train on, a new one goes on where the old one was, and what was done is merged."""

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Stage, assert_balanced

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.timeout(SLOW_MACHINE_S)]


def test_the_fleet_outlives_its_syncer(stage: Stage) -> None:
    stage.write(sync={"checkpoint_every_s": 3600.0, "recover_wait_s": 5.0})  # the disk knows the beginning only
    first = stage.sync()
    learners = [stage.script("a", seed=1), stage.script("b", seed=2)]
    stage.until(lambda: stage.rounds() >= 20, "twenty rounds", first, *learners)
    stage.until(lambda: stage.member("b").get("rounds"), "both contribute", first, *learners)
    before = stage.status()
    first.kill()

    steps = {name: stage.steps(name) for name in "ab"}
    stage.until(lambda: all(stage.steps(n) >= s + 100 for n, s in steps.items()), "steps without a syncer", *learners)

    second = stage.sync()
    stage.until(lambda: stage.status().get("phase") == "running", "the successor", second, *learners)
    done = stage.trained()
    after = stage.status()
    assert after["run_id"] == before["run_id"]
    assert after["epoch"] > before["epoch"]
    versions = [[fragment["version"] for fragment in status["fragments"]] for status in (before, after)]
    # The fleet knew what the disk did not; of each fragment the last update may have died with the syncer.
    assert all(new >= old - 1 > 0 for old, new in zip(*versions, strict=True)), versions
    stage.until(lambda: stage.status()["ledger"]["merged"] >= done, "what was done meanwhile is merged", second)
    stage.end(*learners, second)

    fates = stage.fates()
    assert len(fates) == 2
    assert_balanced(fates)
    assert sum(row.lost + row.dropped for rows in fates.values() for row in rows) == 0

    fresh = stage.sync("--fresh")
    assert fresh.wait() == 2
    (line,) = fresh.errors.splitlines()
    assert "--fresh" in line
    assert str(stage.run_dir) in line
