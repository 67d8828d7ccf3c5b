"""Fields of a section of `run.toml`: each says what it means and in which unit, and is checked at the door.

Rule: the section that owns a key makes it with `knob`; `config.py` reads what it says.
"""

import re
from dataclasses import field
from typing import Any

from zdiloco.errors import ConfigError


def knob(default: Any, doc: str, unit: str = "") -> Any:
    """A dataclass field with its documentation: what it means, and its unit."""
    return field(default=default, metadata={"doc": doc, "unit": unit})


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_SHOWN = 100
"""Characters of a wrong value that are shown."""


def shown(value: object) -> str:
    """A wrong value as it may stand in one line."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def plain(number: float) -> str:
    """A bound as people write it: whole numbers without point or exponent."""
    return str(int(number)) if number == int(number) else repr(number)


def check_name(name: str, place: str) -> None:
    """Raise ConfigError unless `name` may name a run, a learner or a region."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"{place} is {name!r}; allowed are 1 to 64 letters, digits, '.', '_', '-', not first a sign")


def check_knobs(owner: object, section: str, **bounds: tuple[float, float]) -> None:
    """Raise ConfigError unless each named field lies in its closed interval."""
    for name, (low, high) in bounds.items():
        value = getattr(owner, name)
        if not low <= value <= high:
            raise ConfigError(f"{section}.{name} is {shown(value)}; allowed is {plain(low)} to {plain(high)}")


def check_choices(owner: object, section: str, **choices: tuple[str, ...]) -> None:
    """Raise ConfigError unless each named field is one of its words."""
    for name, allowed in choices.items():
        value = getattr(owner, name)
        if value not in allowed:
            raise ConfigError(f"{section}.{name} is {value!r}; allowed is {', '.join(map(repr, allowed))}")
