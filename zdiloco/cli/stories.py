"""`zdiloco simulate --scenario` and `--chaos`: stories that are played, and what became of them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zdiloco.cli.columns import Row, table
from zdiloco.cli.report import mean, share

if TYPE_CHECKING:
    from zdiloco.sim.stories import Told

FATES = ("merged", "unmerged", "lost", "dropped", "left")


def play_stories(given: dict[str, Any], seeds: str | None, as_json: bool, plot: Path | None) -> int:
    """Play what is asked for and print it. Return 1 where a rule was broken."""
    from zdiloco import strip
    from zdiloco.sim.picture import check_path, check_writable
    from zdiloco.sim.stories import asked_for, tell_all
    from zdiloco.trace import write_trace

    path, place = given.get("scenario"), given.get("trace")
    scenarios = asked_for(path, given.get("chaos"), seeds_of(given, seeds))
    if len(scenarios) > 1 and (place or plot):
        raise click.UsageError("--trace and --plot go with one seed.")
    if place is not None:
        if path is not None and place.exists() and place.samefile(path):
            raise click.UsageError(f"--trace {place} would overwrite the scenario.")
        check_writable("--trace", place)
    if plot is not None:
        check_path(plot)
    told = list(tell_all(scenarios))
    if place is not None:
        write_trace(place, told[0].records)
    if plot is not None:
        strip.draw(told[0].records, plot)
    written = {"trace": place, "plot": plot}
    if as_json:
        click.echo(json.dumps(stories_obj(told, written), indent=2))
    else:
        click.echo("\n".join(line.rstrip() for line in stories_text(told, written)))
    return int(told[-1].error is not None)


def seeds_of(given: dict[str, Any], seeds: str | None) -> list[int]:
    """The seeds that are asked for; none: as the scenario says."""
    from zdiloco.sim.questions import parse_seeds

    if "seed" in given and seeds is not None:
        raise click.UsageError("--seed does not go with --seeds.")
    if "chaos" in given and seeds is not None:
        raise click.UsageError("--seeds does not go with --chaos N, which plays N seeds, from --seed on.")
    if "seed" in given:
        return [given["seed"]]
    return parse_seeds(seeds) if seeds is not None else []


def stories_obj(told: "list[Told]", written: dict[str, Path | None]) -> dict[str, Any]:
    """What is printed, for JSON."""
    from zdiloco.sim.stories import rule_of, transcript_of

    last, failed = told[-1], None
    if last.error is not None:
        failed = {
            "seed": last.scenario.seed, "rule": rule_of(last.error), "error": str(last.error),
            "transcript": transcript_of(last),
        }  # fmt: skip
    files = {what: str(path) if path else None for what, path in written.items()}
    return {"scenarios": [each.to_obj() for each in told], "failed": failed, **files}


def stories_text(told: "list[Told]", written: dict[str, Path | None]) -> list[str]:
    """What is printed, for people: a line for each story, what occurred in all, and a broken rule with its story."""
    from zdiloco.sim.shrink import KEEP
    from zdiloco.sim.stories import transcript_of

    lines = [*table(_rows(told)), "", *table(_counts(told)), ""]
    lines += [f"{what} {path}" for what, path in written.items() if path]
    last = told[-1]
    if last.error is None:
        looks = sum(each.looks for each in told)
        return [*lines, f"every rule held, looked at after each of {looks:,} events"]
    lines += [f"BROKEN with seed {last.scenario.seed} at {last.seconds:.1f} s: {last.error}", "", KEEP, ""]
    return lines + transcript_of(last).splitlines()


def _rows(told: "list[Told]") -> list[Row]:
    rows: list[Row] = [
        ("seed", "seconds", "faults", "rounds", "learners", "participation", "goodput", "trained",
         *(f"{fate} %" for fate in FATES))
    ]  # fmt: skip
    for each in told:
        figures, shares = each.figures, [each.share(fate) for fate in FATES]
        rows.append(
            (
                str(each.scenario.seed),
                f"{each.seconds:.1f}",
                f"{sum(each.faults.values()):,}",
                f"{figures.rounds:,}",
                mean(figures.participants),
                share(figures.participation),
                share(figures.goodput),
                f"{each.fates.trained:,.0f}" if each.fates else "-",
                *("-" if part is None else f"{100 * part:.2f}" for part in shares),
            )
        )
    return rows


def _counts(told: "list[Told]") -> list[Row]:
    """Faults first, then branches; each with how often it occurred in all stories."""
    rows: list[Row] = [("times", "what occurred")]
    for kind in ("faults", "branches"):
        names = sorted({name for each in told for name in getattr(each, kind)})
        mark = "fault " if kind == "faults" else ""
        rows += [(f"{sum(getattr(each, kind).get(name, 0) for each in told):,}", mark + name) for name in names]
    return rows
