"""Arguments and options that several commands share, so that they are called the same everywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from zdiloco.cli import logs

LEVELS = click.Choice(["debug", "info", "warning", "error"])
Command = Callable[..., Any]

run_file: Callable[[Command], Command] = click.argument(
    "run_toml", metavar="RUN.toml", type=click.Path(dir_okay=False, path_type=Path)
)
trace_place: Callable[[Command], Command] = click.argument(
    "place", metavar="RUN_DIR|TRACE", type=click.Path(path_type=Path)
)
overrides: Callable[[Command], Command] = click.option(
    "--set",
    "overrides",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="Set a key, over what RUN.toml says; may be repeated.",
)


def _set_level(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        logs.configure(value)


log_level: Callable[[Command], Command] = click.option(
    "--log-level",
    type=LEVELS,
    expose_value=False,
    callback=_set_level,
    help="Least important events that are logged; here, or before the command.  [default: info]",
)
