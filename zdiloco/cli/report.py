"""`zdiloco report`: how well a run used its learners, and its strip chart, from its trace."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zdiloco.cli.columns import Row, table
from zdiloco.cli.options import log_level, trace_place

if TYPE_CHECKING:
    from zdiloco.goodput import Figures, LearnerFigures, Spread


@click.command()
@trace_place
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the strip chart: a .png, .pdf or .svg file."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@log_level
def report(place: Path, plot: Path | None, as_json: bool) -> None:
    """Tell how a run went: goodput, participation, staleness, quorum and grace, learner by learner.

    RUN_DIR|TRACE is the run folder of a syncer, which may still be at work, or the file of a trace, real or simulated.
    The chart has the training loss of ready-made learners, too, where their own logs are in RUN_DIR/learners.
    """
    from zdiloco import plots, strip
    from zdiloco.demo.learner_log import losses_of
    from zdiloco.goodput import figures_of
    from zdiloco.trace import read_trace

    if plot is not None:
        plots.check_name(plot)
    records = read_trace(place)
    found = figures_of(records)
    if plot is not None:
        strip.draw(records, plot, losses_of(place) if place.is_dir() else ())
    if as_json:
        click.echo(json.dumps({**found.to_obj(), "plot": str(plot) if plot else None}, indent=2))
        return
    click.echo("\n".join(line.rstrip() for line in report_text(found)))
    if plot is not None:
        click.echo(f"\nstrip chart {plot}")


def report_text(found: "Figures") -> list[str]:
    """The lines for people."""
    head = [
        f"{found.rounds:,} rounds of {mean(found.participants)} learners on average in {found.seconds:,.1f} s",
        f"goodput {share(found.goodput)}, uptime {share(found.uptime)}, participation {share(found.participation)}; "
        f"{found.merged_tokens:,.0f} tokens merged",
        *([f"INCOMPLETE: {found.lost_lines:,} lines of the journal were lost"] if found.lost_lines else []),
    ]
    return [*head, "", *table(_spreads(found)), "", *table(_learners(found.learners))]


def _spreads(found: "Figures") -> list[Row]:
    rows: list[Row] = [("of each round", "mean", "9 in 10 at most", "most")]
    for what, each in (
        ("staleness [versions]", found.staleness),
        ("call to quorum [s]", found.quorum_s),
        ("grace [s]", found.grace_s),
        ("close to publication [s]", found.sync_s),
        ("between two calls of a fragment [s]", found.period_s),
    ):
        cells = (each.mean, each.p90, each.most) if each else (None, None, None)
        rows.append((what, *("-" if cell is None else f"{cell:.3f}" for cell in cells)))
    return rows


def _learners(learners: "tuple[LearnerFigures, ...]") -> list[Row]:
    rows: list[Row] = [
        ("learner", "processes", "lived s", "stalled s", "dead s", "steps", "trained", "merged", "share", "rounds",
         "of", "staleness", "answer s", "late", "declined")
    ]  # fmt: skip
    for each in learners:
        rows.append(
            (
                each.name,
                str(each.processes),
                f"{each.seconds:.1f}",
                f"{each.stalled_s:.1f}",
                f"{each.dead_s:.1f}",
                f"{each.steps:,}",
                "-" if each.trained is None else f"{each.trained:,}",
                f"{each.merged_tokens:,.0f}",
                share(each.merged_share),
                f"{each.rounds:,}",
                f"{each.of_rounds:,}",
                mean(each.staleness),
                mean(each.answer_s, 3),
                f"{each.late:,}",
                f"{each.declined:,}",
            )
        )
    return rows


def mean(found: "Spread | None", digits: int = 2) -> str:
    """The mean, or a dash where there is none."""
    return f"{found.mean:.{digits}f}" if found else "-"


def share(value: float | None) -> str:
    """A share of one, or a dash where it is not known."""
    return "-" if value is None else f"{value:.3f}"
