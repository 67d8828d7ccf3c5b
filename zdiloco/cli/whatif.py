"""`zdiloco whatif`: a recorded run decided again under other settings."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zdiloco.cli.columns import Row, table
from zdiloco.cli.options import log_level, trace_place
from zdiloco.cli.report import mean, share

if TYPE_CHECKING:
    from zdiloco.whatif.compare import Row as Compared


def _numbers(kind: Callable[[str], float]) -> Callable[..., tuple[float, ...]]:
    """Reads the numbers of a text such as '1,2,4'."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...]:
        try:
            return tuple(kind(each) for each in value.split(",")) if value is not None else ()
        except ValueError:
            what = "whole numbers" if kind is int else "numbers"
            raise click.BadParameter(f"{value!r} is no list of {what}; write them as 1,2,4.") from None

    return read


@click.command()
@trace_place
@click.option("--min-quorum", callback=_numbers(int), metavar="K,K,...", help="Values of sync.min_quorum.")
@click.option("--gamma", callback=_numbers(float), metavar="G,G,...", help="Values of sync.gamma, 0 to 1.")
@click.option("--sync-period", callback=_numbers(int), metavar="H,H,...", help="Values of sync.sync_period.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@log_level
def whatif(
    place: Path, as_json: bool, min_quorum: tuple[int, ...], gamma: tuple[float, ...], sync_period: tuple[int, ...]
) -> None:
    """Decide a recorded run again, with every combination of these settings, side by side.

    The learners step, fall silent, die and answer calls as recorded; calls, closes and grace windows are decided anew
    by the same code as in a run. The row 'decided again' has the recorded settings: so far it can be believed.
    """
    from zdiloco.trace import read_trace
    from zdiloco.whatif.compare import Grid, compare

    grid = Grid(min_quorum=min_quorum, gamma=gamma, sync_period=sync_period)
    rows = compare(read_trace(place), grid)
    if as_json:
        click.echo(json.dumps({"rows": [row.to_obj() for row in rows]}, indent=2))
    else:
        click.echo("\n".join(line.rstrip() for line in table(whatif_rows(rows))))


def whatif_rows(rows: "Sequence[Compared]") -> list[Row]:
    """The comparison for people: a heading, and a line for each row."""
    found: list[Row] = [
        ("", "K", "gamma", "H", "rounds", "learners", "participation", "staleness", "quorum s", "grace s", "period s",
         "goodput")
    ]  # fmt: skip
    for row in rows:
        figures = row.figures
        found.append(
            (
                row.what,
                str(row.settings["min_quorum"]),
                f"{row.settings['gamma']:g}",
                str(row.settings["sync_period"]),
                f"{figures.rounds:,}",
                mean(figures.participants),
                share(figures.participation),
                mean(figures.staleness, 3),
                mean(figures.quorum_s, 3),
                mean(figures.grace_s, 3),
                mean(figures.period_s, 3),
                share(figures.goodput),
            )
        )
    return found
