"""Pictures of what the chips model answers: the table as curves, one fleet as strips, or the rows of a small table.

Rule: drawn without a display, from the answer alone; it decides nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from zdiloco import plots
from zdiloco.errors import ConfigError
from zdiloco.sim import paper
from zdiloco.sim.questions import Answer, FleetAnswer, PaperAnswer, ScavengingAnswer, UnequalAnswer

MOST_STRIPS = 32
"""Learners that are drawn of one fleet, the first ones."""
COLOURS = ("#8c6d31", "#c2185b", "#7b4fa3", "#2e8b57", "#d95f02", "#1f77b4")


def check_path(path: Path) -> None:
    """Raise ConfigError unless a picture can be made and written there; nothing is left behind."""
    plots.check_name(path)
    check_writable("--plot", path)


def check_writable(option: str, path: Path) -> None:
    """Raise ConfigError unless a file can be written there; nothing is left behind."""
    existed = path.exists()
    try:
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be written ({error.strerror})") from error


def draw(answer: Answer, path: Path) -> None:
    """Write the picture, of the kind that its name says. Raises StoreError where the disk refuses."""
    painters: dict[type, Callable[[Any, Any], None]] = {
        FleetAnswer: _fleet, PaperAnswer: _paper, UnequalAnswer: _unequal, ScavengingAnswer: _scavenging,
    }  # fmt: skip
    with plots.figure(9, 5.4) as figure:
        painters[type(answer)](figure.subplots(), answer)
        plots.save(figure, path)


def _paper(axes: Any, answer: PaperAnswer) -> None:
    """Ours as lines, the published ones as dots, filled where they are marked."""
    for system, colour in zip(paper.SYSTEMS, COLOURS, strict=True):
        cells = [cell for cell in answer.cells if cell.system == system.name]
        axes.plot([c.chips for c in cells], [c.goodput for c in cells], color=colour, label=system.name)
        for cell in cells:
            face = colour if cell.mark else "white"
            axes.plot([cell.chips], [cell.paper], "o", color=colour, markerfacecolor=face)
    axes.set_xscale("log")
    axes.set_xticks(paper.SIZES, [f"{size:,}" for size in paper.SIZES])
    axes.minorticks_off()
    axes.set_xlabel("chips")
    axes.set_ylabel("goodput [%]; dots: published, filled: marked")
    axes.set_ylim(0, 102)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)


def _fleet(axes: Any, answer: FleetAnswer) -> None:
    """A strip per learner: where it is interrupted it stands still."""
    shown = answer.trace[:MOST_STRIPS]
    for number, spans in enumerate(shown):
        bars = [(span.start_s / 3600, span.useful_s / 3600) for span in spans]
        axes.broken_barh(bars, (number - 0.4, 0.8), color=COLOURS[-1], linewidth=0)
    mean = answer.outcome
    axes.set_yticks(range(len(shown)))
    axes.set_xlim(0, answer.scenario.hours)
    axes.set_xlabel("virtual hours; white: stands still")
    axes.set_ylabel("learner")
    title = f"{answer.scenario.chips:,} chips: goodput {100 * mean.goodput:.1f} %, uptime {100 * mean.uptime:.2f} %"
    axes.set_title(f"{title} (drawn: seed {answer.seeds[0]})")


def _unequal(axes: Any, answer: UnequalAnswer) -> None:
    names = [row.setting for row in answer.rows]
    axes.barh(names, [row.goodput for row in answer.rows], height=0.4, color=COLOURS[-1], label="goodput [%]")
    in_time = [100 * row.participants * (1 - row.late / 100) / 8 for row in answer.rows]
    places = [index + 0.4 for index in range(len(names))]
    axes.barh(places, in_time, height=0.3, color=COLOURS[-2], label="of all learners in a round, in time [%]")
    axes.invert_yaxis()
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=2)


def _scavenging(axes: Any, answer: ScavengingAnswer) -> None:
    extra = [row.extra for row in answer.rows]
    axes.plot(extra, [row.decoupled for row in answer.rows], color=COLOURS[-1], label="decoupled, ours")
    axes.plot(extra, [row.paper for row in answer.rows], "o", color=COLOURS[-1], label="decoupled, published")
    axes.plot(extra, [row.elastic for row in answer.rows], color=COLOURS[1], label="data-parallel, elastic")
    axes.plot(extra, [row.restarting for row in answer.rows], color=COLOURS[0], label="data-parallel, restarting")
    axes.plot(extra, [row.paper_dp for row in answer.rows], "o", color=COLOURS[0], label="data-parallel, published")
    axes.set_xlabel("extra compute, if it were there all the time [%]")
    axes.set_ylabel("time, relative to no extra")
    axes.set_ylim(0, 1.2)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
