"""The plot is carried out at the right tokens, and every way in which it can go wrong ends it with the reason."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from zdiloco.config import load
from zdiloco.demo import story as stories
from zdiloco.demo.processes import DemoFailed
from zdiloco.demo.story import MIN_TOKENS, Plot, Stage, Story, prepare
from zdiloco.errors import ConfigError, LinkError

PLOT = Plot(target_tokens=500_000)


class World:
    """Stands in for clock, processes and wire. `script`: the run's progress at each question; None: no answer.

    When the script is over the syncer ends, and the learners with it, unless `codes` says how somebody ends.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.script: list[float | None] = []
        self.children: list[FakeChild] = []
        self.asked = 0
        self.codes: dict[str, int | None] = {}
        self.ends_at: dict[str, int] = {}

    def newest(self, name: str) -> "FakeChild":
        return [child for child in self.children if child.name == name][-1]

    def ask(self, timeout_s: float) -> dict[str, Any]:
        self.asked += 1
        for name, question in self.ends_at.items():
            if self.asked == question:
                self.newest(name).exit_code = self.codes[name]
        if self.asked > len(self.script):
            for child in self.children:
                child.exit_code = self.codes.get(child.name, 0) if child.exit_code is None else child.exit_code
            raise LinkError("nobody answers")
        answer = self.script[self.asked - 1]
        if answer is None:
            raise LinkError("nobody answers")
        return {"progress": answer, "phase": "draining" if answer >= 1 else "running"}

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class FakeChild:
    def __init__(self, world: World, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name, self.arguments, self.log = name, list(arguments), log
        self.exit_code: int | None = None
        self.killed = self.asked_to_leave = False
        world.children.append(self)

    def kill(self) -> None:
        self.killed, self.exit_code = True, -9

    def ask(self) -> None:
        self.asked_to_leave, self.exit_code = True, 0

    def wait(self, timeout_s: float) -> int | None:
        return self.exit_code

    def last_lines(self, count: int = 8) -> str:
        return f"zdiloco: the last words of {self.name}"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()

    def sleep(seconds: float) -> None:
        made.now += max(seconds, 0.1)

    monkeypatch.setattr(stories, "Child", lambda *arguments: FakeChild(made, *arguments))
    monkeypatch.setattr(stories, "Query", lambda net: made)
    monkeypatch.setattr(stories.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(stories.time, "sleep", sleep)
    yield made
    assert all(child.exit_code is not None or child.name in made.codes for child in made.children)


@pytest.fixture
def play(world: World, tmp_path: Path) -> Callable[..., tuple[Story, list[str]]]:
    """Play a script to its end; returns the story and what happened."""

    def run(*script: float | None) -> tuple[Story, list[str]]:
        world.script = list(script)
        events: list[str] = []
        story = Stage(tmp_path / "run", PLOT, lambda _, happened: events.append(happened)).play()
        return story, [event for event in events if event]

    return run


def test_the_plot_follows_the_merged_tokens(world: World, play: Callable[..., Any]) -> None:
    story, events = play(None, 0.0, 0.1, 0.33, 0.34, 0.4, 0.54, 0.55, 0.8, 1.0)
    assert events == [
        "started a syncer and a, b, c", "killed b (SIGKILL)", "started b again",
        "the target is reached; open rounds close", "the run is over",
    ]  # fmt: skip
    assert [child.name for child in world.children] == ["syncer", "a", "b", "c", "b"]
    assert world.children[2].killed
    assert world.children[2].arguments == world.children[4].arguments
    assert world.children[0].arguments[0] == "sync"
    assert "--fresh" in world.children[0].arguments
    assert world.children[3].arguments[-4:] == ["--shard", "2", "--slowdown", "3.0"]
    assert 1000 < story.training_at < story.killed_at < story.returned_at < story.ended_at
    assert story.share == 1.0
    assert load(story.run_dir / "run.toml") == story.config


def test_a_run_that_jumps_over_both_marks_still_kills_before_it_returns(play: Callable[..., Any]) -> None:
    story, events = play(0.1, 0.9, 0.95, 1.0)
    assert events[1:3] == ["killed b (SIGKILL)", "started b again"]
    assert story.killed_at < story.returned_at


def test_a_minute_without_progress_ends_it(world: World, play: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(DemoFailed, match="nothing has moved for 60 s") as failed:
        play(0.1, *[0.2] * 1000)
    assert str(tmp_path / "run" / "logs") in str(failed.value)
    assert failed.value.logs.count("the last words of") == 4
    assert 60 < world.now - 1000 < 62
    assert all(child.asked_to_leave for child in world.children)


def test_a_syncer_that_never_answers_ends_it(play: Callable[..., Any]) -> None:
    with pytest.raises(DemoFailed, match="nothing has moved"):
        play(*[None] * 1000)


@pytest.mark.parametrize(("name", "code"), [("a", 1), ("syncer", 1), ("c", -11), ("b", -9)])
def test_who_dies_unasked_ends_it(world: World, play: Callable[..., Any], name: str, code: int) -> None:
    world.codes, world.ends_at = {name: code}, {name: 3}
    with pytest.raises(DemoFailed, match=f"{name} ended with code {code}") as failed:
        play(*[0.1] * 10)
    assert f"the last words of {name}" in failed.value.logs


def test_input_that_cannot_work_is_said_in_the_child_s_own_words(world: World, play: Callable[..., Any]) -> None:
    world.codes, world.ends_at = {"a": 2}, {"a": 3}
    with pytest.raises(ConfigError, match="a: the last words of a"):
        play(*[0.1] * 10)


@pytest.mark.parametrize(("code", "says"), [(None, "but c still runs"), (3, "c ended with code 3")])
def test_who_does_not_end_with_the_run_ends_it(
    world: World, play: Callable[..., Any], code: int | None, says: str
) -> None:
    world.codes = {"c": code}
    with pytest.raises(DemoFailed, match=says):
        play(0.1, 0.4, 0.6, 1.0)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path / "new", PLOT)
    with pytest.raises(ConfigError, match="is not empty"):
        prepare(tmp_path / "new", PLOT)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        prepare(tmp_path / "file", PLOT)


@pytest.mark.parametrize(
    "wrong",
    [{"target_tokens": MIN_TOKENS - 1}, {"victim": "d"}, {"kill_at": 0.6}, {"kill_at": 0.0}, {"return_at": 1.0}],
)
def test_an_impossible_plot_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--tokens is 399,999|must"):
        Plot(**wrong)
