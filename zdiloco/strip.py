"""The strip chart of a run, real or simulated: every learner over time, and every round from its call to its close.

Rule: drawn from a trace, and from losses where somebody has noted them. A learner trains, stalls (it is heard and makes
no step), is not heard (and is again later: stopped, or cut off), is dead (it ended in no order, and nobody of its name
is back yet), or is not there; a dark tick is a merge that holds something of it. Learners of one region stand together.
Faults of a simulated run are red.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zdiloco import plots, trace
from zdiloco.lives import Part, Span, joined_spans, parts_of, without

MOST_ROWS = 100
"""More learners than this are not told apart on one sheet: the first by name are drawn."""
COLOURS = {
    "training": "#8fc9a0", "stalled": "#f0b429", "silent": "#7b6d8d", "dead": "#b9b9b9", "merged": "#1d3557",
    "fault": "#d62828",
}  # fmt: skip
WORDS = {"silent": "not heard"}
"""What the legend says, where that is not the key."""
JOINED = {"marker": ">", "linestyle": "none", "color": "black", "markersize": 6}
MOST_NAMED = 40
"""More faults than these are drawn without their names."""
MOST_LOSSES = 10
"""Losses of more processes than these are drawn without their names."""
Losses = Sequence[tuple[str, Sequence[tuple[float, float]]]]
"""Of each process its learner's name, and its loss at some moments of wall time: (seconds since 1970, loss)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """What is drawn of one learner: spans of time, and moments; seconds since the beginning.

    `region`: where its newest process says it is; `joined`: when each of its processes was welcomed.
    """

    name: str
    region: str = ""
    training: list[Span] = field(default_factory=list)
    stalled: list[Span] = field(default_factory=list)
    silent: list[Span] = field(default_factory=list)
    dead: list[Span] = field(default_factory=list)
    joined: list[float] = field(default_factory=list)
    merged: list[float] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Name, and region."""
        return f"{self.name} ({self.region})" if self.region else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """The whole picture. `rounds`: (fragment, called, closed); `starts`: when syncer processes began; `faults`: (when,
    to whom, what) of a simulated run; `losses`: as they were given, their times in seconds since the beginning.
    """

    strips: list[Strip]
    rounds: list[tuple[int, float, float]]
    starts: list[float]
    faults: list[tuple[float, str, str]]
    losses: list[tuple[str, list[tuple[float, float]]]]
    seconds: float
    left_out: int


def chart_of(records: Sequence[trace.Record], losses: Losses = ()) -> Chart:
    """Work out what is to be drawn. Losses are left out where the trace tells no wall time."""
    parts = parts_of(records)
    origin = _origin(parts)
    shifts = _shifts(parts, origin)
    shown = [] if origin is None else [(who, [(at - origin, loss) for at, loss in told]) for who, told in losses]
    regions = {life.who: life.region for part in parts for life in part.lives}
    names = sorted(regions, key=lambda name: (regions[name], name))
    strips = {name: Strip(name=name, region=regions[name]) for name in names[:MOST_ROWS]}
    rounds, starts, faults = [], [], []
    for part, shift in zip(parts, shifts, strict=True):
        _add(strips, part, shift)
        starts.append(part.began + shift)
        told = [record for record in part.records if isinstance(record, trace.Fault)]
        faults += [(fault.t + shift, fault.who, fault.what) for fault in told]
        rounds += [(merge.fragment, merge.called_at + shift, merge.t + shift) for merge in part.merges()]
    seconds = max((part.ended + shift for part, shift in zip(parts, shifts, strict=True)), default=0.0)
    left_out = len(names) - len(strips)
    return Chart(
        strips=list(strips.values()), rounds=rounds, starts=starts, faults=faults, seconds=seconds, left_out=left_out,
        losses=shown,
    )  # fmt: skip


def _add(strips: dict[str, Strip], part: Part, shift: float) -> None:
    def moved(spans: Sequence[Span]) -> list[Span]:
        return [(a + shift, b + shift) for a, b in spans]

    for life in part.lives:
        strip = strips.get(life.who)
        if strip is not None:
            stalls, silent = life.stalls(), joined_spans(life.silent)
            strip.silent.extend(moved(silent))
            strip.stalled.extend(moved([part for span in stalls for part in without(span, silent)]))
            if not life.before:
                strip.joined.append(life.began + shift)
            if life.marks:
                strip.training.extend(moved(without((min(life.marks[0].t, life.ended), life.ended), stalls)))
    for name, deaths in part.deaths().items():
        if name in strips:
            strips[name].dead.extend(moved(deaths))
    for merge in part.merges():
        for member in merge.members:
            if member.name in strips:
                strips[member.name].merged.append(merge.t + shift)


def _wall(part: Part) -> float | None:
    """What to add to a part's times for wall time; None: it is not told."""
    return part.start.wall - part.start.t if part.start and part.start.wall is not None else None


def _origin(parts: Sequence[Part]) -> float | None:
    """The beginning, in wall time; None: some part does not tell it."""
    walls = [_wall(part) for part in parts]
    if None in walls:
        return None
    return min((part.began + (wall or 0.0) for part, wall in zip(parts, walls, strict=True)), default=None)


