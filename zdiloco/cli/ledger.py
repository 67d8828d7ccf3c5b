"""`zdiloco ledger`: what became of every token that a run has trained."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zdiloco.cli.columns import Row, table
from zdiloco.cli.options import log_level

if TYPE_CHECKING:
    from zdiloco.rundir.audit import Audit

FOLDER = click.Path(path_type=Path)
MANY = 20
"""Accounts that are named, and no more, for people."""


@click.group()
def ledger() -> None:
    """Work out what became of every token: merged, unmerged, lost, dropped or left."""


@ledger.command()
@click.argument("run_dir", metavar="RUN_DIR", type=FOLDER)
@click.option(
    "--learners", metavar="DIR", multiple=True, type=FOLDER, help="Learners' files of another machine; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@log_level
def verify(run_dir: Path, learners: tuple[Path, ...], as_json: bool) -> int:
    """Recompute the ledger of the run in RUN_DIR, at work or over, and name every account that does not balance.

    What was trained and what is pending comes from the learners' own counter files, what is merged from the newest
    whole checkpoint; that is compared with the journal where it is whole. No term is a remainder. Exit code 1: an
    account (learner, incarnation, fragment) does not balance.
    """
    from zdiloco.rundir.audit import audit

    found = audit(run_dir, learners)
    if as_json:
        click.echo(json.dumps(to_obj(found), indent=2))
    else:
        click.echo("\n".join(line.rstrip() for line in text_of(found)))
    return int(not found.balanced)


def to_obj(found: "Audit") -> dict[str, Any]:
    """What `--json` prints; sums are weighed by parameter share, those per fragment are whole tokens."""
    return {
        "run_id": found.run_id,
        "epoch": max((stamp.epoch.counter for stamp in found.stamps), default=0),
        "versions": [stamp.version for stamp in found.stamps],
        "syncer_lives": found.syncer_lives,
        "moves": found.moves,
        "balanced": found.balanced,
        "accounts": len(found.books.gaps),
        "ledger": found.books.total.rounded(),
        "ledger_fragments": [fates._asdict() for fates in found.books.per_fragment],
        "learners": [
            {
                "name": process.key.name,
                "incarnation": f"{process.key.incarnation:016x}",
                "state": process.state,
                "steps": process.steps,
                **process.weighed.rounded(),
                "fragments": [fates._asdict() for fates in process.per_fragment],
            }
            for process in found.books.processes
        ],
        "gaps": found.gaps,
        "differences": found.differences,
        "not_compared": {str(fragment): why for fragment, why in found.comparison.silent.items()},
    }


def text_of(found: "Audit") -> list[str]:
    """The lines for people."""
    from zdiloco.rundir.audit import by_learner

    rows: list[Row] = [("learner", "processes", "trained", "merged", "unmerged", "lost", "dropped", "left")]
    for name, processes, fates in by_learner(found.books):
        states = [process.state for process in processes]
        counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        rows.append((name, counted, *(f"{value:,.0f}" for value in fates)))
    total = found.books.total
    rows.append(("all", str(len(found.books.processes)), *(f"{value:,.0f}" for value in total)))
    syncer = "a syncer is at work here" if found.syncer_lives else "no syncer is at work here"
    rounds, fragments = sum(stamp.version for stamp in found.stamps), len(found.stamps)
    return [
        f"run {found.run_id}: {syncer}; the newest checkpoint holds {rounds:,} rounds on {fragments} fragments",
        "tokens, weighed by parameter share",
        "",
        *table(rows),
        "",
        *_verdict(found),
    ]


def _verdict(found: "Audit") -> list[str]:
    from zdiloco.rundir.books import ABSENT

    accounts = len(found.books.gaps)
    compared = len(found.stamps) - len(found.comparison.silent)
    lines = [f"{place}: trained minus all fates is {gap:+,} tokens" for place, gap in found.gaps.items()]
    lines += [f"{place}: checkpoint minus journal is {apart:+,} tokens" for place, apart in found.differences.items()]
    lines = [*lines[:MANY], *([f"and {len(lines) - MANY:,} more"] if len(lines) > MANY else [])]
    for process in found.books.processes:
        if process.state == ABSENT:
            key = f"{process.key.name}:{process.key.incarnation:016x}"
            lines.append(f"{key} is merged and has no counter file here: give its machine's with --learners")
    if found.moves:
        lines.append("the run wrote to this folder in each reading: what does not balance may do so in the next one")
    silent = next(iter(found.comparison.silent.values()), "")
    lines.append(
        f"the journal says the same of {compared} of {len(found.stamps)} fragments" + (f" ({silent})" if silent else "")
    )
    wrong = len({*found.gaps, *found.differences})
    lines.append(f"NOT BALANCED: {wrong:,} of {accounts:,} accounts" if wrong else f"balanced: {accounts:,} accounts")
    return lines
