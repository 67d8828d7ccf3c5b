"""What a user gets wrong: one line that says what and where, the exit code that belongs to it, and no traceback."""

import socket

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Child, Stage

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.timeout(SLOW_MACHINE_S)]


def one_line(child: Child, code: int) -> str:
    """It ends with this code, and this line is all that it says."""
    assert child.wait() == code, child.errors
    lines = child.errors.splitlines()
    assert len(lines) == 1, child.errors
    assert not child.output
    return lines[0]


def last_line(child: Child, code: int) -> str:
    """It ends with this code, after a last line that says why."""
    assert child.wait() == code, child.errors
    assert "Traceback" not in child.errors
    return child.errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "setting", "words"),
    [
        ("sync", "sync.sync_perod=24", ["--set sync.sync_perod=24", "did you mean sync.sync_period"]),
        ("learner", "sync.min_quorum=1000001", ["--set", "sync.min_quorum is 1000001", "allowed is 1 to"]),
    ],
    ids=["unknown key", "quorum out of range"],
)
def test_settings_that_cannot_be(stage: Stage, command: str, setting: str, words: list[str]) -> None:
    names = ["--name", "a"] if command == "learner" else []
    line = one_line(stage.command(command, str(stage.toml), *names, "--set", setting), 2)
    assert all(word in line for word in words), line


def test_a_port_in_use(stage: Stage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", stage.port + 2))
        taken.listen()
        line = one_line(stage.sync(), 2)
    assert f":{stage.port + 2} is taken" in line
    assert "net.port" in line


def test_nobody_answers_a_status_query(stage: Stage) -> None:
    place = f"127.0.0.1:{stage.port}"
    line = one_line(stage.command("status", place, "--timeout", "0.3"), 3)
    assert place in line
    assert "does it run" in line


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