def _shifts(parts: Sequence[Part], origin: float | None) -> list[float]:
    """What to add to each part's times, so that all are seconds since the beginning: by wall time, if it is told."""
    if origin is not None:
        return [(_wall(part) or 0.0) - origin for part in parts]
    shifts, at = [], 0.0
    for part in parts:
        shifts.append(at - part.began)
        at += part.ended - part.began
    return shifts


def draw(records: Sequence[trace.Record], path: Path, losses: Losses = ()) -> Path:
    """Write the chart as PNG, PDF or SVG. Raises ConfigError (no matplotlib, another name), StoreError (the disk)."""
    plots.check_name(path)
    chart = chart_of(records, losses)
    rows = max(1, len(chart.strips))
    fragments = 1 + max((fragment for fragment, _, _ in chart.rounds), default=0)
    heights = [0.35 * rows + 0.6, min(3.0, 0.12 * fragments + 0.8), *([2.0] if chart.losses else [])]
    with plots.figure(12, sum(heights) + 0.6) as made:
        above, below, *rest = sheets = made.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        _learners(above, chart)
        _rounds(below, chart, fragments)
        _faults(above, below, chart)
        for axes in rest:
            _losses(axes, chart)
        sheets[-1].set_xlabel("seconds; a dashed line: another syncer process begins")
        for axes in sheets:
            axes.grid(alpha=0.25, axis="x")
            for start in chart.starts[1:]:
                axes.axvline(start, color="black", linestyle="--", linewidth=0.9)
        plots.save(made, path)
    return path


def _learners(axes: Any, chart: Chart) -> None:
    for row, strip in enumerate(chart.strips):
        for what in ("training", "stalled", "silent", "dead"):
            bars = [(a, b - a) for a, b in getattr(strip, what)]
            axes.broken_barh(bars, (row - 0.38, 0.76), color=COLOURS[what], linewidth=0)
        axes.vlines(strip.merged, row - 0.38, row - 0.05, color=COLOURS["merged"], linewidth=0.5)
        axes.plot(strip.joined, [row] * len(strip.joined), **JOINED)
    for row, (one, following) in enumerate(itertools.pairwise(chart.strips)):
        if one.region != following.region:
            axes.axhline(row + 0.5, color="black", linewidth=0.6)
    for what, colour in COLOURS.items():
        if what != "fault" or chart.faults:
            thick, text = what not in ("merged", "fault"), WORDS.get(what, what)
            axes.plot([], [], color=colour, linewidth=6 if thick else 1.5, label=text)
    axes.plot([], [], **JOINED, label="joins")
    axes.set_yticks(range(len(chart.strips)), [strip.label for strip in chart.strips], parse_math=False)
    axes.set_ylim(max(1, len(chart.strips)) - 0.4, -0.6)
    axes.set_xlim(0, max(chart.seconds, 1e-3))
    more = f", {chart.left_out:,} more are not drawn" if chart.left_out else ""
    axes.set_ylabel(f"learners{more}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=7)


def _losses(axes: Any, chart: Chart) -> None:
    """What each process has noted of its training loss."""
    named = len(chart.losses) <= MOST_LOSSES
    for name, told in chart.losses:
        look = {"linewidth": 1.0} if named else {"linewidth": 0.5, "color": COLOURS["merged"]}
        (line,) = axes.plot([at for at, _ in told], [loss for _, loss in told], **look)
        if named:
            line.set_label(name)
    if named:
        axes.legend(loc="upper right", frameon=False, ncols=len(chart.losses), fontsize=8)
    axes.set_ylabel("training loss")


def _faults(above: Any, below: Any, chart: Chart) -> None:
    """One of a learner is on its strip; one of the syncer or of a region goes through everything."""
    colour, named = COLOURS["fault"], len(chart.faults) <= MOST_NAMED
    rows = {strip.name: row for row, strip in enumerate(chart.strips)}
    for at, who, what in chart.faults:
        row = rows.get(who)
        if row is None:
            for axes in (above, below):
                axes.axvline(at, color=colour, linestyle=":", linewidth=0.9)
        else:
            above.vlines([at], row - 0.38, row + 0.38, color=colour, linewidth=1.5)
        if named:
            text = {"s": f" {what}", "fontsize": 6, "color": colour}
            if row is None:
                below.text(at, 0.0, rotation=90, va="top", **text)
            else:
                above.text(at, row + 0.36, va="bottom", **text)


def _rounds(axes: Any, chart: Chart, fragments: int) -> None:
    rows, called, closed = zip(*chart.rounds, strict=True) if chart.rounds else ((), (), ())
    axes.hlines(rows, called, closed, color=COLOURS["merged"], linewidth=2.0)
    axes.plot(closed, rows, "|", color=COLOURS["merged"], markersize=4, linestyle="none")
    axes.set_ylim(fragments - 0.4, -0.6)
    axes.set_yticks(range(0, fragments, 1 + fragments // 12))
    axes.set_ylabel(f"fragment, in\n{len(chart.rounds):,} rounds")
