"""`zdiloco demo`: a whole run on this machine, with a kill and a return in it, judged at the end."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from zdiloco.cli.options import log_level

TASKS = ["stdlib-bytes"]


@click.command()
@click.option("--task", type=click.Choice(TASKS), default=TASKS[0], show_default=True, help="What is learned.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="Empty folder for the run.")
@click.option(
    "--tokens",
    type=int,
    help="Merged tokens after which it ends: at least 400,000, or it is over before the killed learner is back. The "
    "claims about model and pauses are meant for the default.  [default: 2,000,000]",
)
@click.option("--chaos", is_flag=True, help="Four learners under a seeded script of kills, stops, cuts and full disks.")
@click.option("--minutes", type=float, help="With --chaos: how long.  [default: 5]")
@click.option("--seed", type=int, help="With --chaos: which script; the same seed gives the same one.  [default: 1]")
@click.option("--measure-baseline", is_flag=True, help="Only measure the curve of one learner alone anew. Takes long.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("baseline.json"),
    show_default=True,
    help="Where --measure-baseline saves the curve.",
)
@log_level
def demo(
    task: str,
    as_json: bool,
    folder: Path | None,
    tokens: int | None,
    chaos: bool,
    *,
    minutes: float | None = None,
    seed: int | None = None,
    measure_baseline: bool = False,
    out: Path = Path("baseline.json"),
) -> int:
    """Train one model with three learners and a syncer, kill one learner, let it come back, and check the outcome.

    Exit code 0: every check holds that so long a run can tell. A run takes a minute and a half on two idle cores, up to
    four minutes on busy ones.
    """
    if measure_baseline:
        return _measure(task, out, as_json)
    if chaos:
        if tokens is not None:
            raise click.UsageError("--tokens belongs to the demo without --chaos, which ends by --minutes")
        return _chaos(folder, {"minutes": minutes, "seed": seed}, as_json)
    if minutes is not None or seed is not None:
        raise click.UsageError("--minutes and --seed belong to --chaos")
    from zdiloco.cli.signals import interrupt_on_any
    from zdiloco.demo.printing import print_report
    from zdiloco.demo.show import perform
    from zdiloco.demo.story import TARGET_TOKENS, Plot

    interrupt_on_any()
    plot = Plot(task=task, target_tokens=TARGET_TOKENS if tokens is None else tokens)
    run_dir = folder or Path(tempfile.mkdtemp(prefix="zdiloco-demo-"))
    with _logs_first():
        report = perform(run_dir.absolute(), plot)
    if as_json:
        click.echo(json.dumps(report.to_obj(), indent=2))
    else:
        print_report(report)
    return 0 if report.passed else 1


def _chaos(folder: Path | None, chosen: Mapping[str, Any], as_json: bool) -> int:
    from zdiloco.chaos.show import Plot, lines_of, perform
    from zdiloco.cli.signals import interrupt_on_any

    interrupt_on_any()
    plot = Plot(**{key: value for key, value in chosen.items() if value is not None})
    run_dir = folder or Path(tempfile.mkdtemp(prefix="zdiloco-chaos-"))
    with _logs_first():
        report = perform(run_dir.absolute(), plot, lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps(report.to_obj(), indent=2))
    else:
        for line in lines_of(report):
            click.echo(line)
    return 0 if report.passed else 1


@contextmanager
def _logs_first() -> Iterator[None]:
    """Where a demo fails, the logs of its processes are shown, then what went wrong."""
    from zdiloco.demo.processes import DemoFailed

    try:
        yield
    except DemoFailed as error:
        click.echo(error.logs, err=True)
        raise


def _measure(task: str, out: Path, as_json: bool) -> int:
    from zdiloco.demo.measuring import measure_baseline, print_baseline
    from zdiloco.train.params import TaskParams

    found = measure_baseline(TaskParams(name=task), out)
    if as_json:
        points = [{"steps": point.steps, "loss": point.mean, "noise": point.noise} for point in found.points]
        click.echo(json.dumps({"points": points, "saved": str(out.absolute())}, indent=2))
    else:
        print_baseline(found, out)
    return 0
