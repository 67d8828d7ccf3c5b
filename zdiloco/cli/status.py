"""`zdiloco status`: how a run stands, asked of its syncer."""

import json
from typing import TYPE_CHECKING, Any

import click

from zdiloco.cli.options import log_level

if TYPE_CHECKING:
    from zdiloco.node.params import NetParams


@click.command()
@click.argument("endpoint", metavar="ENDPOINT")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait for the answer."
)
@click.option("--keys", default="", metavar="DIR", help="Folder with our secret key, and the syncer's public one.")
@click.option("--key", default="", metavar="NAME", help="Which secret key in --keys is ours, where there are more.")
@click.option(
    "--server-key", default="syncer", show_default=True, metavar="NAME", help="Whose public key in --keys ENDPOINT has."
)
@click.option("--relay", is_flag=True, help="Ask the relay at ENDPOINT (its relay.port) how it stands itself.")
@log_level
def status(endpoint: str, as_json: bool, timeout: float, relay: bool, **ours: str) -> None:
    """Ask the syncer at ENDPOINT (HOST:PORT, its net.port) how its run stands; through a relay, too.

    A learner's steps are those of its present process. Exit code 3: nobody answers.
    """
    if not timeout < float("inf"):
        raise click.BadParameter(f"{timeout} is not a number of seconds.", param_hint="'--timeout'")
    from zdiloco.cli.relay_text import relay_text
    from zdiloco.cli.status_text import status_text
    from zdiloco.errors import ConfigError
    from zdiloco.node.query import Query

    with Query(net_of(endpoint, **ours)) as query:
        answer = query.ask(timeout, relay=relay)
    if relay and "relay" not in answer:
        raise ConfigError(f"ENDPOINT is {endpoint!r}: a syncer answers there, no relay; leave --relay away")
    show = relay_text if relay else status_text
    click.echo(json.dumps(answer, indent=2) if as_json else show(answer))


def net_of(endpoint: str, **more: str) -> "NetParams":
    """Where to dial: 'HOST:PORT', 'tcp://HOST:PORT' or '[IPV6]:PORT'; `more`: what else of section net. Raises
    ConfigError for anything else."""
    from zdiloco.errors import ConfigError
    from zdiloco.node.params import NetParams

    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5:
        raise ConfigError(f"ENDPOINT is {endpoint!r}; write HOST:PORT, such as 127.0.0.1:5700 (the syncer's net.port)")
    settings: dict[str, Any] = {"connect": host.strip("[]"), "port": int(port), **more}
    try:
        return NetParams(**settings)
    except ConfigError as error:
        raise ConfigError(f"ENDPOINT is {endpoint!r}: {error}") from error
