"""`zdiloco relay`: a region's relay between its learners and the syncer."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from zdiloco.cli.options import log_level, overrides, run_file

if TYPE_CHECKING:
    from zdiloco.config import RunConfig
    from zdiloco.node.premerge import Terms


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
    from zdiloco.config import load
    from zdiloco.node.relay import RelayNode

    leaving = Leaving(lambda name: None)
    config = load(run_toml, overrides)
    node = RelayNode(config.net, config.relay, terms=_terms(config) if config.relay.premerge else None)
    leaving.becomes(lambda name: node.stop(f"asked to leave ({name})"))
    if config.net.keys:
        leaving.reads_again(node.look_again)
    return leaving.exit_code(node.run())


def _terms(config: "RunConfig") -> "Terms":
    from zdiloco.node.premerge import Terms  # loads torch

    return Terms(config.merge, config.sync)
