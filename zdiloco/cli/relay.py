"""`zdiloco relay`: a region's relay between its learners and the syncer."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zdiloco.cli.options import log_level, overrides, run_file

if TYPE_CHECKING:
    from zdiloco.config import RunConfig
    from zdiloco.node.premerge import Terms
    from zdiloco.node.relay import RelayNode


@click.command()
@run_file
@overrides
@log_level
def relay(run_toml: Path, overrides: tuple[str, ...]) -> int:
    """Pass on between the learners of a region and the syncer of the run in RUN.toml.

    Binds relay.listen and relay.port, dials net.connect and net.port; the region's learners dial it instead of the
    syncer. Runs until SIGTERM; what the run is and how it ends is no matter of its own. With keys, SIGHUP has it read
    net.allowed anew.
    """
    from zdiloco.cli.signals import Leaving
    from zdiloco.node.service import LOAD_S, service_of

    service = service_of(os.environ, os.getpid())
    service.starts("loads what it needs", LOAD_S)
    from zdiloco.config import load
    from zdiloco.node.relay import RelayNode

    leaving = Leaving(lambda name: None)
    config = load(run_toml, overrides)
    terms = _terms(config) if config.relay.premerge else None
    node = RelayNode(config.net, config.relay, terms=terms, service=service)
    leaving.becomes(lambda name: node.stop(f"asked to leave ({name})"))
    if config.net.keys or service:  # a service that is reloaded must not end by it
        leaving.reads_again(node.look_again)
    service.ready(lambda: how_it_goes(node))
    return leaving.exit_code(node.run())


def how_it_goes(node: "RelayNode") -> str:
    """What is behind this relay and before it, in a line."""
    upstream = "connected to" if node.connected else "waits for"
    return f"{len(node.lanes)} learners; {upstream} {node.net.connect}:{node.net.port}"


def _terms(config: "RunConfig") -> "Terms":
    from zdiloco.node.premerge import Terms  # loads torch

    return Terms(config.merge, config.sync)
