"""`zdiloco eval`: follows a run through kills of everybody, counts for nothing, and ends with it."""

import json
import signal

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Stage

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.timeout(SLOW_MACHINE_S), pytest.mark.slow]
ENDLESS = ("--set", "run.target_tokens=0")


def test_it_follows_a_run_through_kills_of_everybody(stage: Stage) -> None:
    """A-19, A-21: started before the syncer; syncer and learner die, others come; it ends with the run, code 0."""
    follower = stage.command("eval", str(stage.toml), "--follow", "--every", "0.2", "--json")
    stage.until(lambda: "waits for the syncer" in follower.errors, "word of waiting", follower)
    first = stage.sync()  # endless, or it might be over before the kills
    learner = stage.learner("a")
    stage.until(lambda: follower.errors.count("validation loss") >= 2, "two evaluations", first, learner, follower)
    found = {each["name"]: each["state"] for each in stage.status()["learners"]}
    watcher = next(name for name in found if name.startswith("eval-"))
    assert (found[watcher], stage.status()["live"]) == ("watching", 1)

    first.kill()
    stage.until(lambda: "the syncer is silent" in follower.errors, "word of the syncer's absence", follower, learner)
    learner.kill()
    said = follower.errors.count("validation loss")
    target = ("--set", f"run.target_tokens={stage.trained() + 20_000}")
    second = stage.sync(*target)
    stage.until(lambda: stage.status().get("phase") == "running", "the successor", second, follower)
    again = stage.learner("a")
    stage.until(lambda: follower.errors.count("validation loss") > said, "another evaluation", second, follower, again)

    assert (follower.wait(), second.wait(), again.wait()) == (0, 0, 0), follower.errors
    assert follower.errors.count("waits for the syncer at") == 1
    assert "Traceback" not in follower.errors
    printed = json.loads(follower.output)
    assert (printed["finished"], printed["reason"]) == (True, "the target is reached")
    rows = printed["evaluations"]
    for epoch in (1, 2):  # the second may go on from below where the first was
        tokens = [row["merged_tokens"] for row in rows if row["epoch"] == epoch]
        assert tokens == sorted(tokens) != []
    assert rows[-1]["loss"] == printed["loss"] < rows[0]["loss"]
    assert not list((stage.run_dir / "learners").glob("eval-*"))

    once = stage.command("eval", str(stage.toml), "--json", *target, label="eval-once")
    assert once.wait() == 0, once.errors
    newest = json.loads(once.output)
    assert newest["evaluations"][0]["merged_tokens"] >= rows[-1]["merged_tokens"] - 1
    assert newest["loss"] == pytest.approx(printed["loss"], abs=0.3)
    assert newest["finished"]


def test_it_leaves_when_asked_and_says_where_there_is_nothing(stage: Stage) -> None:
    once = stage.command("eval", str(stage.toml))
    assert once.wait() == 2
    (line,) = once.errors.splitlines()
    assert "holds no checkpoint to evaluate" in line
    assert str(stage.run_dir) in line

    waiting = stage.command("eval", str(stage.toml), "--follow", *ENDLESS)
    stage.until(lambda: "waits for the syncer" in waiting.errors, "word of waiting", waiting)
    waiting.send(signal.SIGTERM)
    assert waiting.wait() == 0, waiting.errors

    syncer, learner = stage.sync(*ENDLESS), stage.learner("a", *ENDLESS)
    follower = stage.command("eval", str(stage.toml), "--follow", "--every", "0.2", *ENDLESS)
    stage.until(lambda: follower.output.count("validation loss") >= 2, "two evaluations", syncer, learner, follower)
    assert "merged " in follower.output.splitlines()[0]
    follower.send(signal.SIGINT)
    assert follower.wait() == 130, follower.errors
    stage.until(lambda: len(stage.status()["learners"]) == 1, "no trace of who watched", syncer, learner)
    assert not (stage.run_dir / "learners").is_dir() or not list((stage.run_dir / "learners").glob("eval-*"))
