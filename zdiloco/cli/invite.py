"""`zdiloco invite`: one line by which another machine joins a run with keys."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from zdiloco.cli.options import log_level, overrides, run_file

if TYPE_CHECKING:
    from zdiloco.node.params import NetParams


@click.command()
@run_file
@click.argument("name")
@click.option("--host", default="", help="Where the other machine reaches this syncer.  [default: net.connect]")
@click.option("--days", type=click.IntRange(0, 3650), default=7, show_default=True, help="For how long it is good.")
@click.option("--withdraw", is_flag=True, help="Take it back; one that has joined by it is taken out of the run.")
@overrides
@log_level
def invite(
    run_toml: Path, name: str, host: str, days: int, withdraw: bool, overrides: tuple[str, ...]
) -> None:  # fmt: skip
    """Print one line by which another machine joins the run in RUN.toml as learner NAME, once.

    To be run where the syncer runs, also while it does, with its RUN.toml. On the other machine: zdiloco learner --join
    LINE. Hand the line on like a password: whoever uses it first is NAME.
    """
    import datetime

    from zdiloco.config import load
    from zdiloco.errors import ConfigError
    from zdiloco.node import invited
    from zdiloco.node.allowed import names_in
    from zdiloco.node.guard import utc_today
    from zdiloco.node.invitation import Invitation, to_line
    from zdiloco.node.keys import load_pair

    config = load(run_toml, overrides)
    net, folder = config.net, config.run.path / invited.FOLDER
    if withdraw:
        invited.withdraw(folder, name)
        click.echo(f"{name} is out when the syncer reads its list anew (SIGHUP, systemctl reload)", err=True)
        return
    if not net.keys:
        raise ConfigError("an invitation is for a run with keys: set net.keys (zdiloco keygen DIR syncer)")
    host = _reached(net, host)
    server = load_pair(Path(net.keys), net.key or "syncer").public.decode()
    listed = Path(net.keys) / net.allowed
    if name in names_in(listed):
        raise ConfigError(f"{name} is in {listed} already: choose another name, or take it out there")
    expires = utc_today() + datetime.timedelta(days=days)
    secret = invited.invite(folder, name, expires).secret.decode()
    line = to_line(
        Invitation(host=host, port=net.port, run=config.run.name, name=name, server=server, secret=secret)
    )  # fmt: skip
    click.echo(f"good once, until {expires}; on the other machine: zdiloco learner --join LINE", err=True)
    kept = folder.resolve() / f"{name}.toml"
    click.echo(f"kept in {kept}, where this run's syncer must look; an earlier line is void", err=True)
    click.echo(line)


def _reached(net: "NetParams", host: str) -> str:
    """By which name others reach this syncer. Raises ConfigError where that cannot be."""
    import ipaddress

    from zdiloco.errors import ConfigError
    from zdiloco.node.params import LOOPBACK, NetParams

    if not host and net.connect in LOOPBACK and net.listen not in LOOPBACK:
        raise ConfigError(
            f"net.connect is {net.connect!r}, by which every machine reaches itself: say --host, or set net.connect to "
            "the name or address of this syncer"
        )
    try:
        if ":" in host:
            ipaddress.IPv6Address(host.partition("%")[0])
        return NetParams(connect=host or net.connect).connect
    except (ValueError, ConfigError):
        raise ConfigError(f"--host is {host!r}; it is a name or an address, without scheme, port or brackets") from None
