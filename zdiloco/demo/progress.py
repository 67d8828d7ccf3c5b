"""What is seen while a demo runs: a live picture of the fleet on a terminal, a plain line every few seconds without.

Rule: everything goes to standard error, so that standard output holds the report and nothing else.
"""

import json
import math
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

from zdiloco.demo.story import Story, is_ending

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
    ending = "; the target is reached, open rounds close" if is_ending(story.status) else ""
    share = f"merged {story.share:6.1%} of {story.plot.target_tokens:,} tokens"
    return f"{share} in {story.status['rounds']:,} rounds{ending}"


def summary(story: Story) -> str:
    """How the run stands, in one line."""
    parts = []
    for name, line in latest(story):
        down = is_down(story, name, line)
        parts.append(f"{name} killed" if down else f"{name} {line['step']} steps, loss {line['loss']:.2f}")
    return "; ".join([merged(story), *parts])


def latest(story: Story) -> list[tuple[str, dict[str, Any]]]:
    """(name, newest line of its newest process) of every learner that has noted steps."""
    found = []
    for name in story.plot.names:
        paths = list((story.run_dir / "learners").glob(f"{name}-*.jsonl"))
        lines = [line for line in map(_last_line, paths) if line.get("kind") in ("steps", "end")]
        newest = max(lines, key=lambda line: float(line["t"]), default={})
        if newest.get("kind") == "steps":
            found.append((name, newest))
    return found


def is_down(story: Story, name: str, line: dict[str, Any]) -> bool:
    """Whether this learner has been killed and has noted nothing since; `line`: the newest that it has noted."""
    return name == story.plot.victim and bool(story.killed_at) and float(line["t"]) <= (story.returned_at or math.inf)


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
    notes = dict(latest(story))
    down = {name for name, line in notes.items() if is_down(story, name, line)}
    for each in story.status.get("learners", ()):
        table.add_row(
            each["name"],
            "killed" if each["name"] in down and each["state"] != "joining" else each["state"],
            f"{each['step']:,}",
            f"{each['steps_per_s']:.1f}",
            f"{each['rounds']:,}",
            f"{each['merged_tokens']:,.0f}",
            f"{notes[each['name']]['loss']:.3f}" if each["name"] in notes else "",
        )
    return table
