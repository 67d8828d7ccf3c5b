"""Profiles: which regions there are, which links join them, and what each link is like; TOML in, typed values out.

Rule: every value of a link carries its unit in its text, as `tc` has it, and is checked at the door: whatever is wrong
is one line that names file, key and allowed range. The same words set a link while the lab runs.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from zdiloco.errors import ConfigError
from zdiloco.knobs import plain, shown

MAX_REGIONS, MAX_LINKS, MAX_BYTES = 16, 64, 2**16
NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
NAME_SAYS = "a name of at most 24 of a-z, 0-9 and -, a letter first"


class Key(NamedTuple):
    """One word of a link: its field, its units with their factors, and its range in the first of them."""

    field: str
    units: Mapping[str, float]
    low: float
    high: float

    @property
    def says(self) -> str:
        """What is allowed."""
        unit, *others = self.units
        more = f" (or in {', '.join(others)})" if others else ""
        return f"{plain(self.low)}{unit} to {plain(self.high)}{unit}{more}"


KEYS: Mapping[str, Key] = {
    "rate": Key("rate_mbit_s", {"mbit": 1.0, "kbit": 1e-3, "gbit": 1e3}, 0.01, 100_000),
    "delay": Key("delay_ms", {"ms": 1.0, "us": 1e-3, "s": 1e3}, 0, 10_000),
    "jitter": Key("jitter_ms", {"ms": 1.0, "us": 1e-3, "s": 1e3}, 0, 10_000),
    "loss": Key("loss_percent", {"%": 1.0}, 0, 100),
    "queue": Key("queue_ms", {"ms": 1.0, "us": 1e-3, "s": 1e3}, 1, 10_000),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """What a link is like in each of its two directions: `delay_ms` is one way, so a round trip has twice that.

    `jitter_ms`: the delay is drawn evenly from so much less to so much more. `queue_ms`: what would wait longer for the
    rate is dropped.
    """

    rate_mbit_s: float = 1000.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss_percent: float = 0.0
    queue_ms: float = 100.0

    def told(self) -> str:
        """It in words of profiles, as `changed` reads them."""
        values = {name: getattr(self, key.field) for name, key in KEYS.items()}
        return " ".join(f"{name}={value:g}{next(iter(KEYS[name].units))}" for name, value in values.items())

    def changed(self, words: Mapping[str, Any], place: str) -> "Traits":
        """With these values; raises ConfigError that begins with `place` and names key, value and allowed range."""
        changes = {}
        for name, value in words.items():
            key = KEYS.get(name)
            if key is None:
                raise ConfigError(f"{place}: unknown key {name}; known are {', '.join(KEYS)}")
            changes[key.field] = _number(key, value, f"{place}: {name}")
        traits = replace(self, **changes)
        if traits.jitter_ms > traits.delay_ms:
            raise ConfigError(
                f"{place}: jitter is {traits.jitter_ms:g}ms; allowed is 0ms to the delay, here {traits.delay_ms:g}ms"
            )
        return traits


class LinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A link of a profile: the two regions that it joins, and what it is like at first."""

    name: str
    between: tuple[str, str]
    traits: Traits


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Regions, in the order of their addresses, and the links between them; every region can reach every other."""

    name: str
    doc: str
    regions: tuple[str, ...]
    links: tuple[LinkSpec, ...]

    def next_hops(self, region: str) -> dict[str, LinkSpec]:
        """By region: the link by which it is reached from here, on a way of the least delay (then fewest links)."""
        best: dict[str, tuple[float, int]] = {region: (0.0, 0)}
        first: dict[str, LinkSpec] = {}
        left = [region]
        while left:
            left.sort(key=lambda each: best[each], reverse=True)
            here = left.pop()
            for link in self.links:
                if here not in link.between:
                    continue
                there = link.between[link.between[0] == here]
                cost = (best[here][0] + link.traits.delay_ms, best[here][1] + 1)
                if there not in best or cost < best[there]:
                    best[there], first[there] = cost, first.get(here, link)
                    left.append(there)
        return first


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    """A profile as TOML has it."""

    regions: list[str]
    links: dict[str, dict[str, Any]]
    doc: str = ""


def _number(key: Key, value: Any, place: str) -> float:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s?([a-z%]+)", value) if isinstance(value, str) else None
    number = float(found[1]) * key.units[found[2]] if found and found[2] in key.units else None
    if number is None or not key.low <= number <= key.high:
        raise ConfigError(f"{place} is {shown(value)}; allowed is {key.says}")
    return number


def shipped(folder: Path) -> list[str]:
    """Names of the profiles that lie in a folder."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load(word: str, folder: Path) -> Profile:
    """Read a profile: the path of a file, or the name of one in `folder`. Raises ConfigError."""
    path = Path(word)
    if path.suffix != ".toml":
        names = shipped(folder)
        if word not in names:
            near = difflib.get_close_matches(word, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise ConfigError(f"no profile {shown(word)}: {hint}; or give the path of a .toml file")
        path = folder / f"{word}.toml"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path}: has more than {MAX_BYTES} bytes; is it a profile?")
        tree = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not TOML ({error})") from error
    return from_tree(tree, path.stem, str(path))


def from_tree(tree: Mapping[str, Any], name: str, place: str) -> Profile:
    """Build a profile from parsed TOML; raises ConfigError that begins with `place`."""
    try:
        table = msgspec.convert(tree, _Table, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{place}: {error}; a profile has regions (a list of names), [links.NAME], and doc"
        ) from error
    if not 2 <= len(table.regions) <= MAX_REGIONS or len(set(table.regions)) < len(table.regions):
        raise ConfigError(f"{place}: regions is {shown(table.regions)}; allowed are 2 to {MAX_REGIONS} different names")
    _check_names(table.regions, f"{place}: regions")
    if not 1 <= len(table.links) <= MAX_LINKS:
        raise ConfigError(f"{place}: links has {len(table.links)} links; allowed are 1 to {MAX_LINKS}")
    _check_names(table.links, f"{place}: links")
    if both := sorted(set(table.links) & set(table.regions)):
        raise ConfigError(f"{place}: links.{both[0]} is also a region; allowed is a name of its own")
    links = tuple(_link(each, words, table.regions, place) for each, words in table.links.items())
    profile = Profile(name=name, doc=table.doc, regions=tuple(table.regions), links=links)
    apart = set(table.regions) - {table.regions[0], *profile.next_hops(table.regions[0])}
    if apart:
        raise ConfigError(f"{place}: no links lead from {table.regions[0]} to {', '.join(sorted(apart))}; add one")
    return profile


def _check_names(names: Iterable[str], place: str) -> None:
    for name in names:
        if not NAME.fullmatch(name):
            raise ConfigError(f"{place} has {shown(name)}; allowed is {NAME_SAYS}")


def _link(name: str, words: Mapping[str, Any], regions: list[str], place: str) -> LinkSpec:
    told = words.get("between")
    ends = tuple(told) if isinstance(told, list) and all(isinstance(each, str) for each in told) else ()
    if len(ends) != 2 or ends[0] == ends[1] or not set(ends) <= set(regions):
        raise ConfigError(
            f"{place}: links.{name}.between is {shown(told)}; allowed are two different ones of {', '.join(regions)}"
        )
    others = {key: value for key, value in words.items() if key != "between"}
    return LinkSpec(name=name, between=ends, traits=Traits().changed(others, f"{place}: links.{name}"))
