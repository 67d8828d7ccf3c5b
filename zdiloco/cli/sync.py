"""`zdiloco sync`: the syncer process of a run."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zdiloco.cli.options import log_level, overrides, run_file

if TYPE_CHECKING:
    from zdiloco.node.syncer import SyncerNode

log = logging.getLogger(__name__)


@click.command()
@run_file
@click.option("--fresh", is_flag=True, help="Start a new run; refused where the run folder holds a checkpoint.")
@overrides
@log_level
def sync(run_toml: Path, fresh: bool, overrides: tuple[str, ...]) -> int:
    """Keep the published values of the run in RUN.toml: call, merge, publish, save.

    Goes on from the newest checkpoint in the run folder, if there is one. Ends when the target is reached (exit code
    0), or in order on SIGTERM. With keys, SIGHUP has it read net.allowed anew.
    """
    from zdiloco.cli.signals import Leaving
    from zdiloco.node.service import LOAD_S, READ_S, service_of

    service = service_of(os.environ, os.getpid())
    service.starts("loads torch", LOAD_S)
    from zdiloco.config import load, shared

    config = load(run_toml, overrides)
    leaving = Leaving(_abandon)  # before torch is loaded and a checkpoint read: both take long
    try:
        from zdiloco.node.hooks import Hooks
        from zdiloco.node.syncer import SyncerNode

        service.starts("reads its newest checkpoint", READ_S)
        node = SyncerNode(config, fresh=fresh, hooks=Hooks(service=service, shared=shared(config)))
        leaving.becomes(node.stop)
        if config.net.keys or service:  # a service that is reloaded must not end by it
            leaving.reads_again(node.look_again)
        service.ready(lambda: how_it_goes(node))
    except _Abandoned:
        return leaving.exit_code(0)
    code = leaving.exit_code(node.run())
    if told := was_over(node):
        log.warning(told)
    return code


class _Abandoned(BaseException):
    """Not KeyboardInterrupt: once one has passed through a module of C, Python ends by SIGINT whatever comes of it."""


def _abandon(signal_name: str) -> None:
    """Asked to leave before anything was done: nothing has to be saved."""
    raise _Abandoned


def how_it_goes(node: "SyncerNode") -> str:
    """The run in a line."""
    machine = node.machine
    part = f"{machine.progress:.1%} of the target, " if machine.target_tokens else ""
    return f"run {machine.run_id}: {part}{machine.rounds} rounds, {len(machine.fleet.counted())} learners live"


def was_over(node: "SyncerNode") -> str:
    """What to do where the run had reached its target before this syncer began; empty: it had not."""
    machine, run = node.machine, node.settings.run
    if not machine.target_tokens or machine.rounds or machine.merged_tokens < machine.target_tokens:
        return ""
    return (
        f"this run was finished before: {machine.merged_tokens:,.0f} of {machine.target_tokens:,} tokens are merged; "
        f"to go on raise run.target_tokens, for a new run take another run.dir than {run.dir}"
    )
