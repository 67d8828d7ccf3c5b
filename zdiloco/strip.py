"""The strip chart of a run, real or simulated: every learner over time, and every round from its call to its close.

Rule: drawn from a trace alone. A learner trains, stalls (it lives and makes no step), is dead (it ended in no order,
and nobody of its name is back yet), or is not there; a dark tick is a merge that holds something of it. Faults of a
simulated run are red.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zdiloco import plots, trace
from zdiloco.lives import Part, Span, parts_of, without

MOST_ROWS = 100
"""More learners than this are not told apart on one sheet: the first by name are drawn."""
COLOURS = {"training": "#8fc9a0", "stalled": "#f0b429", "dead": "#b9b9b9", "merged": "#1d3557", "fault": "#d62828"}
MOST_NAMED = 40
"""More faults than these are drawn without their names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """What is drawn of one learner: spans of time, and moments; seconds since the beginning."""

    name: str
    training: list[Span]
    stalled: list[Span]
    dead: list[Span]
    merged: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """The whole picture. `rounds`: (fragment, called, closed); `starts`: when syncer processes began; `faults`: (when,
    to whom, what) of a simulated run.
    """

    strips: list[Strip]
    rounds: list[tuple[int, float, float]]
    starts: list[float]
    faults: list[tuple[float, str, str]]
    seconds: float
    left_out: int


def chart_of(records: Sequence[trace.Record]) -> Chart:
    """Work out what is to be drawn."""
    parts = parts_of(records)
    shifts = _shifts(parts)
    names = sorted({life.who for part in parts for life in part.lives})
    strips = {name: Strip(name=name, training=[], stalled=[], dead=[], merged=[]) for name in names[:MOST_ROWS]}
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
        strips=list(strips.values()), rounds=rounds, starts=starts, faults=faults, seconds=seconds, left_out=left_out
    )  # fmt: skip


def _add(strips: dict[str, Strip], part: Part, shift: float) -> None:
    def moved(spans: Sequence[Span]) -> list[Span]:
        return [(a + shift, b + shift) for a, b in spans]

    for life in part.lives:
        strip = strips.get(life.who)
        if strip is not None:
            stalls = life.stalls()
            strip.stalled.extend(moved(stalls))
            if life.marks:
                strip.training.extend(moved(without((min(life.marks[0].t, life.ended), life.ended), stalls)))
    for name, deaths in part.deaths().items():
        if name in strips:
            strips[name].dead.extend(moved(deaths))
    for merge in part.merges():
        for member in merge.members:
            if member.name in strips:
                strips[member.name].merged.append(merge.t + shift)


def _shifts(parts: Sequence[Part]) -> list[float]:
    """What to add to each part's times, so that all are seconds since the beginning: by wall time, if it is told."""
    walls = [part.start.wall - part.start.t if part.start and part.start.wall is not None else None for part in parts]
    if None not in walls:
        origin = min(part.began + (wall or 0.0) for part, wall in zip(parts, walls, strict=True))
        return [(wall or 0.0) - origin for wall in walls]
    shifts, at = [], 0.0
    for part in parts:
        shifts.append(at - part.began)
        at += part.ended - part.began
    return shifts


def draw(records: Sequence[trace.Record], path: Path) -> Path:
    """Write the chart as PNG, PDF or SVG. Raises ConfigError (no matplotlib, another name), StoreError (the disk)."""
    plots.check_name(path)
    chart = chart_of(records)
    rows = max(1, len(chart.strips))
    fragments = 1 + max((fragment for fragment, _, _ in chart.rounds), default=0)
    heights = (0.35 * rows + 0.6, min(3.0, 0.12 * fragments + 0.8))
    with plots.figure(12, sum(heights) + 0.6) as made:
        above, below = made.subplots(2, 1, sharex=True, height_ratios=heights)
        _learners(above, chart)
        _rounds(below, chart, fragments)
        _faults(above, below, chart)
        for axes in (above, below):
            for start in chart.starts[1:]:
                axes.axvline(start, color="black", linestyle="--", linewidth=0.9)
        plots.save(made, path)
    return path


def _learners(axes: Any, chart: Chart) -> None:
    for row, strip in enumerate(chart.strips):
        for what in ("training", "stalled", "dead"):
            bars = [(a, b - a) for a, b in getattr(strip, what)]
            axes.broken_barh(bars, (row - 0.38, 0.76), color=COLOURS[what], linewidth=0)
        axes.vlines(strip.merged, row - 0.38, row - 0.05, color=COLOURS["merged"], linewidth=0.5)
    for what, colour in COLOURS.items():
        if what != "fault" or chart.faults:
            axes.plot([], [], color=colour, linewidth=6 if what not in ("merged", "fault") else 1.5, label=what)
    axes.set_yticks(range(len(chart.strips)), [strip.name for strip in chart.strips])
    axes.set_ylim(max(1, len(chart.strips)) - 0.4, -0.6)
    axes.set_xlim(0, max(chart.seconds, 1e-3))
    more = f", {chart.left_out:,} more are not drawn" if chart.left_out else ""
    axes.set_ylabel(f"learners{more}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=5)
    axes.grid(alpha=0.25, axis="x")


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
    axes.set_xlabel("seconds; a dashed line: another syncer process begins")
    axes.grid(alpha=0.25, axis="x")
