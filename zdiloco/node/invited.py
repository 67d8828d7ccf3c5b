"""Whom a syncer has invited, and who has come: a file for each name in a folder of the run.

Rule: a file has the one table of an entry in `net.allowed`. Its key is at first that of the invitation, with the right
to join and nothing else, and then, once, replaced by the key that the invited machine has made for itself. Where
`net.allowed` has an entry of the same name, that one counts.
"""

import datetime
import os
from pathlib import Path

import zmq

from zdiloco.errors import ConfigError
from zdiloco.knobs import check_name
from zdiloco.node.allowed import ASKS, Entry, Right, load_entry
from zdiloco.node.keys import Pair
from zdiloco.rundir.disk import Disk

FOLDER, SUFFIX = "invited", ".toml"
SERVER = "syncer"
"""Under which name who joins keeps the syncer's public key."""
MOST = 10_000


def load_invited(folder: Path) -> dict[str, Entry]:
    """The entries by name; nobody, where there is no such folder. Raises ConfigError naming the file."""
    try:
        places = sorted(folder.glob(f"*{SUFFIX}"))[:MOST]
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from error
    return {place.name.removesuffix(SUFFIX): load_entry(place, place.name.removesuffix(SUFFIX)) for place in places}


def invite(folder: Path, name: str, expires: datetime.date) -> Pair:
    """Invite whoever will have the pair that is returned; an invitation of this name that was not used is void then.

    Raises ConfigError where this name has joined already, or the file cannot be written.
    """
    check_name(name, "the name that is invited")
    if name in (ASKS, Right.RELAY, SERVER):
        raise ConfigError(f"the name {name!r} is the house's own; choose another one")
    place = folder / f"{name}{SUFFIX}"
    if place.exists() and Right.JOIN not in load_entry(place, name).rights:
        raise ConfigError(f"{name} has joined already; zdiloco invite --withdraw takes it out, to be invited anew")
    public, secret = zmq.curve_keypair()
    try:
        _make(folder)
        _write(place, Entry(key=public.decode(), rights=(Right.JOIN,), expires=expires))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return Pair(public, secret)


def accept(folder: Path, name: str, key: str) -> Entry:
    """From now on the machine with this key is `name`; durable when it returns. Raises OSError."""
    entry = Entry(key=key)
    _write(folder / f"{name}{SUFFIX}", entry)
    return entry


def withdraw(folder: Path, name: str) -> None:
    """Take the file of a name away, whether it has joined or not. Raises ConfigError where there is none."""
    try:
        (folder / f"{name}{SUFFIX}").unlink()
    except OSError as error:
        where = f"{folder}/{name}{SUFFIX}: {error.strerror}"
        raise ConfigError(f"{name} was not invited ({where}); who is in net.allowed is taken out there") from error


def state_of(folder: Path) -> int:
    """A number that changes when a file comes, goes or is replaced."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _write(place: Path, entry: Entry) -> None:
    rights = ", ".join(f'"{right}"' for right in entry.rights)
    lines = [f'key = "{entry.key}"', f"rights = [{rights}]"]
    lines += [f"expires = {entry.expires}"] if entry.expires else []
    disk = Disk()
    disk.put(place, ("\n".join(lines) + "\n").encode())
    _belongs_as(place, place.parent)
    disk.sync_folder(place.parent)


def _make(folder: Path) -> None:
    """Make a folder with those above it; each belongs to whom the one above it does, for who invites may be root."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        _belongs_as(each, each.parent)


def _belongs_as(place: Path, above: Path) -> None:
    if os.geteuid() == 0:
        owner = above.stat()
        os.chown(place, owner.st_uid, owner.st_gid)
