"""`zdiloco learner`: one learner of a run, with the ready-made task."""

import os
from pathlib import Path

import click

from zdiloco.cli.options import log_level, overrides, run_file


@click.command()
@run_file
@click.option("--name", required=True, help="Name of this learner; no two learners of a run share one.")
@click.option(
    "--shard",
    type=click.IntRange(min=0),
    help="Which of the task.num_shards parts of the data to train on.  [default: one that follows from the name]",
)
@click.option(
    "--slowdown",
    type=click.FloatRange(min=1.0),
    default=1.0,
    show_default=True,
    help="Be so many times slower, by sleeping within each step: for demonstrations and tests.",
)
@overrides
@log_level
def learner(run_toml: Path, name: str, shard: int | None, slowdown: float, overrides: tuple[str, ...]) -> int:
    """Train the task of RUN.toml as one learner, until the run's target is reached.

    Started again under the same name it goes on with its data where it stood, from the values published meanwhile.
    """
    import threading

    from zdiloco.cli.signals import Leaving
    from zdiloco.node.service import LOAD_S, service_of

    stop = threading.Event()
    leaving = Leaving(lambda signal_name: stop.set())  # before torch is loaded: that takes seconds
    service = service_of(os.environ, os.getpid())
    service.starts("loads torch and its task", LOAD_S)

    from zdiloco.config import load
    from zdiloco.demo.trainer import TrainerParams, train

    params = TrainerParams(name=name, shard=shard, slowdown=slowdown)
    return leaving.exit_code(train(load(run_toml, overrides), params, stop, service))
