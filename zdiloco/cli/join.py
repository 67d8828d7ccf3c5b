"""`zdiloco join`: becomes a member of a run by an invitation, for a training script of one's own."""

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from zdiloco.cli.options import log_level

if TYPE_CHECKING:
    from zdiloco.node.invitation import Invitation

ANSWER_S = 60.0
MOST_CHARS = 4096
"""Of a line that is read."""
folder = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where run.toml, keys and what this learner saves go.  [default: RUN-NAME, here]",
)


class Place(NamedTuple):
    """Where what this machine needs has been put, and who it is in the run."""

    run_toml: Path
    name: str


@click.command()
@click.argument("line")
@folder
@log_level
def join(line: str, folder: Path | None) -> None:
    """Join a run by the LINE that zdiloco invite has printed: make a key pair, and fetch the run's settings. LINE is -
    where it comes on standard input, so that nobody reads it among the processes.

    Prints the place of a run.toml, for zdiloco.Learner(model, optimizer, RUN.toml, name=NAME). With the ready-made task
    zdiloco learner --join LINE does this, and trains.
    """
    place = joined(line, folder)
    click.echo(f"joined as {place.name}", err=True)
    click.echo(place.run_toml)


def joined(line: str, folder: Path | None) -> Place:
    """Join, unless that was done here before; `line` -: it is read. Raises ConfigError, LinkError."""
    from zdiloco.config import of_shared, to_toml
    from zdiloco.errors import ConfigError
    from zdiloco.node.invitation import from_line
    from zdiloco.node.invited import SERVER
    from zdiloco.node.joiner import join as ask

    line = sys.stdin.read(MOST_CHARS) if line == "-" else line
    invitation = from_line(line)
    folder = (folder or Path(f"{invitation.run}-{invitation.name}")).resolve()
    place, keys = Place(folder / "run.toml", invitation.name), folder / "keys"
    used = folder / "invitation"
    if place.run_toml.exists():
        _check_same(place.run_toml, invitation)
        if used.exists() and used.read_text() == _mark(line):
            return place
    answer = ask(invitation, keys, ANSWER_S)
    mine: dict[str, dict[str, Any]] = {
        "run": {"dir": str(folder / "run")},
        "net": {
            "connect": invitation.host, "port": invitation.port, "keys": str(keys), "key": invitation.name,
            "server_key": SERVER,
        },
    }  # fmt: skip
    source = "the settings of this run, as the syncer tells them (both sides need the same version of zdiloco)"
    text = to_toml(of_shared(answer.settings, mine, source))
    try:
        if not place.run_toml.exists():  # else somebody may have changed it since
            place.run_toml.with_suffix(".aside").write_text(text)
            place.run_toml.with_suffix(".aside").replace(place.run_toml)
        used.write_text(_mark(line))
    except OSError as error:
        raise ConfigError(f"{place.run_toml} cannot be written ({error.strerror})") from error
    return place


def _check_same(run_toml: Path, invitation: "Invitation") -> None:
    """Raise ConfigError where what was joined here before is another run, or somebody else."""
    from zdiloco.config import load
    from zdiloco.errors import ConfigError

    config = load(run_toml)
    if (config.run.name, config.net.key) != (invitation.run, invitation.name):
        raise ConfigError(f"{run_toml} is {config.net.key!r} of the run {config.run.name!r}: say another --dir")


def _mark(line: str) -> str:
    """By which the line is known again that was said here; it tells nothing of it."""
    return hashlib.sha256("".join(line.split()).encode()).hexdigest()
