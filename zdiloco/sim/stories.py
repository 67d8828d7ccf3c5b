"""Scenarios that are played to be told: which ones are asked for, what came of each, and its trace.

Rule: the same scenario gives the same answer and the same trace, byte for byte. The first one that breaks a rule is the
last that is played, and is made small.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zdiloco import trace
from zdiloco.agenda import Broken
from zdiloco.core.ledger import Fates
from zdiloco.errors import ConfigError, MachineError
from zdiloco.goodput import Figures, figures_of
from zdiloco.sim.chaos import chaos
from zdiloco.sim.play import Story
from zdiloco.sim.scenario import Scenario, scenarios_of
from zdiloco.sim.shrink import smallest
from zdiloco.sim.transcript import scenario_from_text

FAULT = "fault: "
MOST_BYTES = 2**22
"""Of a scenario's text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A scenario that was played. `error`: the rule that it broke; `fates`: not known then; `looks`: of the audit."""

    scenario: Scenario
    figures: Figures
    seconds: float
    looks: int
    seen: dict[str, int]
    fates: Fates | None
    error: MachineError | None
    records: Sequence[trace.Line] = field(repr=False)

    @property
    def faults(self) -> dict[str, int]:
        """How often each fault was done."""
        return {what.removeprefix(FAULT): times for what, times in self.seen.items() if what.startswith(FAULT)}

    @property
    def branches(self) -> dict[str, int]:
        """How often each branch of the protocol was taken."""
        return {what: times for what, times in self.seen.items() if not what.startswith(FAULT)}

    def share(self, fate: str) -> float | None:
        """Share of the trained tokens that has this fate; None: not known."""
        known = self.fates is not None and self.fates.trained > 0
        return float(getattr(self.fates, fate)) / self.fates.trained if known and self.fates else None

    def to_obj(self) -> dict[str, Any]:
        """As plain values, for JSON; tokens are weighed by parameter share."""
        figures = {name: value for name, value in self.figures.to_obj().items() if name != "learners"}
        return {
            "seed": self.scenario.seed, **figures, "seconds": self.seconds, "looks": self.looks,
            "faults": self.faults, "branches": self.branches,
            "tokens": self.fates._asdict() if self.fates else None,
        }  # fmt: skip


def scenario_of(path: Path) -> Scenario:
    """The scenario of a file. Raises ConfigError, one line that names the file and the line or the key."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
    except OSError as error:
        raise ConfigError(f"cannot read the scenario {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the scenario {path} is no text: byte {error.start} is not UTF-8") from error
    if len(text) > MOST_BYTES:
        raise ConfigError(f"the scenario {path} is longer than {MOST_BYTES:,} bytes")
    try:
        return scenario_from_text(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def asked_for(path: Path | None, count: int | None, seeds: Sequence[int]) -> Sequence[Scenario]:
    """The scenario of a file with each of these seeds (none: its own); or so many of chaos, from a seed on."""
    if path is not None:
        scenario = scenario_of(path)
        return scenarios_of(scenario, seeds or [scenario.seed])
    first = seeds[0] if seeds else 0
    return [chaos(seed) for seed in range(first, first + (count or 1))]


def tell(scenario: Scenario) -> Told:
    """Play a scenario, with every check after every event."""
    records: list[Any] = []
    story, error, fates = Story(scenario, records.append), None, None
    try:
        fates = story.play().fates
    except MachineError as broken:
        error = broken
        story.world.finish()
    seen = {what: times for what, times in sorted(story.count().items()) if times}
    return Told(
        scenario=scenario, figures=figures_of(records), seconds=story.world.now, looks=story.audit.looks, seen=seen,
        fates=fates, error=error, records=records,
    )  # fmt: skip


def tell_all(scenarios: Iterable[Scenario]) -> Iterator[Told]:
    """Play one after the other; one that breaks a rule is the last."""
    for scenario in scenarios:
        told = tell(scenario)
        yield told
        if told.error is not None:
            return


def transcript_of(told: Told) -> str:
    """What to keep of a story that broke a rule: as small as it could be made, and still broken in the same way."""
    assert told.error is not None
    return smallest(told.scenario, told.error)


def rule_of(error: MachineError) -> str:
    """The name of the rule that was broken, or of the error."""
    return error.rule if isinstance(error, Broken) else type(error).__name__
