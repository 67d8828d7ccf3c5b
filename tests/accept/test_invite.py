"""A machine that knows nothing joins by one line, as docs/operating.md has it; the line is good once."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Child, Stage
from zdiloco.config import load

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.timeout(SLOW_MACHINE_S)]


def keys_of(stage: Stage) -> Path:
    """The syncer's folder, without a list: whoever comes is invited."""
    made = stage.command("keygen", str(stage.folder / "keys"), "syncer", label="keygen")
    assert made.wait() == 0, made.errors
    return stage.folder / "keys"


def invited(stage: Stage, name: str, *words: str) -> Child:
    command = stage.command("invite", str(stage.toml), name, *words, label=f"invite-{name}")
    command.wait()
    return command


def told(stage: Stage) -> dict[str, Any]:
    """The status, as the one who has joined is told it; empty: nobody answers."""
    words = ("status", f"127.0.0.1:{stage.port}", "--keys", str(stage.folder / "eu-0" / "keys"), "--json")
    command = stage.command(*words, label="status")
    return {} if command.wait() else json.loads(command.output)


def merged(stage: Stage) -> float:
    """Tokens of eu-0 that are merged."""
    return sum(each["merged_tokens"] for each in told(stage).get("learners", []) if each["name"] == "eu-0")


def test_a_stranger_joins_by_a_line_and_a_second_one_does_not(stage: Stage) -> None:
    """K-8."""
    stage.write(net={"keys": str(keys_of(stage)), "listen": "0.0.0.0"})
    assert invited(stage, "eu-0").errors.count("say --host") == 1, "by 127.0.0.1 nobody else gets here"
    line = invited(stage, "eu-0", "--host", "127.0.0.1").output.strip()
    syncer = stage.sync()
    learner = stage.command("learner", "--join", line, "--dir", str(stage.folder / "eu-0"), label="eu-0")
    stage.until(lambda: merged(stage) > 0, "it is merged", syncer, learner)
    kept = load(stage.folder / "eu-0" / "run.toml")
    assert kept.sync == stage.config.sync, "the run's settings"
    assert kept.run.path == stage.folder / "eu-0" / "run", "and its own places"

    second = stage.command("join", line, "--dir", str(stage.folder / "thief"), label="thief")
    assert second.wait() == 2
    assert "does not take this invitation of eu-0" in second.errors
    assert not (stage.folder / "thief" / "run.toml").exists()

    late = invited(stage, "asia-0", "--host", "127.0.0.1").output.strip()  # the syncer runs, and is told nothing
    joined = stage.command("join", late, "--dir", str(stage.folder / "asia-0"), label="asia-0")
    assert joined.wait() == 0, joined.errors
    assert joined.output.strip() == str(stage.folder / "asia-0" / "run.toml")

    stage.end(learner)
    syncer.kill()  # who has joined is known to the next one, too
    syncer = stage.sync()
    again = stage.command("learner", "--join", line, "--dir", str(stage.folder / "eu-0"), label="eu-0-again")
    stage.until(lambda: told(stage).get("rounds", 0) >= 1, "it goes on", syncer, again)
    assert invited(stage, "eu-0", "--host", "h").errors.count("eu-0 has joined already") == 1
    stage.end(again, syncer)


def test_what_is_wrong_with_an_invitation_is_said(stage: Stage) -> None:
    """A folder of somebody else, hosts that are none, names that cannot be withdrawn: one line, code 2."""
    stage.write(net={"keys": str(keys_of(stage))})
    for host in ("10.0.0.5:5700", "tcp://10.0.0.5", "[::1]"):
        assert "without scheme, port or brackets" in invited(stage, "eu-0", "--host", host).errors
    assert "eu-0 was not invited" in invited(stage, "eu-0", "--withdraw").errors
    line = invited(stage, "eu-0", "--host", "127.0.0.1").output.strip()
    syncer = stage.sync()
    joins = ("join", line, "--dir", str(stage.folder / "eu-0"))
    assert stage.command(*joins, label="join").wait() == 0
    assert stage.command(*joins, label="again").wait() == 0
    for other, told in (("eu-1", "say another --dir"), ("eu-0", "")):
        invited(stage, other, "--withdraw")
        line = invited(stage, other, "--host", "127.0.0.1").output.strip()
        command = stage.command("join", line, *joins[2:], label=f"join-{other}")
        assert command.wait() == (2 if told else 0), command.errors
        assert told in command.errors
    stage.end(syncer)
