"""What is seen while a demo runs: a live picture of the fleet on a terminal, a plain line every few seconds without.

Rule: everything goes to standard error, so that standard output holds the report and nothing else.
"""

import json
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zdiloco.demo.story import Story

PLAIN_EVERY_S = 4.0
TAIL_BYTES = 8192


class Plain:
    """Lines: one for every event, one every `PLAIN_EVERY_S` seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said_at = float("-inf")

    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, story: Story, happened: str) -> None:
        """Say what has happened, or, from time to time, how things stand."""
        now = time.monotonic()
        if happened:
            self._say(f"{now - story.began_at:6.1f} s  {happened}")
        elif now - self._said_at >= PLAIN_EVERY_S:
            self._say(f"{now - story.began_at:6.1f} s  {summary(story)}")
        else:
            return
        self._said_at = now

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class OnTerminal:
    """A bar of merged tokens, a row a learner, and what has happened."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._events: list[str] = []

    def __enter__(self) -> "OnTerminal":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, story: Story, happened: str) -> None:
        """Draw anew."""
        seconds = time.monotonic() - story.began_at
        if happened:
            self._events.append(f"{seconds:6.1f} s  {happened}")
        bar = ProgressBar(total=1.0, completed=min(1.0, story.share), width=48)
        head = Text(f"{seconds:6.1f} s  {merged(story)}")
        self._live.update(Group(*(Text(line, style="dim") for line in self._events), bar, head, _fleet(story)))


def progress_for(stream: Any = None) -> AbstractContextManager[Any]:
    """The display that suits the stream (standard error when None): live on a terminal, else lines."""
    console = Console(file=stream or sys.stderr)
    return OnTerminal(console) if console.is_terminal else Plain(console)


def merged(story: Story) -> str:
    """How far the run is."""
    if not story.status:
        return "waiting for the syncer"
    return f"merged {story.share:6.1%} of {story.plot.target_tokens:,} tokens in {story.status['rounds']:,} rounds"


def summary(story: Story) -> str:
    """How the run stands, in one line."""
    parts = (f"{name} {steps} steps, loss {loss:.2f}" for name, steps, loss in latest(story))
    return "; ".join([merged(story), *parts])


def latest(story: Story) -> list[tuple[str, int, float]]:
    """(name, steps of its newest process, newest loss) of every learner that has noted some."""
    found = []
    for name in story.plot.names:
        paths = list((story.run_dir / "learners").glob(f"{name}-*.jsonl"))
        if paths:
            line = _last_line(max(paths, key=lambda path: path.stat().st_mtime))
            if line.get("kind") == "steps":
                found.append((name, line["step"], line["loss"]))
    return found


def _last_line(path: Path) -> dict[str, Any]:
    """The last whole line of notes; empty where there is none yet."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for text in reversed(lines):
        try:
            found = json.loads(text)
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _fleet(story: Story) -> Table:
    """A row for every member that the syncer knows; the losses are from the learners' own notes."""
    table = Table("learner", "state", "steps", "steps/s", "rounds", "merged tokens", "loss", box=None)
    losses = {name: f"{loss:.3f}" for name, _, loss in latest(story)}
    for each in story.status.get("learners", ()):
        table.add_row(
            each["name"],
            each["state"],
            f"{each['step']:,}",
            f"{each['steps_per_s']:.1f}",
            f"{each['rounds']:,}",
            f"{each['merged_tokens']:,.0f}",
            losses.get(each["name"], ""),
        )
    return table
