"""The command `zdiloco`: which sub-commands there are, and what becomes of errors.

Rule: a command parses, builds, runs and prints; it decides nothing. An error that was raised on purpose is one line on
standard error and its exit code (0 done, 1 our failure, 2 usage or bad input, 3 the other side is gone, 130
interrupted). What loads torch is imported inside the commands, so that help and status answer at once.
"""

import sys
from collections.abc import Sequence

import click

from zdiloco import __version__
from zdiloco.cli import logs
from zdiloco.cli.config import config
from zdiloco.cli.demo import demo
from zdiloco.cli.learner import learner
from zdiloco.cli.status import status
from zdiloco.cli.sync import sync
from zdiloco.errors import ZdilocoError

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="zdiloco")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least important events that are logged, on standard error.",
)
def cli(log_level: str) -> None:
    """Train one model on many islands of compute that may be far apart, unequal and unreliable."""
    logs.configure(log_level)


for command in (sync, learner, status, config, demo):
    cli.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (that of the process when None) and return its exit code; errors are printed here."""
    try:
        code = cli.main(args=arguments, prog_name="zdiloco", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("zdiloco: interrupted", err=True)
        return INTERRUPTED
    except ZdilocoError as error:
        click.echo(f"zdiloco: {' '.join(str(error).split())}", err=True)
        return error.exit_code
    return code if isinstance(code, int) else 0


def main() -> None:
    """Be the process: run its command line and exit."""
    sys.exit(run())
