"""One run.toml for all roles: TOML in, a typed tree out. The only file that knows every Params.

Rule: a key is known, of its type and in its range, or the user reads which file, key and value are wrong and what is
allowed. Nothing is taken from the environment; `section.key=value` overrides come last and win.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec

from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.errors import ConfigError
from zdiloco.knobs import shown
from zdiloco.node.params import CheckpointParams, MergeParams, NetParams, RelayParams, RunParams
from zdiloco.train.params import TaskParams


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that can be set about a run; made without arguments it holds the defaults."""

    run: RunParams = field(default_factory=RunParams)
    sync: SyncParams = field(default_factory=SyncParams)
    merge: MergeParams = field(default_factory=MergeParams)
    learner: LearnerParams = field(default_factory=LearnerParams)
    task: TaskParams = field(default_factory=TaskParams)
    net: NetParams = field(default_factory=NetParams)
    relay: RelayParams = field(default_factory=RelayParams)
    checkpoint: CheckpointParams = field(default_factory=CheckpointParams)

    def __post_init__(self) -> None:
        self.relay.check_listen(self.net)
        if self.merge.robust != "none" and self.relay.premerge:
            raise ConfigError(
                f"merge.robust is {self.merge.robust!r}, and relay.premerge is true: what a relay has merged hides who "
                "sent what. Set one of them back, merge.robust to 'none' or relay.premerge to false"
            )


SECTIONS: Mapping[str, type] = get_type_hints(RunConfig)
"""Section name -> the dataclass that owns its keys."""


MAX_BITS = 1024
MAX_BYTES = 2**18
"""Most bytes of a run.toml: a file that is larger is something else."""


class Key(NamedTuple):
    """One key as `config show` prints it; `type` and `default` as in TOML, `unit` may be empty."""

    section: str
    name: str
    type: str
    default: Any
    unit: str
    doc: str

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"


def describe() -> tuple[Key, ...]:
    """Every key there is, in the order of sections and fields."""
    return tuple(
        Key(section, f.name, _type_name(hint), f.default, f.metadata["unit"], f.metadata["doc"])
        for section, owner in SECTIONS.items()
        for f, hint in _hinted(owner)
    )


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a run.toml and apply `section.key=value` overrides. Raises ConfigError naming the file and the place."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path}: has more than {MAX_BYTES} bytes; is it a run.toml?")
        tree = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except ValueError as error:  # TOMLDecodeError, and what Python says of absurdly long numbers
        raise ConfigError(f"{path}: is not TOML ({error})") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply for a run.toml") from error
    return from_tree(tree, overrides, source=str(path))


def from_tree(tree: Mapping[str, Any], overrides: Iterable[str] = (), *, source: str = "configuration") -> RunConfig:
    """Build the typed tree from parsed TOML and overrides; errors begin with `source`, or with the override."""
    origin: dict[str, str] = {}
    merged: dict[str, dict[str, Any]] = {}
    for section, table in tree.items():
        _check_section(section, source)
        if not isinstance(table, Mapping):
            raise ConfigError(f"{source}: {section} is {shown(table)}; it must be a section, written [{section}]")
        merged[section] = dict(table)
    for text in overrides:
        section, name, value = _parse_override(text)
        merged.setdefault(section, {})[name] = value
        origin[f"{section}.{name}"] = f"--set {text}"
    sections = {s: _section(s, merged.get(s, {}), origin, source) for s in SECTIONS}
    try:
        return RunConfig(**sections)
    except ConfigError as error:  # each is right by itself, but they do not go together
        places = sorted({place for path, place in origin.items() if path in str(error)})
        raise ConfigError(f"{', '.join(places) or source}: {error}") from error


def to_toml(config: RunConfig) -> str:
    """Write a configuration as TOML, every key with its unit and meaning before it."""
    lines: list[str] = []
    for section, owner in SECTIONS.items():
        lines += ["", f"[{section}]"]
        values = getattr(config, section)
        for f, hint in _hinted(owner):
            unit = f" [{f.metadata['unit']}]" if f.metadata["unit"] else ""
            lines.append(f"# {f.metadata['doc']}{unit}. Default {_toml(f.default)}")
            lines.append(f"{f.name} = {_toml(getattr(values, f.name))}  # {_type_name(hint)}")
    return "\n".join(lines[1:]) + "\n"


