"""`zdiloco config`: is a run.toml right, and what does it amount to."""

from pathlib import Path

import click

from zdiloco.cli.options import log_level, overrides, run_file


@click.group()
def config() -> None:
    """Check or show the settings of a run."""


@config.command()
@run_file
@overrides
@log_level
def check(run_toml: Path, overrides: tuple[str, ...]) -> None:
    """Say whether RUN.toml can be used; the error names the key, the value and what is allowed."""
    from zdiloco.config import describe, load

    load(run_toml, overrides)
    click.echo(f"{run_toml}: good, {len(describe())} keys are known")


@config.command()
@run_file
@overrides
@log_level
def show(run_toml: Path, overrides: tuple[str, ...]) -> None:
    """Print every key with its value, unit, meaning and default, as TOML."""
    from zdiloco.config import load, to_toml

    click.echo(to_toml(load(run_toml, overrides)), nl=False)
