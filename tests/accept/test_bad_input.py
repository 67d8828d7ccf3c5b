"""Wrong input that is a story of several commands; what is one command is in docs/bad-input.md and its test."""

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Child, Stage

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]


def last_line(child: Child, code: int) -> str:
    """It ends with this code, after a last line that says why."""
    assert child.wait() == code, child.errors
    assert "Traceback" not in child.errors
    return child.errors.splitlines()[-1]


def test_another_model_than_the_runs(stage: Stage) -> None:
    syncer, script = stage.sync(), stage.script("a")
    stage.until(lambda: stage.rounds() >= 1, "a round", syncer, script)
    other = stage.learner("b")  # the ready-made task's model
    line = last_line(other, 2)
    ours = stage.status()
    stage.end(script, syncer)
    digest = stage.cut().layout_digest
    assert line.count(digest) == 1, line
    theirs = line.replace(digest, "").partition("layout is ")[2].split(",")[0]
    assert len(theirs) == len(digest), line
    assert [each["name"] for each in ours["learners"]] == ["a"]


def test_another_run_than_the_learners(stage: Stage) -> None:
    """The syncer's port now belongs to another run: a learner of the old one must not mix with it."""
    syncer, learner = stage.sync(), stage.learner("a")
    stage.until(lambda: stage.rounds() >= 1, "a round", syncer, learner)
    old = stage.status()["run_id"]
    stage.end(syncer)
    stage.write(run={"dir": str(stage.folder / "other")})
    other = stage.sync()
    new = stage.until(lambda: stage.status().get("run_id"), "the other syncer", other)
    line = last_line(learner, 2)
    assert old in line
    assert new in line
