"""Whether a command line of an example is one that the real command line takes, with settings that can be used."""

from pathlib import Path

import click

from zdiloco.cli.main import cli
from zdiloco.config import load
from zdiloco.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent


def faults(words: list[str]) -> list[str]:
    """What is wrong with a command line of zdiloco; empty: it can be parsed, and its settings be used."""
    name, *arguments = words[1:] or [""]
    if words[0] != "zdiloco" or name not in cli.commands:
        return [f"no command: {' '.join(words)}"]
    try:
        told = cli.commands[name].make_context(name, arguments)
        load(ROOT / "config" / "run.toml", told.params.get("overrides", ()))
    except click.ClickException as error:
        return [f"{' '.join(words)}: {error.format_message()}"]
    except ConfigError as error:
        return [f"{' '.join(words)}: {error}"]
    return []
