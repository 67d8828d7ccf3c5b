"""Arguments and options that several commands share, so that they are called the same everywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]

run_file: Callable[[Command], Command] = click.argument(
    "run_toml", metavar="RUN.toml", type=click.Path(dir_okay=False, path_type=Path)
)
overrides: Callable[[Command], Command] = click.option(
    "--set",
    "overrides",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="Set a key, over what RUN.toml says; may be repeated.",
)
