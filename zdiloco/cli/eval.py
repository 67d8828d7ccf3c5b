"""`zdiloco eval`: how good the values of a run are, once or as they move."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zdiloco.cli.options import log_level, overrides, run_file

if TYPE_CHECKING:
    from zdiloco.demo.evaluation import Evaluation


@click.command("eval")
@run_file
@click.option("--follow", is_flag=True, help="Listen to the run's syncer and evaluate again and again, until its end.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="With --follow: seconds between two evaluations, at least.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@overrides
@log_level
def evaluate(run_toml: Path, follow: bool, every_s: float, as_json: bool, overrides: tuple[str, ...]) -> int:
    """Print the validation loss of the task of RUN.toml.

    Without --follow that of the newest checkpoint in the run folder. With it this process joins the run as one that
    only watches: it counts for nothing, outlives syncer and learners, and ends with the run (exit code 0).
    """
    import threading

    from zdiloco.cli.signals import Leaving

    stop = threading.Event()
    leaving = Leaving(lambda signal_name: stop.set())  # before torch is loaded: that takes seconds

    from zdiloco.config import load
    from zdiloco.demo import evaluation

    config = load(run_toml, overrides)

    def say(each: "Evaluation") -> None:
        if not as_json:
            click.echo(str(each))
        else:
            evaluation.log.info("%s", each)

    if follow:
        found = evaluation.follow(config, every_s, stop, say)
    else:
        found = evaluation.evaluate_newest(config)
        say(found.evaluations[0])
    if as_json:
        click.echo(json.dumps(found.to_obj(), indent=2))
    elif follow:
        evaluation.log.info("ends why=%r", found.reason)
    return leaving.exit_code(found.exit_code)
