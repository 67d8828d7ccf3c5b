"""The command `zdiloco`: which sub-commands there are, and what becomes of errors.

Rule: a command parses, builds, runs and prints; it decides nothing. An error that was raised on purpose is one line on
standard error and its exit code (0 done, 1 our failure, 2 usage or bad input, 3 the other side is gone, 130
interrupted). What loads torch is imported inside the commands, so that help and status answer at once.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import click

from zdiloco import __version__
from zdiloco.cli import logs
from zdiloco.cli.bench import bench
from zdiloco.cli.checkpoint import checkpoint
from zdiloco.cli.config import config
from zdiloco.cli.demo import demo
from zdiloco.cli.doctor import doctor
from zdiloco.cli.eval import evaluate
from zdiloco.cli.invite import invite
from zdiloco.cli.join import join
from zdiloco.cli.keygen import keygen
from zdiloco.cli.learner import learner
from zdiloco.cli.ledger import ledger
from zdiloco.cli.options import LEVELS
from zdiloco.cli.plan import plan
from zdiloco.cli.relay import relay
from zdiloco.cli.report import report
from zdiloco.cli.simulate import simulate
from zdiloco.cli.status import status
from zdiloco.cli.sync import sync
from zdiloco.cli.whatif import whatif
from zdiloco.errors import ZdilocoError

INTERRUPTED = 130
NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What newer versions of click raise instead of printing the help themselves."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="zdiloco")
@click.option(
    "--log-level",
    type=LEVELS,
    default="info",
    show_default=True,
    help="Least important events that are logged, on standard error.",
)
def cli(log_level: str) -> None:
    """Train one model on many islands of compute that may be far apart, unequal and unreliable."""
    logs.configure(log_level)


PROCESSES, FILES = (sync, learner, relay, evaluate), (report, whatif, checkpoint, ledger, config)
for command in (*PROCESSES, status, *FILES, demo, bench, simulate, plan, doctor, keygen, invite, join):
    cli.add_command(command)


def run(arguments: Sequence[str] | None = None, *, command: click.Command = cli, name: str = "zdiloco") -> int:
    """Run one command line (that of the process when None) and return its exit code; errors are printed here."""
    try:
        code = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except NO_ARGUMENTS as error:
        error.show()  # the help itself
        return int(error.exit_code)
    except click.ClickException as error:
        _say(error.format_message(), name)
        context = getattr(error, "ctx", None)
        if context is not None:
            click.echo(f"Try '{context.command_path} --help'.", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted", name)
        return INTERRUPTED
    except ZdilocoError as error:
        _say(str(error), name)
        return error.exit_code
    return code if isinstance(code, int) else 0


def _say(what: str, name: str) -> None:
    line = f"{name}: {' '.join(what.split())}"
    click.echo(logs.to_journal(line, logging.ERROR) if logs.is_journal(sys.stderr) else line, err=True)


def main() -> None:
    """Be the process: run its command line and exit."""
    sys.exit(run())
