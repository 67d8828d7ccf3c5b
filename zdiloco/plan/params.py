"""What a plan is made from: regions with their links, and the settings of a run.

Rule: what cannot be is a ConfigError of one line that names the place, the value and what is allowed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.errors import ConfigError
from zdiloco.knobs import shown
from zdiloco.node.params import CheckpointParams, MergeParams, NetParams, RelayParams

GBIT = 1e9 / 8
"""Bytes per second of one Gbit/s."""
MOST_LEARNERS = 100_000
_BOUNDS: dict[str, tuple[float, float]] = {
    "learners": (1, MOST_LEARNERS), "step_s": (1e-6, 1e6), "gbit_s": (1e-6, 1e6), "rtt_s": (0, 1e3), "loss": (0, 0.5),
}  # fmt: skip
BY_RATE = frozenset({"bbr", "bbr1", "bbr2", "bbr3"})
"""Congestion controls that pace by what arrives: losses cost them little, and they do not slow down after a pause."""
CONGESTION = ("bbr", "cubic", "reno")
"""Those that a plan knows; what it does not know is taken for cubic, the kernel's own default."""
_KEYS = {"learners": "learners", "step": "step_s", "gbit": "gbit_s", "rtt-ms": "rtt_s", "loss": "loss"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Learners that share a link to the syncer, `gbit_s` each way and `rtt_s` there and back; `relay`: behind one;
    `congestion`: TCP's congestion control on it."""

    name: str
    learners: int = 2
    step_s: float = 1.0
    gbit_s: float = 1.0
    rtt_s: float = 0.08
    loss: float = 0.0
    relay: bool = False
    congestion: str = "cubic"

    def __post_init__(self) -> None:
        if not self.name or self.name != "".join(self.name.split()):
            raise ConfigError(f"a region is named {self.name!r}; a name has no spaces in it")
        for key, (low, high) in _BOUNDS.items():
            value = getattr(self, key)
            if not low <= value <= high:  # nor NaN, nor infinity
                raise ConfigError(f"region {self.name}: {key} is {shown(value)}; allowed is {low:g} to {high:g}")

    @property
    def link_bytes_s(self) -> float:
        """What the link carries, each way."""
        return self.gbit_s * GBIT


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The sections of a run.toml that a plan depends on."""

    sync: SyncParams = field(default_factory=SyncParams)
    learner: LearnerParams = field(default_factory=LearnerParams)
    merge: MergeParams = field(default_factory=MergeParams)
    net: NetParams = field(default_factory=NetParams)
    relay: RelayParams = field(default_factory=RelayParams)
    checkpoint: CheckpointParams = field(default_factory=CheckpointParams)

    @property
    def codec(self) -> str:
        """Of contributions; where links decide, the one that a run begins with."""
        return "bf16" if self.learner.codec == "auto" else self.learner.codec

    @property
    def published(self) -> str:
        """The codec of what is broadcast."""
        return self.merge.publish_codec if self.merge.delta_codec == "none" else self.merge.delta_codec


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """All regions, and the syncer's own link, in Gbit/s each way (infinite: it is not what is short)."""

    regions: tuple[Region, ...]
    syncer_gbit_s: float = math.inf

    def __post_init__(self) -> None:
        names = [region.name for region in self.regions]
        twice = next((name for name in names if names.count(name) > 1), None)
        if not names or twice is not None:
            raise ConfigError(f"two regions are named {twice!r}; each needs its own" if names else "there is no region")
        if not self.syncer_gbit_s > 0:
            raise ConfigError(f"the syncer's link has {self.syncer_gbit_s:g} Gbit/s; it must be above 0")

    @property
    def learners(self) -> int:
        """M."""
        return sum(region.learners for region in self.regions)

    @property
    def ends(self) -> int:
        """Between how many ends data-parallel would sum its gradients: regions, or the learners of a single one."""
        return len(self.regions) if len(self.regions) > 1 else self.learners


def known_congestion(name: str | None) -> str:
    """The one that a plan knows which behaves like that of a system; None: the system does not tell."""
    return "bbr" if name in BY_RATE else name if name in CONGESTION else "cubic"


def check_quorum(fleet: Fleet, settings: Settings) -> None:
    """Raise ConfigError where no round could ever close."""
    if settings.sync.min_quorum > fleet.learners:
        raise ConfigError(
            f"sync.min_quorum is {settings.sync.min_quorum}, but {fleet.learners} learners are planned: no round closes"
        )


def region_of(text: str, usual: Region) -> Region:
    """A region from text such as 'east:learners=2,gbit=5,rtt-ms=80,relay'; what it leaves out is as `usual`."""
    name, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in rest.split(","))):
        key, equals, raw = part.partition("=")
        if part == "relay":
            values["relay"] = True
        elif key in _KEYS and equals:
            values[_KEYS[key]] = _number(f"--region {text}", key, raw)
        else:
            known = ", ".join(f"{each}=" for each in _KEYS)
            raise ConfigError(f"--region {text}: {part!r} is not known; write {known} or relay")
    return replace(usual, name=name, **values)


def _number(place: str, key: str, raw: str) -> float:
    try:
        number = float(raw)
        value = int(number) if key == "learners" else number / 1e3 if key == "rtt-ms" else number
    except (ValueError, OverflowError):
        value = math.nan
    if key == "learners" and value != value:
        raise ConfigError(f"{place}: learners is {raw!r}; allowed is a whole number")
    if value != value or (key == "learners" and value != number):
        raise ConfigError(f"{place}: {key} is {raw!r}; allowed is a {'whole ' if key == 'learners' else ''}number")
    return value


def alike(count: int, usual: Region) -> Sequence[Region]:
    """So many regions like `usual`, named r0, r1, ..."""
    return tuple(replace(usual, name=f"r{number}") for number in range(count))
