"""The picture of a demo: loss of every learner, who took part in each round, and where one was killed and came back.

Rule: drawn without a display, from the story, the notes and the journal; it decides nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zdiloco import plots
from zdiloco.demo.checks import Lone
from zdiloco.demo.learner_log import Notes

COLOURS = ("#1f77b4", "#d95f02", "#2e8b57", "#7b4fa3", "#8c6d31", "#c2185b")
SMOOTH = 0.15
"""Weight of the newest line in the drawn loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What is drawn. Times are monotonic seconds; `rounds` are lines of the journal; `names` the learners in order."""

    names: tuple[str, ...]
    notes: Sequence[Notes]
    rounds: Sequence[Mapping[str, Any]]
    training_at: float
    killed_at: float
    returned_at: float
    ended_at: float
    victim: str
    loss_after: float
    lone: Lone | None


def draw(scene: Scene, path: Path) -> Path:
    """Write the picture as PNG. Raises ConfigError where matplotlib is missing, StoreError where the disk refuses."""
    with plots.figure(10, 6.4) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
        _losses(above, scene)
        _rounds(below, scene)
        for axes in (above, below):
            _marks(axes, scene)
        above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=len(scene.names) + 2)
        plots.save(figure, path)
    return path


def _losses(axes: Any, scene: Scene) -> None:
    """Smoothed training loss of each process; beside it validation of the merged model, and of one learner alone."""
    named: set[str] = set()
    for notes in scene.notes:
        if not notes.loss:
            continue
        times = [t - scene.training_at for t, _, _ in notes.loss]
        label = notes.name if notes.name not in named else None
        named.add(notes.name)
        axes.plot(times, smooth([loss for _, _, loss in notes.loss]), color=_colour(scene, notes.name), label=label)
    end = scene.ended_at - scene.training_at
    axes.plot([end], [scene.loss_after], "*", color="black", markersize=13, label="merged model (validation)")
    lowest = scene.loss_after
    if scene.lone is not None:
        noise = scene.lone.noise * scene.lone.noise_factor
        axes.errorbar(
            [end], [scene.lone.loss], yerr=[2 * noise], fmt="x", color="gray", capsize=4,
            label=f"one learner alone, {scene.lone.steps} steps",
        )  # fmt: skip
        lowest = min(lowest, scene.lone.loss)
    merged = sorted((t - scene.training_at, 100 * share) for notes in scene.notes for t, share, _ in notes.loss)
    right = axes.twinx()
    right.plot([t for t, _ in merged], [share for _, share in merged], color="gray", linewidth=0.9, alpha=0.7)
    right.set_ylabel("merged tokens [% of the target], gray", color="gray")
    right.set_ylim(0, 104)
    axes.set_ylabel("loss [nats per byte]")
    axes.set_ylim(bottom=lowest - 0.15, top=4.0)
    axes.grid(alpha=0.25)


def _rounds(axes: Any, scene: Scene) -> None:
    """A dot for every learner in every round; how many fragment tokens it brought is the size of the dot."""
    for row, name in enumerate(reversed(scene.names)):
        seen = [(line["t"], member[3]) for line in scene.rounds for member in line["members"] if member[0] == name]
        if seen:
            sizes = [2 + 16 * tokens / max(size for _, size in seen) for _, tokens in seen]
            times = [t - scene.training_at for t, _ in seen]
            axes.scatter(times, [row] * len(seen), s=sizes, color=_colour(scene, name), alpha=0.6, linewidths=0)
    axes.set_yticks(range(len(scene.names)), list(reversed(scene.names)))
    axes.set_ylim(-0.6, len(scene.names) - 0.4)
    axes.set_ylabel(f"in which of\n{len(scene.rounds)} rounds")
    axes.set_xlabel("seconds since the first merge")
    axes.grid(alpha=0.25, axis="x")


def _marks(axes: Any, scene: Scene) -> None:
    for moment, text in ((scene.killed_at, "killed"), (scene.returned_at, "started again")):
        if moment:
            at = moment - scene.training_at
            axes.axvline(at, color="black", linestyle="--", linewidth=0.9)
            place = axes.get_xaxis_transform()
            axes.text(at, 0.97, f" {scene.victim} {text}", transform=place, va="top", fontsize=9)


def _colour(scene: Scene, name: str) -> str:
    return COLOURS[scene.names.index(name) % len(COLOURS)] if name in scene.names else "gray"


def smooth(values: Sequence[float], weight: float = SMOOTH) -> list[float]:
    """Exponential moving average, started at the first value; as long as `values`."""
    result: list[float] = []
    for value in values:
        result.append(value if not result else result[-1] + weight * (value - result[-1]))
    return result
