"""The journal of a run while it grows: who joined when, and whose work each round merged.

Rule: it reads what the syncers write, a whole line at a time, and knows nothing else. Times are monotonic seconds,
which all processes of one machine share.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zdiloco.trace import FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something of one process: `t`, and its incarnation (empty: the syncer)."""

    t: float
    incarnation: str = ""


class Events:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._events: list[Event] = []

    def add(self, event: Event) -> None:
        """Take one in; the times of one machine only grow."""
        self.times.append(max(event.t, self.times[-1] if self.times else event.t))
        self._events.append(event)

    def first(self, since: float, incarnation: str = "") -> float | None:
        """The time of the first one after `since`, of this incarnation if one is named; None: there is none yet."""
        return next((event.t for event in self.after(since) if incarnation in ("", event.incarnation)), None)

    def after(self, since: float) -> list[Event]:
        """All after `since`, in order."""
        return self._events[bisect_right(self.times, since) :]

    def newest(self, since: float, until: float = math.inf) -> Event | None:
        """The last one until `until`, if it is after `since`."""
        place = bisect_right(self.times, until) - 1
        return self._events[place] if place >= 0 and self.times[place] > since else None

    def __len__(self) -> int:
        return len(self._events)


class Chronicle:
    """`look` reads what has been written since; the fields are what was read so far, learners by name."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE
        self._at = 0
        self._torn = b""
        self.started, self.opened, self.merges = Events(), Events(), Events()
        self.joined: dict[str, Events] = {}
        self.arrived: dict[str, Events] = {}
        self.merged: dict[str, Events] = {}
        self._seen: dict[str, dict[str, float]] = {}  # of each name: incarnation -> when it was told of first

    def look(self) -> None:
        """Take in the lines that have been written since the last look."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
            self._at += len(data)
            *lines, self._torn = (self._torn + data).split(b"\n")
            for line in lines:
                with suppress(ValueError):  # half of a line, where a kill came between
                    self._take(json.loads(line))

    def _take(self, line: Mapping[str, Any]) -> None:
        kind, t = line["kind"], line["t"]
        if kind in ("start", "opened"):
            (self.started if kind == "start" else self.opened).add(Event(t=t))
        elif kind == "joined":
            self._of(self.joined, line["who"], t, line["incarnation"])
        elif kind == "arrived":
            self.arrived.setdefault(line["who"], Events()).add(Event(t=t))
        elif kind == "merge":
            self.merges.add(Event(t=t))
            for name, incarnation, *_ in line["members"]:
                self._of(self.merged, name, t, incarnation)

    def _of(self, events: dict[str, Events], name: str, t: float, incarnation: str) -> None:
        events.setdefault(name, Events()).add(Event(t=t, incarnation=incarnation))
        self._seen.setdefault(name, {}).setdefault(incarnation, t)

    def merged_of(self, name: str, since: float, started_at: float) -> float | None:
        """When work of the newest process of this name was merged first after `since`; it was started at `started_at`.

        None: not yet. What was merged of an incarnation that was seen before that start is a former process's work.
        """
        older = {key for key, seen_at in self._seen.get(name, {}).items() if seen_at <= started_at}
        merged = self.merged.get(name, Events())
        return next((event.t for event in merged.after(since) if event.incarnation not in older), None)
