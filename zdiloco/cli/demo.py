"""`zdiloco demo`: a whole run on this machine, with a kill and a return in it, judged at the end."""

import json
import tempfile
from pathlib import Path

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
    task: str, as_json: bool, folder: Path | None, tokens: int | None, measure_baseline: bool, *, out: Path
) -> int:
    """Train one model with three learners and a syncer, kill one learner, let it come back, and check the outcome.

    Exit code 0: every check holds that so long a run can tell. A run takes a minute and a half on two idle cores, up to
    four minutes on busy ones.
    """
    if measure_baseline:
        return _measure(task, out, as_json)
    from zdiloco.cli.signals import interrupt_on_any
    from zdiloco.demo.printing import print_report
    from zdiloco.demo.processes import DemoFailed
    from zdiloco.demo.show import perform
    from zdiloco.demo.story import TARGET_TOKENS, Plot

    interrupt_on_any()
    plot = Plot(task=task, target_tokens=TARGET_TOKENS if tokens is None else tokens)
    run_dir = folder or Path(tempfile.mkdtemp(prefix="zdiloco-demo-"))
    try:
        report = perform(run_dir.absolute(), plot)
    except DemoFailed as error:
        click.echo(error.logs, err=True)
        raise
    if as_json:
        click.echo(json.dumps(report.to_obj(), indent=2))
    else:
        print_report(report)
    return 0 if report.passed else 1


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
