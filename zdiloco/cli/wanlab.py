"""The command `bin/wan-lab`: regions and wide-area links on one machine."""

import json
import os
import sys
from pathlib import Path

import click

from zdiloco.cli.main import run
from zdiloco.errors import ConfigError
from zdiloco.wanlab import profile as profiles
from zdiloco.wanlab.engines import ENGINES
from zdiloco.wanlab.lab import Lab

PROFILES = Path(profiles.__file__).with_name("profiles")
NEEDS = (
    "wan-lab needs root, for network namespaces: run it by sudo, or as root in a container with NET_ADMIN and SYS_ADMIN"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--lab", "name", default="lab", show_default=True, help="Name of the lab, where there are several.")
@click.pass_context
def wan_lab(context: click.Context, name: str) -> None:
    """Regions as network namespaces on this machine, joined by links with rate, delay, jitter, loss and queue."""
    if not profiles.NAME.fullmatch(name):
        raise ConfigError(f"--lab is {name!r}; allowed is {profiles.NAME_SAYS}")
    context.obj = Lab(name)


def _root() -> None:
    if os.geteuid() != 0:
        raise ConfigError(NEEDS)


@wan_lab.command()
@click.argument("profile")
@click.option(
    "--engine",
    type=click.Choice(["auto", *ENGINES]),
    default="auto",
    show_default=True,
    help="netem: tc netem and tbf; tun: tbf and a process; auto: netem where the kernel has it.",
)
@click.pass_obj
def up(lab: Lab, profile: str, engine: str) -> None:
    """Put up PROFILE: a name in config/wan, or a .toml file; takes down what was up."""
    plan = profiles.load(profile, PROFILES)
    _root()
    with lab.locked():
        lab.up(plan, engine)
    _show(lab)


@wan_lab.command()
@click.pass_obj
def down(lab: Lab) -> None:
    """End every process in the regions, and remove all of the lab; also what a killed command has left."""
    _root()
    with lab.locked():
        click.echo(f"{lab.name}: taken down" if lab.down() else f"{lab.name}: nothing was up")


@wan_lab.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def show(lab: Lab, as_json: bool) -> None:
    """Regions with their addresses, and links as they are now."""
    if as_json:
        click.echo(json.dumps(lab.shown(), indent=2))
    else:
        _show(lab)


def _show(lab: Lab) -> None:
    state = lab.state()
    click.echo(f"{lab.name}: {state.profile}, engine {state.engine}" + (f": {state.doc}" if state.doc else ""))
    for region in state.regions:
        click.echo(f"  {region.name:<24} {region.address}")
    for link in state.links:
        ends = " - ".join(link.between)
        click.echo(f"  {link.name:<24} {ends}: {link.traits.told()}{'  CUT' if link.cut else ''}")


@wan_lab.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("region")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def execute(lab: Lab, region: str, command: tuple[str, ...]) -> None:
    """Run COMMAND in REGION, in place of this one: its exit code is the command's."""
    _root()
    words = list(command[1:] if command[0] == "--" else command)
    lab.enter(region)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        raise ConfigError(f"cannot run {words[0]} ({error.strerror})") from error


@wan_lab.command("set")
@click.argument("link")
@click.argument("words", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.pass_obj
def change(lab: Lab, link: str, words: tuple[str, ...]) -> None:
    """Change LINK in both directions while it carries: rate=50mbit delay=40ms jitter=2ms loss=1% queue=100ms."""
    _root()
    pairs = dict(word.partition("=")[::2] for word in words)
    with lab.locked():
        now = lab.change(link, pairs)
    click.echo(f"{link}: {now.traits.told()}")


@wan_lab.command()
@click.argument("names", nargs=-1, required=True, metavar="REGION|LINK...")
@click.pass_obj
def partition(lab: Lab, names: tuple[str, ...]) -> None:
    """Let nothing through these links, or any link of these regions."""
    _cut(lab, names, True)


@wan_lab.command()
@click.argument("names", nargs=-1, metavar="[REGION|LINK...]")
@click.pass_obj
def heal(lab: Lab, names: tuple[str, ...]) -> None:
    """Let these links carry again; without a name all."""
    _cut(lab, names, False)


def _cut(lab: Lab, names: tuple[str, ...], cut: bool) -> None:
    _root()
    with lab.locked():
        links = lab.cut(names, cut)
    click.echo(f"{'cut' if cut else 'healed'}: {', '.join(each.name for each in links)}")


if __name__ == "__main__":
    sys.exit(run(command=wan_lab, name="wan-lab"))
