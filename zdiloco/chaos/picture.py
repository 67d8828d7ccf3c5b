"""The picture of a run under chaos: loss of every learner, every process's life as a strip, each disturbance marked.

Rule: drawn without a display, from what was noted; it decides nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zdiloco import plots
from zdiloco.chaos.director import Done
from zdiloco.chaos.script import SYNCER, Kind
from zdiloco.demo.learner_log import Notes
from zdiloco.demo.picture import COLOURS, smooth

HUES: Mapping[str, tuple[Kind, ...]] = {
    "#b2182b": (Kind.KILL_SYNCER, Kind.KILL_LEARNER, Kind.KILL_BOTH, Kind.COLD, Kind.STORM),
    "#7b6d8d": (Kind.ASK,),
    "#e08214": (Kind.HOLD, Kind.STOP),
    "#35978f": (Kind.REFUSE, Kind.HOLE, Kind.RESET),
    "#8c6d31": (Kind.FULL, Kind.SLOW, Kind.CLOCK),
}
MEANING = ("killed", "asked to leave", "stopped", "cut off", "disk or clock")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What is drawn. Times are monotonic seconds; `lives`: (name, from, to) of every process, `merged_at`: rounds."""

    names: tuple[str, ...]
    notes: Sequence[Notes]
    lives: Sequence[tuple[str, float, float]]
    done: Sequence[Done]
    merged_at: Sequence[float]
    began_at: float
    ended_at: float
    loss_after: float
    seed: int


def draw(scene: Scene, path: Path) -> Path:
    """Write the picture as PNG. Raises ConfigError where matplotlib is missing, StoreError where the disk refuses."""
    with plots.figure(12, 7.4) as figure:
        above, middle, below = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.0, 1.7))
        _losses(above, scene)
        _rounds(middle, scene)
        _lives(below, scene)
        for axes in (above, middle):
            _marks(axes, scene)
        above.set_title(f"{len(scene.done)} disturbances, seed {scene.seed}", fontsize=10, loc="left")
        above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=len(scene.names) + 1)
        plots.save(figure, path)
    return path


def _losses(axes: Any, scene: Scene) -> None:
    """Smoothed training loss of each process; at the end the merged model's validation loss."""
    named: set[str] = set()
    lowest = scene.loss_after
    for notes in scene.notes:
        if notes.loss:
            label = notes.name if notes.name not in named else None
            named.add(notes.name)
            times = [t - scene.began_at for t, _, _ in notes.loss]
            losses = smooth([loss for _, _, loss in notes.loss])
            lowest = min(lowest, *losses)
            axes.plot(times, losses, color=_colour(scene, notes.name), label=label, linewidth=1.2)
    end = scene.ended_at - scene.began_at
    axes.plot([end], [scene.loss_after], "*", color="black", markersize=12, label="merged model (validation)")
    axes.set_ylabel("loss [nats per byte]")
    axes.set_ylim(bottom=lowest - 0.15, top=4.5)
    axes.grid(alpha=0.25)


def _rounds(axes: Any, scene: Scene) -> None:
    """Rounds merged in each second."""
    end = max(1.0, scene.ended_at - scene.began_at)
    axes.hist([t - scene.began_at for t in scene.merged_at], bins=max(1, round(end)), range=(0, end), color="#555555")
    axes.set_ylabel("rounds\neach second")


def _lives(axes: Any, scene: Scene) -> None:
    """A strip for every process, a row for every name; what was done to it lies on top."""
    rows = (*reversed(scene.names), SYNCER)
    for name, since, until in scene.lives:
        colour = "#444444" if name == SYNCER else _colour(scene, name)
        axes.barh(rows.index(name), until - since, left=since - scene.began_at, height=0.62, color=colour, alpha=0.75)
    for done in scene.done:
        since, width = done.began_at - scene.began_at, max(0.15, done.healed_at - done.began_at)
        for name in done.deed.whom:
            axes.barh(rows.index(name), width, left=since, height=0.9, color=_hue(done.deed.kind))
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel("seconds since the first merge of everybody")
    from matplotlib.patches import Patch

    handles = [Patch(color=hue, label=word) for hue, word in zip(HUES, MEANING, strict=True)]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.28), frameon=False, ncols=len(handles))


def _marks(axes: Any, scene: Scene) -> None:
    for done in scene.done:
        since, until = done.began_at - scene.began_at, done.healed_at - scene.began_at
        axes.axvspan(since, max(until, since + 0.15), color=_hue(done.deed.kind), alpha=0.25, linewidth=0)


def _hue(kind: Kind) -> str:
    return next(hue for hue, kinds in HUES.items() if kind in kinds)


def _colour(scene: Scene, name: str) -> str:
    return COLOURS[scene.names.index(name) % len(COLOURS)]