NOT_SHARED = frozenset({
    "run.dir", "run.init", "learner.region", "task.data_dir", "task.device", "net.listen", "net.connect", "net.port",
    "net.insecure", "net.keys", "net.key", "net.server_key", "net.allowed",
})  # fmt: skip
"""What differs from machine to machine."""


def shared(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """What all machines of a run set alike: each key's path, and its value as TOML writes it."""
    return tuple(
        (key.path, _toml(getattr(getattr(config, key.section), key.name)))
        for key in describe()
        if key.path not in NOT_SHARED and key.section not in ("relay", "checkpoint")
    )


def of_shared(settings: Iterable[tuple[str, str]], mine: Mapping[str, Mapping[str, Any]], source: str) -> RunConfig:
    """What `shared` was made of, with `mine` of this machine. Raises ConfigError, which begins with `source`, for keys
    that are not known or not to be shared, and values that are wrong."""
    tree: dict[str, dict[str, Any]] = {}
    for path, value in settings:
        section, _, name = path.partition(".")
        if path in NOT_SHARED:
            raise ConfigError(f"{source}: {path} is no setting to be taken over from others")
        try:
            (tree.setdefault(section, {})[name],) = tomllib.loads(f"value = {value}").values()
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source}: {path} is {shown(value)}, which is not TOML") from error
    for section, table in mine.items():
        tree.setdefault(section, {}).update(table)
    return from_tree(tree, source=source)


def _hinted(owner: type) -> Iterable[tuple[Any, Any]]:
    hints = get_type_hints(owner)
    return ((f, hints[f.name]) for f in fields(owner) if f.init)


def _section(section: str, table: Mapping[str, Any], origin: Mapping[str, str], source: str) -> Any:
    owner = SECTIONS[section]
    hints = {f.name: hint for f, hint in _hinted(owner)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{section}.{name}"
        place = origin.get(path, source)
        if name not in hints:
            raise ConfigError(f"{place}: unknown key {path}{_nearest(path)}")
        try:
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise ValueError("a number without end")
            values[name] = msgspec.convert(value, hints[name], strict=True)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            allowed = _type_name(hints[name])
            raise ConfigError(f"{place}: {path} is {shown(value)}; allowed is {allowed}") from error
    try:
        return owner(**values)
    except ConfigError as error:
        named = (name for name in values if _names(str(error), section, name))
        places = sorted({origin.get(f"{section}.{name}", source) for name in named})
        raise ConfigError(f"{', '.join(places) or source}: {error}") from error


def _names(text: str, section: str, name: str) -> bool:
    """Whether an error is about this key, too. Without its section only a name that is no English word counts."""
    path = rf"{section}\.{name}"
    return bool(re.search(rf"\b{path}\b" + (rf"|\b{name}\b" if "_" in name else ""), text))


def _parse_override(text: str) -> tuple[str, str, Any]:
    path, equals, raw = text.partition("=")
    section, dot, name = path.strip().partition(".")
    if not (equals and dot and name):
        raise ConfigError(f"--set {text}: write it as section.key=value")
    _check_section(section, f"--set {text}")
    try:
        return section, name, tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return section, name, raw.strip()  # a bare string


def _check_section(section: str, place: str) -> None:
    if section not in SECTIONS:
        near = difflib.get_close_matches(section, SECTIONS, 1, 0.5)
        hint = f"; did you mean [{near[0]}]?" if near else f"; known are {', '.join(SECTIONS)}"
        raise ConfigError(f"{place}: unknown section [{section}]{hint}")


def _nearest(path: str) -> str:
    """The known key that is nearest: in the same section if one is near, else the same name in another section."""
    section, _, name = path.partition(".")
    keys = describe()
    near = difflib.get_close_matches(name, [k.name for k in keys if k.section == section], 1, 0.5)
    if near:
        return f"; did you mean {section}.{near[0]}?"
    elsewhere = [k.path for k in keys if k.name == name]
    near = elsewhere or difflib.get_close_matches(path, [k.path for k in keys], 1, 0.0)
    return f"; did you mean {near[0]}?"


def _type_name(hint: Any) -> str:
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(hint, str(hint))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in text) + '"'
    return repr(value)
