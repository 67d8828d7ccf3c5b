"""`zdiloco keygen`: a key pair for a process of a run."""

from pathlib import Path

import click

from zdiloco.cli.options import log_level


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.argument("name")
@log_level
def keygen(folder: Path, name: str) -> None:
    """Make a key pair in DIR (net.keys): NAME.key, to be handed on, and NAME.key_secret, which stays here.

    NAME is `syncer`, a learner's name, or what a relay's net.key says. Prints what the allow-list of the syncer (or
    relay) that it dials wants to know: append it to its net.allowed.
    """
    from zdiloco.node.keys import load_public, make_pair

    public, secret = make_pair(folder, name)
    click.echo(f"made {public} (hand it on) and {secret} (keep it here, mode 600)", err=True)
    click.echo(f'[{_quoted(name)}]\nkey = "{load_public(folder, name).decode()}"')


def _quoted(name: str) -> str:
    return f'"{name}"' if "." in name else name
