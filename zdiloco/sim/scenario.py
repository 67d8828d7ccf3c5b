"""A scenario: who takes part, on what links, and what goes wrong when; checked before anything happens.

Rule: a scenario that cannot be is a ConfigError of one line that names the place, the value and what is allowed. Equal
scenarios give equal records.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from zdiloco.core.bounds import MAX_NAME
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.errors import ConfigError
from zdiloco.knobs import check_name, shown
from zdiloco.sim.fault_names import OF_RELAYS, OF_SYNCER, FaultName
from zdiloco.sim.sizes import BYTES, DELTA_CODECS
from zdiloco.wire.stripes import MOST_STRIPES

MOST_LEARNERS = 100_000
MOST_FRAGMENTS = 511
NEVER = 10**9
"""Tokens that no story reaches."""
MOST_SECONDS = 1e7
SpecT = TypeVar("SpecT", "Scenario", "LearnerSpec", "RelaySpec", "Fault", SyncParams, LearnerParams)
WANTED: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
"""What settings of these types are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault: when, what, to whom (a learner, a region, a relay, or nobody where it is the syncer's), how long."""

    at_s: float
    name: FaultName
    who: str = ""
    for_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _fault_name(self.name))
        _check(f"fault {self.name}", self, at_s=(0, MOST_SECONDS), for_s=(0, MOST_SECONDS))


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerSpec:
    """One learner: its pace, its link, and when it joins."""

    name: str
    step_s: float = 0.05
    jitter: float = 0.0
    drift: float = 0.0
    stalls: float = 0.0
    stall_s: float = 0.0
    latency_s: float = 0.001
    link_jitter_s: float = 0.0
    up_bytes_s: float = 2e7
    down_bytes_s: float = 2e7
    loss: float = 0.0
    stripes: int = 1
    region: str = ""
    joins_at_s: float = 0.0
    max_unmerged_steps: int = 0

    def __post_init__(self) -> None:
        _check_name("learner", self.name)
        if self.region:
            check_name(self.region, f"learner {self.name}: region")
        place, rate = f"learner {self.name}", (1e-3, 1e15)
        _check(place, self, step_s=(1e-6, 1e6), jitter=(0, 1), drift=(0, 1), stalls=(0, 1), stall_s=(0, 1e6))
        _check(place, self, latency_s=(0, 1e4), link_jitter_s=(0, 1e4), up_bytes_s=rate, down_bytes_s=rate)
        _check(place, self, loss=(0, 0.9), stripes=(1, MOST_STRIPES), joins_at_s=(0, MOST_SECONDS))
        _check(place, self, max_unmerged_steps=(0, 2**53))


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySpec:
    """One relay: its name is that of the region that it serves, its link the far one; `region`: it dials the relay of
    that region. The last four as in the section relay of a run.toml.
    """

    name: str
    latency_s: float = 0.05
    link_jitter_s: float = 0.0
    up_bytes_s: float = 2e6
    down_bytes_s: float = 2e6
    loss: float = 0.0
    region: str = ""
    cache_bytes: int = 2**24
    budget_bytes: int = 2**22
    most_learners: int = 64
    forget_after_s: float = 30.0
    premerge: bool = False

    def __post_init__(self) -> None:
        _check_name("relay", self.name)
        place, rate, size = f"relay {self.name}", (1e-3, 1e15), (2**10, 2**50)
        _check(place, self, latency_s=(0, 1e4), link_jitter_s=(0, 1e4), up_bytes_s=rate, down_bytes_s=rate)
        _check(place, self, loss=(0, 0.9), cache_bytes=size, budget_bytes=size)
        _check(place, self, most_learners=(1, 4096), forget_after_s=(1, 1e6), premerge=(0, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A whole story. After `seconds` everything heals; then all work must be merged within `heal_s`.

    `sync` and `learner` are settings of these sections that differ from the defaults. `exact`: work is followed by
    ids; `chunked`: bodies travel in chunks, as long as `delta_codec` and learner.codec make them. A run with a target
    must end within `heal_s` instead. `expect`: branches that must have occurred at least so often.
    """

    seed: int = 0
    seconds: float = 30.0
    heal_s: float = 110.0
    fragments: int = 1
    exact: bool = True
    chunked: bool = True
    target_tokens: int = NEVER
    delta_codec: str = "none"
    learners: tuple[LearnerSpec, ...] = ()
    relays: tuple[RelaySpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    sync: Mapping[str, Any] = field(default_factory=dict)
    learner: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check("world", self, seed=(0, 2**64), seconds=(0, MOST_SECONDS), heal_s=(0, MOST_SECONDS))
        _check("world", self, fragments=(1, MOST_FRAGMENTS), target_tokens=(0, 2**53), exact=(0, 1), chunked=(0, 1))
        if not 1 <= len(self.learners) <= MOST_LEARNERS:
            raise ConfigError(f"a scenario has {len(self.learners)} learners; allowed is 1 to {MOST_LEARNERS}")
        for what, specs in (("learners", self.learners), ("relays", self.relays)):
            twice = [name for name, count in Counter(spec.name for spec in specs).items() if count > 1]
            if twice:
                raise ConfigError(f"two {what} are named {twice[0]!r}; each needs a name of its own")
        quorum = self.params().min_quorum
        if quorum > len(self.learners):
            raise ConfigError(
                f"sync.min_quorum is {quorum}, but there are {len(self.learners)} learners: no round could ever close"
            )
        self.learner_params()
        if self.delta_codec not in DELTA_CODECS:
            raise ConfigError(f"world: delta_codec is {self.delta_codec!r}; allowed is {', '.join(DELTA_CODECS)}")
        self._check_relays()
        self._check_faults()
        steps = sum((self.seconds + self.heal_s) / spec.step_s for spec in self.learners)
        least = min(BYTES[codec] for codec in ("fp32", self.delta_codec, self.learner.get("codec")) if codec in BYTES)
        if self.exact and self.chunked and steps > 8 * least:
            raise ConfigError(f"{steps:.0f} steps do not fit a body of {least} bytes; set exact or chunked to false")

    def _check_relays(self) -> None:
        above = {spec.name: spec.region for spec in self.relays}
        if above and not self.chunked:
            raise ConfigError("relays pass chunks on: leave chunked at true")
        for name, region in above.items():
            if region and region not in above:
                raise ConfigError(f"relay {name}: region is {region!r}, which has no relay that it could dial")
            way = [name]
            while (up := above[way[-1]]) and up not in way:
                way.append(up)
            if up:
                raise ConfigError(f"relay {name}: it is behind itself ({' > '.join([*way, up])})")

    def _check_faults(self) -> None:
        names, relays = {spec.name for spec in self.learners}, {spec.name for spec in self.relays}
        regions = {spec.region for spec in self.learners} - {""} | relays
        for fault in self.faults:
            if fault.name is FaultName.CUT_REGION or (fault.name is FaultName.HALF_GONE and fault.who):
                known, what = regions, "region"
            elif fault.name in OF_RELAYS:
                known, what = relays, "relay"
            elif fault.name in OF_SYNCER:
                known, what = {"", "syncer"}, "learner: it is the syncer's"
            else:
                known, what = names, "learner"
            if fault.who not in known:
                raise ConfigError(f"fault {fault.name} at {fault.at_s:g} s: {fault.who!r} is no {what}")

    @property
    def ends(self) -> bool:
        """Whether the run reaches its target some time, rather than being stopped in the middle of things."""
        return 0 < self.target_tokens < NEVER

    def params(self) -> SyncParams:
        """The settings of the section sync."""
        return _build(SyncParams, self.sync, "sync")

    def learner_params(self) -> LearnerParams:
        """The settings of the section learner."""
        return _build(LearnerParams, self.learner, "learner")


def scenarios_of(scenario: Scenario, seeds: Sequence[int]) -> list[Scenario]:
    """The same story with each of these seeds. Raises: ConfigError for a seed that is named twice."""
    twice = [seed for seed, count in Counter(seeds).items() if count > 1]
    if twice:
        raise ConfigError(f"the seed {twice[0]} is named twice; the same seed gives the same records")
    return [scenario_from_dict({**scenario_to_dict(scenario), "seed": seed}) for seed in seeds]


def scenario_from_dict(value: Mapping[str, Any]) -> Scenario:
    """A scenario from plain maps and lists, as of a JSON or TOML file. Raises: ConfigError."""
    plain = dict(value)
    learners = tuple(learner_of(each) for each in plain.pop("learners", ()))
    relays = tuple(relay_of(each) for each in plain.pop("relays", ()))
    faults = tuple(fault_of(each) for each in plain.pop("faults", ()))
    return _build(Scenario, {**plain, "learners": learners, "relays": relays, "faults": faults}, "scenario")


def learner_of(value: Any) -> LearnerSpec:
    """A learner from a plain map. Raises: ConfigError."""
    return _build(LearnerSpec, value, "learners")


def relay_of(value: Any) -> RelaySpec:
    """A relay from a plain map. Raises: ConfigError."""
    return _build(RelaySpec, value, "relays")


def fault_of(value: Any) -> Fault:
    """A fault from a plain map. Raises: ConfigError."""
    return _build(Fault, value, "faults")


def scenario_to_dict(scenario: Scenario) -> dict[str, Any]:
    """What `scenario_from_dict` takes; only what differs from the defaults."""
    found = _differing(scenario)
    found["learners"] = [_differing(spec) for spec in scenario.learners]
    found["relays"] = [_differing(spec) for spec in scenario.relays]
    found["faults"] = [_differing(fault) for fault in scenario.faults]
    return found


def _differing(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not as by default."""
    plain, found = asdict(value), {}
    for each in fields(value):
        default = each.default_factory() if callable(each.default_factory) else each.default
        if plain[each.name] != default:
            found[each.name] = str(plain[each.name]) if isinstance(plain[each.name], FaultName) else plain[each.name]
    return found


def _build(kind: type[SpecT], value: Any, place: str) -> SpecT:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place} is {value!r}; expected a map")
    known = {each.name: each for each in fields(kind)}
    for key in value:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{place} has no key {key!r}{hint}")
        wanted = WANTED.get(known[key].type)
        if kind in (SyncParams, LearnerParams) and wanted and not _is_a(value[key], known[key].type):
            raise ConfigError(f"{place}.{key} is {shown(value[key])}; expected {wanted}")
    try:
        return kind(**value)
    except TypeError as error:
        raise ConfigError(f"{place}: {error}") from error


def _is_a(value: Any, kind: Any) -> bool:
    kinds = int | float if kind is float else kind
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


def _check_name(kind: str, name: str) -> None:
    if not 1 <= len(name) <= MAX_NAME or name != "".join(name.split()):
        raise ConfigError(f"{kind}.name is {name!r}; allowed is 1 to {MAX_NAME} characters without spaces")


def _fault_name(name: object) -> FaultName:
    known = [str(each) for each in FaultName]
    if name in known:
        return FaultName(str(name))
    near = get_close_matches(str(name), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"no fault is called {name!r}{hint} known are {', '.join(known)}")


def _check(place: str, owner: Any, **bounds: tuple[float, float]) -> None:
    kinds = {each.name: each.type for each in fields(owner)}
    for name, (low, high) in bounds.items():
        value, kind = getattr(owner, name), kinds[name]
        if kind is bool:
            fits, allowed = isinstance(value, bool), "true or false"
        else:
            number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
            fits = number and low <= value <= high  # never NaN or infinity; a whole number may be beyond floats
            allowed = f"{low:g} to {high:g}" + (", a whole number" if kind is int else "")
        if not fits:
            raise ConfigError(f"{place}: {name} is {shown(value)}; allowed is {allowed}")
