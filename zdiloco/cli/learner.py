"""`zdiloco learner`: one learner of a run, with the ready-made task."""

import os
from pathlib import Path
from typing import Any

import click

from zdiloco.cli.join import Place, folder, joined
from zdiloco.cli.options import log_level, overrides


@click.command()
@click.argument("run_toml", metavar="[RUN.toml]", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--name", help="Name of this learner; no two learners of a run share one.")
@click.option("--join", "line", metavar="LINE", help="Join by an invitation (zdiloco invite; -: standard input).")
@folder
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
def learner(
    run_toml: Path | None, shard: int | None, slowdown: float, overrides: tuple[str, ...], **who: Any
) -> int:  # fmt: skip
    """Train the task of RUN.toml as one learner, until the run's target is reached.

    Started again under the same name it goes on with its data where it stood, from the values published meanwhile. With
    --join nothing else is needed; said again on the same machine it goes on, too.
    """
    place = _place(run_toml, **who)
    import threading

    from zdiloco.cli.signals import Leaving
    from zdiloco.node.service import LOAD_S, service_of

    stop = threading.Event()
    leaving = Leaving(lambda signal_name: stop.set())  # before torch is loaded: that takes seconds
    service = service_of(os.environ, os.getpid())
    service.starts("loads torch and its task", LOAD_S)

    from zdiloco.config import load
    from zdiloco.demo.trainer import TrainerParams, train

    params = TrainerParams(name=place.name, shard=shard, slowdown=slowdown)
    return leaving.exit_code(train(load(place.run_toml, overrides), params, stop, service))


def _place(run_toml: Path | None, name: str | None, line: str | None, folder: Path | None) -> Place:
    """Where its run.toml is and who it is, by what was said. Raises click.UsageError for half of it, or both."""
    if line is not None:
        if run_toml or name:
            raise click.UsageError("--join brings RUN.toml and --name along: leave them away.")
        return joined(line, folder)
    if folder is not None:
        raise click.UsageError("--dir belongs to --join.")
    if run_toml is None or name is None:
        raise click.UsageError("Say RUN.toml and --name NAME, or --join LINE.")
    return Place(run_toml, name)
