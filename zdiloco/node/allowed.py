"""Who may connect: a file that names keys, the learners that they stand for, and what they may do.

Rule: who is not in it is a stranger. A name has one key, and a key one name; an entry that has expired is as good as
none. The routing identity of a connection is worth nothing: what counts is the key by which it was made.
"""

import datetime
import fnmatch
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from zdiloco.core.messages import Bundle, Goodbye, Heartbeat, Hello, Pull, Receipt, StatusQuery
from zdiloco.errors import ConfigError
from zdiloco.knobs import check_name, shown
from zdiloco.node.keys import is_key
from zdiloco.wire.invitations import Join
from zdiloco.wire.transfer import Credit, Gone

MAX_BYTES = 2**22
"""Most bytes of the file: more than ten thousand entries."""
ASKS = "status"
"""Under this name `zdiloco status` asks; whoever is in the file may."""
OF_WATCHERS = (Heartbeat, Pull, Receipt, Goodbye, StatusQuery, Credit, Gone)
"""What one that only watches may say, beside a hello that says so."""


class Right(StrEnum):
    """What the owner of a key may do."""

    CONTRIBUTE = "contribute"
    """Join under its own name, and have its work merged."""
    WATCH = "watch"
    """Ask for the status, and follow what is published."""
    RELAY = "relay"
    """Speak for the learners in `names`, and for itself."""
    JOIN = "join"
    """Put a key of its own in place of this one, once: what an invitation is good for."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file. `next_key`: as good as `key`, while one takes the other's place. `names`: for whom a relay
    speaks; a * stands for any letters. `expires`: the last day, in UTC, on which it holds."""

    key: str
    next_key: str = ""
    rights: tuple[Right, ...] = (Right.CONTRIBUTE,)
    names: tuple[str, ...] = ()
    expires: datetime.date | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Those by which its owner is known."""
        return (self.key, self.next_key) if self.next_key else (self.key,)

    def relays(self, name: str) -> bool:
        """Whether its owner may speak for this learner as a relay."""
        return Right.RELAY in self.rights and any(fnmatch.fnmatchcase(name, each) for each in self.names)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the file says; `entries` by name."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    _names: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, key: str) -> str:
        """Whose key this is; empty: a stranger's."""
        return self._names.get(key, "")

    def only_joins(self, key: str) -> bool:
        """Whether this key is an invitation's."""
        return self.entries[self.name_of(key)].rights == (Right.JOIN,)

    def over(self, today: datetime.date) -> set[str]:
        """The names whose entry has expired."""
        return {name for name, entry in self.entries.items() if entry.expires and today > entry.expires}

    def why_not(self, key: str, today: datetime.date) -> str:
        """Why the owner of a key may not connect; empty: it may."""
        name = self.name_of(key)
        if not name:
            return "its key is not in net.allowed"
        expires = self.entries[name].expires
        return f"the key of {name} was good until {expires}" if expires and today > expires else ""

    def may_say(self, key: str, name: str, message: object, today: datetime.date) -> bool:
        """Whether the owner of a key may say this under a learner's name."""
        if self.why_not(key, today):
            return False
        owner = self.name_of(key)
        entry = self.entries[owner]
        if isinstance(message, Join):
            return name == owner and (Right.JOIN in entry.rights or Right.CONTRIBUTE in entry.rights)
        if entry.rights == (Right.JOIN,):
            return False
        if name == ASKS:
            return _follows(message)
        if isinstance(message, Bundle) and not all(entry.relays(member.name) for member in message.members):
            return False  # it holds what learners have done for whom this key may not speak
        if Right.RELAY in entry.rights and (name == Right.RELAY or entry.relays(name)):
            return True
        if name != owner:
            return False
        return Right.CONTRIBUTE in entry.rights or (Right.WATCH in entry.rights and _follows(message))


def _follows(message: object) -> bool:
    return isinstance(message, OF_WATCHERS) or (isinstance(message, Hello) and message.watching)


def load_allowed(
    place: Path, invited: Mapping[str, Entry] | None = None, *, unlisted: bool = True, nobody: bool = False
) -> Allowed:  # fmt: skip
    """Read the file, and put `invited` beside it. Where it never was (`unlisted`) it need not be there if somebody is
    invited, or if `nobody` may be, since all of them were withdrawn. Raises ConfigError naming the file and the entry;
    also where nobody is in it, and may not be."""
    may_be_missing = unlisted and bool(invited or nobody)
    tree = _tree(place) if place.exists() or not may_be_missing else {}
    if not (tree or invited or nobody):
        raise ConfigError(f"{place}: nobody is in it; it wants a table [NAME] with a key for each who may connect")
    return beside({name: _entry(place, name, table) for name, table in tree.items()}, invited or {}, place)


def beside(listed: Mapping[str, Entry], invited: Mapping[str, Entry], place: Path) -> Allowed:
    """Those of the list at `place`, and who was invited, unless the list has the name or the key. Raises ConfigError
    where two have the same key."""
    keys = {key for entry in listed.values() for key in entry.keys}
    others = {name: entry for name, entry in invited.items() if name not in listed and keys.isdisjoint(entry.keys)}
    try:
        return allowed_of({**others, **listed})
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from error


def allowed_of(entries: Mapping[str, Entry]) -> Allowed:
    """These entries by name and by key. Raises ValueError where two have the same key."""
    names: dict[str, str] = {}
    for name, key in ((name, key) for name, entry in entries.items() for key in entry.keys):
        if key in names:
            raise ValueError(f"{names[key]} and {name} have the same key; each wants its own")
        names[key] = name
    return Allowed(entries, names)


def names_in(place: Path) -> set[str]:
    """The names in the file; it may be empty, or missing. Raises ConfigError where it cannot be read."""
    return set(_tree(place)) if place.exists() else set()


def load_entry(place: Path, name: str) -> Entry:
    """The entry of this name that is a whole file. Raises ConfigError."""
    return _entry(place, name, _tree(place))


def _tree(place: Path) -> dict[str, Any]:
    try:
        with place.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{place}: has more than {MAX_BYTES} bytes; is it a list of keys?")
        return tomllib.loads(data.decode())
    except OSError as error:
        why = f"cannot be read ({error.strerror}); net.allowed says who may connect (or zdiloco invite)"
        raise ConfigError(f"{place}: {why}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: is not TOML ({error})") from error


def _entry(place: Path, name: str, table: Any) -> Entry:
    check_name(name, f"{place}: a name")
    if name == ASKS:
        raise ConfigError(f"{place}: the name {name!r} is the house's own; choose another one")
    if not isinstance(table, dict):
        raise ConfigError(f"{place}: {name} is {shown(table)}; it must be a table, written [{name}]")
    try:
        entry = msgspec.convert(table, Entry)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: [{name}]: {error}; known are key, next_key, rights, names, expires") from error
    for which, key in zip(("key", "next_key"), entry.keys, strict=False):
        if not is_key(key):
            raise ConfigError(f"{place}: [{name}]: {which} is {shown(key)}; copy the 40 characters of {name}.key")
    if not entry.rights:
        raise ConfigError(f"{place}: [{name}]: rights is empty; allowed are {', '.join(Right)}")
    if (Right.RELAY in entry.rights) != bool(entry.names):
        raise ConfigError(f"{place}: [{name}]: names says for whom a relay speaks, and belongs to the right relay")
    if name == Right.RELAY and Right.RELAY not in entry.rights:
        raise ConfigError(f"{place}: [{name}]: only a relay has this name; give it the right relay, or another name")
    return entry
