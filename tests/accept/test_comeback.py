"""SIGKILL of the ready-made learner: it comes back with its state, and reads no token twice."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Child, Stage
from zdiloco.rundir.saved import Saved, SavedStates

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]
BATCH = 2
RETURN_S = 5.0
"""From the start of a learner, imports excluded, to its first merged contribution."""


def saved(stage: Stage) -> Saved | None:
    return SavedStates(stage.run_dir, "a").read()


def logs(stage: Stage) -> list[list[dict[str, Any]]]:
    """What each process of `a` has noted, in the order of their starts."""
    paths = (stage.run_dir / "learners").glob("a-*.jsonl")
    lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    return sorted(lines, key=lambda each: float(each[0]["t"]))


def merged(stage: Stage, *living: Child) -> None:
    stage.until(lambda: stage.member("a").get("merged_tokens"), "merged work", *living)


def test_a_killed_learner_goes_on_with_its_data(stage: Stage, say: Callable[[str], None]) -> None:
    """User cases D-57 (no token is read twice, the count is told), B-29 (each phase is told), F-99 (steps go on)."""
    stage.write(learner={"save_every_s": 0.5, "silent_after_s": 1.0, "answer_timeout_s": 0.5})
    syncer, first = stage.sync(), stage.learner("a")
    merged(stage, syncer, first)
    stage.until(lambda: saved(stage), "a saved state", syncer, first)
    steps = stage.steps("a")
    stage.until(lambda: stage.steps("a") > steps + 20, "more steps", syncer, first)
    first.kill()
    made, kept = stage.steps("a"), saved(stage)
    assert kept
    second = stage.learner("a")
    stage.until(lambda: "first contribution merged" in second.errors, "its work is merged again", syncer, second)
    stage.end(second, syncer)

    before, after = logs(stage)
    assert (after[0]["step"], after[0]["skipped"]) == (made, made - kept.about.step)
    assert after[0]["restored"] == ["optimizer", "random", "data"]
    numbers = [line["step"] for lines in (before, after) for line in lines if line["kind"] == "steps"]
    assert numbers == sorted(set(numbers))
    last = saved(stage)
    assert last
    assert last.about.step == stage.steps("a") == max(each.lifetime_step for each in stage.counters("a"))
    walked = last.parts["data"]
    assert (walked["epoch"], walked["taken"]) == (0, BATCH * last.about.step)  # each batch once, none left out
    phases = after[-1]["phases"]
    say(f"the ready-made learner's return: skipped {after[0]['skipped']} batches, 0 read twice; {phases} s")
    assert len(phases) == 8
    assert phases["first contribution merged"] <= RETURN_S


def test_a_damaged_state_is_passed_over_and_two_are_a_loud_end(stage: Stage) -> None:
    """User case D-59, the learner's side."""
    stage.write(learner={"save_every_s": 0.2})
    syncer, first = stage.sync(), stage.learner("a")
    merged(stage, syncer, first)
    stage.until(lambda: len(SavedStates(stage.run_dir, "a").files()) >= 2, "two saves", syncer, first)
    first.kill()
    newest, *_ = SavedStates(stage.run_dir, "a").files()  # three, where it died before it removed the oldest
    newest.write_bytes(newest.read_bytes()[:-100])
    second = stage.learner("a")
    stage.until(lambda: "inner state restored" in second.errors, "the older state", syncer, second)
    assert "a saved state is passed over" in second.errors
    second.kill()
    for path in SavedStates(stage.run_dir, "a").files():
        path.write_bytes(b"x")
    third = stage.learner("a")
    assert third.wait() == 2
    assert "a cannot go on from its saved state" in third.errors
    assert "remove it to start over" in third.errors
    assert "Traceback" not in third.errors
    stage.end(syncer)
