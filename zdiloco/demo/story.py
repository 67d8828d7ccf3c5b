"""The demo's plot: a syncer and three learners; one is killed a third of the way, comes back later, and all finish.

Rule: what happens next follows from the merged tokens that the syncer reports over the wire, never from a guess of
time. Every wait has an end: a child that dies unasked, or a minute without progress, ends the demo with what the logs
say.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zdiloco.config import RunConfig, from_tree, to_toml
from zdiloco.demo.processes import Child, DemoFailed, end_all, free_port_base
from zdiloco.errors import ConfigError, LinkError
from zdiloco.node.query import Query

TARGET_TOKENS = 2_000_000
MIN_TOKENS = 400_000
"""Fewer would be merged before the killed learner is back, and before the model has learned what the checks ask for."""
STALL_S = 60.0
"""Longest time without progress: a start, a merged token, an end."""
POLL_S = 0.25
ANSWER_S = 1.0
FAREWELL_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """What is to happen. `slowdown`: per learner; kill and return at these parts of `target_tokens`."""

    task: str = "stdlib-bytes"
    target_tokens: int = TARGET_TOKENS
    slowdown: tuple[tuple[str, float], ...] = (("a", 1.0), ("b", 1.0), ("c", 3.0))
    victim: str = "b"
    kill_at: float = 1 / 3
    return_at: float = 0.55

    def __post_init__(self) -> None:
        if not MIN_TOKENS <= self.target_tokens <= 10**12:
            raise ConfigError(
                f"--tokens is {self.target_tokens:,}; allowed is {MIN_TOKENS:,} to 10^12: "
                "a shorter run is over before the killed learner is back"
            )
        if self.victim not in self.names or not 0 < self.kill_at < self.return_at < 1:
            raise ConfigError(f"{self.victim} must be one of {self.names}; 0 < kill_at < return_at < 1 must hold")

    @property
    def names(self) -> tuple[str, ...]:
        """The learners, the place of each being its shard."""
        return tuple(name for name, _ in self.slowdown)


@dataclass(slots=True)
class Story:
    """What has happened so far; times are monotonic seconds, 0.0 where it has not happened."""

    run_dir: Path
    config: RunConfig
    plot: Plot
    began_at: float
    training_at: float = 0.0
    killed_at: float = 0.0
    returned_at: float = 0.0
    ended_at: float = 0.0
    share: float = 0.0
    status: dict[str, Any] = field(default_factory=dict)


Watch = Callable[[Story, str], None]
"""Called at every turn with the story so far; the text says what has just happened, empty: time has passed."""


def is_ending(status: dict[str, Any]) -> bool:
    """Whether the target was reached when the syncer answered: no new rounds open, the last checkpoint comes."""
    return status.get("phase") in ("draining", "saving")


def prepare(run_dir: Path, plot: Plot) -> RunConfig:
    """Make the run folder and its run.toml. Raises ConfigError where the folder cannot be used, or is not empty."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        if any(run_dir.iterdir()):
            raise ConfigError(f"{run_dir} is not empty: a demo wants a folder of its own")
        config = from_tree(
            {
                "run": {"name": "demo", "dir": str(run_dir), "target_tokens": plot.target_tokens},
                "task": {"name": plot.task, "num_shards": len(plot.names)},
                "net": {"port": free_port_base()},
            }
        )
        (run_dir / "logs").mkdir()
        (run_dir / "run.toml").write_text(to_toml(config), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{run_dir} cannot be used: {error.strerror}") from error
    return config


class Stage:
    """Carries the plot out. Afterwards every child has ended, however the story went."""

    def __init__(self, run_dir: Path, plot: Plot, watch: Watch) -> None:
        self.story = Story(
            run_dir=run_dir, config=prepare(run_dir, plot), plot=plot, began_at=time.monotonic()
        )
        self._plot, self._watch = plot, watch
        self._children: dict[str, Child] = {}
        self._moved_at = time.monotonic()

    def play(self) -> Story:
        """Play to the end. Raises DemoFailed where something else happens, ConfigError where a child says so."""
        with ExitStack() as cleanup:
            cleanup.callback(lambda: end_all(list(self._children.values())))
            query = cleanup.enter_context(Query(self.story.config.net))
            self._start("syncer", ["sync", str(self.story.run_dir / "run.toml"), "--fresh"])
            for name in self._plot.names:
                self._start_learner(name)
            self._watch(self.story, "started a syncer and " + ", ".join(self._plot.names))
            while self._children["syncer"].exit_code is None:
                self._turn(query)
            self._finish()
        return self.story

    def _start(self, name: str, arguments: list[str]) -> None:
        self._children[name] = Child(name, arguments, self.story.run_dir / "logs" / f"{name}.log")

    def _start_learner(self, name: str) -> None:
        shard = self._plot.names.index(name)
        slowdown = dict(self._plot.slowdown)[name]
        arguments = ["learner", str(self.story.run_dir / "run.toml"), "--name", name, "--shard", str(shard)]
        self._start(name, [*arguments, "--slowdown", str(slowdown)])

    def _turn(self, query: Query) -> None:
        """Ask how far the run is, and do what the plot says at this point."""
        asked_at = time.monotonic()
        with suppress(LinkError):  # it starts, or ends, or is dead: the children's exit codes say which
            self._hear(query.ask(ANSWER_S))
        self._check_children()
        now = time.monotonic()
        if now - self._moved_at > STALL_S:
            self._fail(f"nothing has moved for {STALL_S:g} s", self._children.values())
        self._act(now)
        self._watch(self.story, "")
        time.sleep(max(0.0, asked_at + POLL_S - time.monotonic()))

    def _hear(self, status: dict[str, Any]) -> None:
        story, now = self.story, time.monotonic()
        share = float(status["progress"])
        if is_ending(status) and not is_ending(story.status):
            self._watch(story, "the target is reached; open rounds close")
        if not story.status or share > story.share:
            self._moved_at = now
        if share > 0 and not story.training_at:
            story.training_at = now
        story.status, story.share = status, max(story.share, share)

    def _act(self, now: float) -> None:
        story, plot = self.story, self._plot
        if not story.killed_at and story.share >= plot.kill_at:
            self._children[plot.victim].kill()
            story.killed_at = time.monotonic()
            self._watch(story, f"killed {plot.victim} (SIGKILL)")
        elif story.killed_at and not story.returned_at and story.share >= plot.return_at:
            self._start_learner(plot.victim)
            story.returned_at = now
            self._moved_at = now
            self._watch(story, f"started {plot.victim} again")

    def _check_children(self) -> None:
        """Nobody may have failed, or have been killed, save the victim; who leaves in order when it is over, may."""
        for name, child in self._children.items():
            dead_as_told = name == self._plot.victim and self.story.killed_at and not self.story.returned_at
            if child.exit_code and not dead_as_told:
                self._fail(f"{name} ended with code {child.exit_code}", [child], child.exit_code)

    def _finish(self) -> None:
        """The syncer has ended: the learners end by themselves."""
        story = self.story
        story.ended_at = time.monotonic()
        ends = story.ended_at + FAREWELL_S
        self._check_children()
        for child in self._children.values():
            code = child.wait(max(0.0, ends - time.monotonic()))
            dead_as_told = child.name == self._plot.victim and not story.returned_at
            if code != 0 and not dead_as_told:
                said = "still runs" if code is None else f"ended with code {code}"
                self._fail(f"the run is over, but {child.name} {said}", [child], code)
        self._watch(story, "the run is over")

    def _fail(self, what: str, children: Iterable[Child], code: int | None = None) -> None:
        """End the demo: with the child's own words where it blames the user's input, else with its last log lines."""
        told = list(children)
        if code == ConfigError.exit_code:
            last = told[0].last_lines(1).removeprefix("zdiloco: ")
            raise ConfigError(f"{told[0].name}: {last}")
        logs = "\n".join(f"--- {child.log}\n{child.last_lines()}" for child in told)
        raise DemoFailed(f"{what}; the logs are in {self.story.run_dir / 'logs'}", logs)
