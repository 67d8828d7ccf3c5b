"""Key pairs as files, and what a process loads of them: its own pair, and the public key of whom it dials.

Rule: the files are those of ZeroMQ's own tools: NAME.key may be shown to anybody, NAME.key_secret is its owner's alone
and is refused where others can read it. No key is ever logged or sent but the public ones.
"""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth

from zdiloco.errors import ConfigError
from zdiloco.knobs import check_name
from zdiloco.node.params import NetParams

PUBLIC, SECRET = ".key", ".key_secret"
KEY_CHARS = 40
"""A key as text: 32 bytes in Z85."""
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Pair:
    """A key pair, each half as 40 characters."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """What one process needs: its `own` pair, and the public key that whoever it dials must have (`server`)."""

    own: Pair
    server: bytes


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a new pair and write both files into a folder, made if need be; returns their places.

    Raises ConfigError where the library has no CURVE, or one of the files is there already or cannot be written.
    """
    check_name(name, "the name of a key")
    if not zmq.has("curve"):
        raise ConfigError("this build of libzmq has no CURVE: install pyzmq from its wheel")
    places = folder / f"{name}{PUBLIC}", folder / f"{name}{SECRET}"
    for place in places:
        if place.exists():
            raise ConfigError(f"{place} is there already, and is not replaced: choose another name, or remove it first")
    before = os.umask(0o077)  # so that nobody reads the secret one while it is written
    try:
        folder.mkdir(parents=True, exist_ok=True)
        zmq.auth.create_certificates(folder, name)
        places[0].chmod(0o644)
    except OSError as error:
        raise ConfigError(f"{folder}: keys cannot be written there ({error.strerror})") from error
    finally:
        os.umask(before)
    return places


def save_public(folder: Path, name: str, key: str) -> None:
    """Write somebody's public key into a folder of keys, over one that is there. Raises ConfigError."""
    place = folder / f"{name}{PUBLIC}"
    try:
        place.write_text(f'metadata\ncurve\n    public-key = "{key}"\n')
    except OSError as error:
        raise ConfigError(f"{place} cannot be written ({error.strerror})") from error


def load_public(folder: Path, name: str) -> bytes:
    """The public key of this name. Raises ConfigError."""
    missing = f"net.keys {folder} has no public key of {name!r}: copy {name}{PUBLIC} there"
    return _read(folder / f"{name}{PUBLIC}", missing)[0]


def load_pair(folder: Path, name: str) -> Pair:
    """The pair of this name, from its secret file. Raises ConfigError, also where others can read that."""
    place = folder / f"{name}{SECRET}"
    public, secret = _read(place, f"net.keys {folder} has no secret key of {name!r}: zdiloco keygen {folder} {name}")
    if not secret:
        raise ConfigError(f"{place} holds no secret key: is it a copy of {name}{PUBLIC}?")
    if place.stat().st_mode & FOR_OTHERS:
        raise ConfigError(f"{place} can be read by others: chmod 600 {place}; where they may have, make a new pair")
    if zmq.curve_public(secret) != public:
        raise ConfigError(f"{place}: its two keys do not belong together; make a new pair")
    return Pair(public, secret)


def keys_of(net: NetParams, name: str, *, dials: bool = True) -> Keys | None:
    """What a process of this name loads by `net.keys`; None: there are none, and nothing is encrypted.

    `name` empty: whoever has the only secret key there is. `dials`: it wants the key of its server, too. Raises
    ConfigError.
    """
    if not net.keys:
        return None
    folder = Path(net.keys)
    own = load_pair(folder, net.key or name or _only_one(folder))
    return Keys(own, load_public(folder, net.server_key) if dials else own.public)


def _check_entered(folder: Path) -> None:
    """Raise ConfigError where there is such a folder, and it is not ours to look into."""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"net.keys {folder} cannot be read by this user: run this as root, or as whoever owns it")


def _only_one(folder: Path) -> str:
    _check_entered(folder)
    names = sorted(each.name.removesuffix(SECRET) for each in folder.glob(f"*{SECRET}"))
    if len(names) != 1:
        there = f"there are {', '.join(names)}" if names else "there is none: zdiloco keygen makes one"
        raise ConfigError(f"net.keys {folder}: which secret key is ours? Set net.key; {there}")
    return names[0]


def is_key(text: str) -> bool:
    """Whether this can be a public key."""
    try:
        return len(text) == KEY_CHARS and len(zmq.utils.z85.decode(text)) == 32
    except (KeyError, ValueError, OverflowError):
        return False


def _read(place: Path, missing: str) -> tuple[bytes, bytes]:
    try:
        public, secret = zmq.auth.load_certificate(place)
    except FileNotFoundError as error:
        raise ConfigError(missing) from error
    except OSError as error:
        _check_entered(place.parent)
        if not place.exists():
            raise ConfigError(missing) from error
        raise ConfigError(f"{place} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{place} is no key file: {error}") from error
    for key in (public, secret):
        if key and not is_key(key.decode("ascii", "replace")):
            raise ConfigError(f"{place}: a key has {KEY_CHARS} characters of Z85; make a new pair")
    return public, secret or b""
