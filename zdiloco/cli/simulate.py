"""`zdiloco simulate`: fleets of millions of chips under failures, the published tables beside ours, and scenarios."""

import json
from pathlib import Path
from typing import Any

import click

from zdiloco.cli.options import log_level
from zdiloco.cli.stories import play_stories

TABLES = {
    "paper": {"hours", "step_time", "slice_chips", "sensitivity"},
    "heterogeneity": {"step_time"},
    "scavenging": {"hours", "step_time"},
}
"""The tables, and which options each takes beside --seeds, --json and --plot."""
STORIES = {"scenario", "chaos", "seed", "trace"}
"""Options of scenarios, beside the same three."""


@click.command()
@click.option("--chips", type=int, help="Chips of the whole fleet.  [default: 1,200,000]")
@click.option("--learners", type=int, help="Learners that they are dealt to.  [default: 8]")
@click.option("--mtbi-hours", type=float, help="Mean time between interruptions of one chip.  [default: 8766, a year]")
@click.option("--hours", type=float, help="Virtual hours.  [default: 24]")
@click.option("--step-time", type=float, help="Seconds of an inner step.  [default: 1]")
@click.option("--min-quorum", type=int, help="K: with fewer learners at work nothing advances.  [default: 1]")
@click.option("--slice-chips", type=int, help="A failed chip takes so many out with it.  [default: 64]")
@click.option("--no-elastic", is_flag=True, help="A learner starts again as a whole instead of going on with less.")
@click.option("--table", type=click.Choice(list(TABLES)), help="Print a published table beside ours instead.")
@click.option("--sensitivity", is_flag=True, help="With --table paper: what the assumptions do, too.")
@click.option("--scenario", type=click.Path(path_type=Path), metavar="FILE", help="Play a scenario instead.")
@click.option("--chaos", type=click.IntRange(1, 100_000), metavar="N", help="Play N random scenarios instead.")
@click.option("--seed", type=click.IntRange(0, 2**53), help="Of the scenario, or of the first of --chaos.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write its trace: what happened.")
@click.option("--seeds", help="Histories of failures: 7 or 1,2,9 or 1-5.  [default: 1-5; of a scenario its own]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw it: *.png, *.pdf or *.svg.")
@log_level
def simulate(table: str | None, seeds: str | None, as_json: bool, plot: Path | None, **options: Any) -> int:
    """Simulate learners of many chips that fail and come back: goodput, uptime; or play a scenario of what goes wrong.

    With --table paper exit code 1 says that a marked cell is too far from the published one, or an order is lost; with
    --scenario and --chaos, that a rule was broken. What is modelled, and how a scenario is written: docs/simulate.md.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    refuse_idle(table, given)
    if "scenario" in given or "chaos" in given:
        return play_stories(given, seeds, as_json, plot)
    return answer_question(table, given, "1-5" if seeds is None else seeds, as_json, plot)


def answer_question(table: str | None, given: dict[str, Any], seeds: str, as_json: bool, plot: Path | None) -> int:
    """Print what the chips model answers. Return 1 where it does not show what it is to show."""
    from zdiloco.cli.simulate_text import print_answer
    from zdiloco.sim.picture import check_path, draw
    from zdiloco.sim.questions import ask, parse_seeds

    numbers = parse_seeds(seeds)
    if plot is not None:
        check_path(plot)
    answer = ask(table, given, numbers)
    if plot is not None:
        draw(answer, plot)
    if as_json:
        click.echo(json.dumps(answer.to_obj(), indent=2))
    else:
        print_answer(answer)
        if plot is not None:
            click.echo(f"\npicture {plot}")
    return int(bool(answer.faults))


def refuse_idle(table: str | None, given: dict[str, Any]) -> None:
    """Raise UsageError for an option that would change nothing here."""
    story = next((name for name in ("scenario", "chaos") if name in given), None)
    if story is not None:
        others = [name for name in ("table" if table else "", *given) if name and name not in STORIES - {"chaos"}]
        others = [name for name in others if name != story]
        if others:
            raise click.UsageError(f"--{others[0].replace('_', '-')} does not go with --{story}.")
        return
    for name in ("seed", "trace"):
        if name in given:
            raise click.UsageError(f"--{name} goes with --scenario or --chaos.")
    if table is None:
        if "sensitivity" in given:
            raise click.UsageError("--sensitivity goes with --table paper.")
        return
    for name in given:
        if name not in TABLES[table]:
            raise click.UsageError(f"--{name.replace('_', '-')} does not go with --table {table}.")
