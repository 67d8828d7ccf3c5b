"""`zdiloco sync`: the syncer process of a run."""

from pathlib import Path

import click

from zdiloco.cli.options import overrides, run_file


@click.command()
@run_file
@click.option("--fresh", is_flag=True, help="Start a new run; refused where the run folder holds a checkpoint.")
@overrides
def sync(run_toml: Path, fresh: bool, overrides: tuple[str, ...]) -> int:
    """Keep the published values of the run in RUN.toml: call, merge, publish, save.

    Goes on from the newest checkpoint in the run folder, if there is one. Ends when the target is reached (exit code
    0), or in order on SIGTERM.
    """
    from zdiloco.cli.signals import Leaving
    from zdiloco.config import load
    from zdiloco.node.syncer import SyncerNode

    node = SyncerNode(load(run_toml, overrides), fresh=fresh)
    leaving = Leaving(node.stop)
    return leaving.exit_code(node.run())
