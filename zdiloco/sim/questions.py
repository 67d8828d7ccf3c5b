"""What can be asked of the chips model, and the answers, each with what it was computed from.

Rule: an answer holds everything that is printed or drawn of it; `faults` says what it was to show and does not.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zdiloco.errors import ConfigError
from zdiloco.sim import paper, scavenging, unequal
from zdiloco.sim.chips import Outcome, Scenario, simulate
from zdiloco.sim.paper import Cell, Shift
from zdiloco.sim.spans import Trace

CHIPS = 1_200_000
MOST_SEEDS = 1000
FIELDS = {"step_time": "step_s"}
"""Options whose field of a scenario is called otherwise."""


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of '7', '1,2,9' or '1-5'. Raises ConfigError for anything else, and for one that comes twice."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part, re.ASCII)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise ConfigError(f"--seeds is {text!r}; write numbers such as 7, 1,2,9 or 1-5")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise ConfigError(f"--seeds is {text!r}; allowed are {MOST_SEEDS} at most")
        seeds += range(first, last + 1)
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ConfigError(f"--seeds is {text!r}: {seed} comes twice, and would count twice")
    return seeds


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetAnswer:
    """One fleet. `outcome`: the mean of the seeds; `trace`: of the first one."""

    scenario: Scenario
    seeds: Sequence[int]
    outcomes: Sequence[Outcome]
    trace: Trace
    faults: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The mean of all seeds."""
        return paper.mean_of(self.outcomes)

    def to_obj(self) -> dict[str, Any]:
        """The answer for JSON; goodput and uptime in percent."""
        mean, goodputs = self.outcome, [100 * each.goodput for each in self.outcomes]
        return {
            "goodput": round(100 * mean.goodput, 3), "goodput_least": round(min(goodputs), 3),
            "goodput_most": round(max(goodputs), 3), "uptime": round(100 * mean.uptime, 5),
            "participants": round(mean.participants, 3),
            "participants_in_grace": round(mean.in_grace, 3), "failures": mean.failures, "downtimes": mean.downtimes,
            "seeds": list(self.seeds), **_facts(self.scenario),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperAnswer:
    """The goodput table, and what a tenth more or less of each constant does to it."""

    scenario: Scenario
    seeds: Sequence[int]
    cells: Sequence[Cell]
    shifts: Sequence[Shift]

    @property
    def faults(self) -> tuple[str, ...]:
        """What the table is to show and does not."""
        return tuple(paper.faults(self.cells))

    def to_obj(self) -> dict[str, Any]:
        """The answer for JSON."""
        facts = _facts(self.scenario)
        del facts["chips"], facts["learners"], facts["elastic"], facts["min_quorum"]
        return {
            "table": "paper", "cells": [cell.to_obj() for cell in self.cells], "bound": paper.BOUND_POINTS,
            "faults": list(self.faults), "sensitivity": [shift.to_obj() for shift in self.shifts],
            "seeds": list(self.seeds), **facts,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class UnequalAnswer:
    """The table of unequal learners."""

    step_s: float
    seeds: Sequence[int]
    rows: Sequence[unequal.Row]
    faults: tuple[str, ...] = ()

    def to_obj(self) -> dict[str, Any]:
        """The answer for JSON."""
        return {
            "table": "heterogeneity", "rows": [row.to_obj() for row in self.rows], "learners": unequal.LEARNERS,
            "behind": unequal.BEHIND, "variance": unequal.VARIANCE, "step_s": self.step_s, "seeds": list(self.seeds),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ScavengingAnswer:
    """The table of learners that are there for a part of the run."""

    scenario: Scenario
    seeds: Sequence[int]
    rows: Sequence[scavenging.Row]
    faults: tuple[str, ...] = ()

    def to_obj(self) -> dict[str, Any]:
        """The answer for JSON."""
        return {
            "table": "scavenging", "rows": [row.to_obj() for row in self.rows],
            "base_learners": scavenging.BASE_LEARNERS, "stay_s": scavenging.STAY_S, "hours": self.scenario.hours,
            "step_s": self.scenario.step_s, "seeds": list(self.seeds), "constants": asdict(self.scenario.constants),
        }  # fmt: skip


Answer = FleetAnswer | PaperAnswer | UnequalAnswer | ScavengingAnswer


def ask(table: str | None, given: Mapping[str, Any], seeds: Sequence[int]) -> Answer:
    """Compute the answer. `given`: options by name, as far as they were set. Raises ConfigError for what cannot be."""
    settings = {FIELDS.get(name, name): value for name, value in given.items()}
    settings["elastic"] = not settings.pop("no_elastic", False)
    more = settings.pop("sensitivity", False)
    scenario = Scenario(**{"chips": CHIPS if table is None else max(paper.SIZES), **settings})
    if table == "paper":
        cells = paper.table(scenario, seeds)
        shifts = paper.sensitivity(scenario, cells, seeds[0], more)
        return PaperAnswer(scenario=scenario, seeds=seeds, cells=cells, shifts=shifts)
    if table == "heterogeneity":
        return UnequalAnswer(step_s=scenario.step_s, seeds=seeds, rows=unequal.table(scenario.step_s, seeds))
    if table == "scavenging":
        rows = scavenging.table(scenario.hours, scenario.step_s, scenario.constants, seeds)
        return ScavengingAnswer(scenario=scenario, seeds=seeds, rows=rows)
    first, trace = simulate(scenario, seeds[0])
    outcomes = [first, *(simulate(scenario, seed)[0] for seed in seeds[1:])]
    return FleetAnswer(scenario=scenario, seeds=seeds, outcomes=outcomes, trace=trace)


def _facts(scenario: Scenario) -> dict[str, Any]:
    """Everything that the figures depend on, beside the seeds."""
    return {
        "chips": scenario.chips, "learners": scenario.learners, "mtbi_hours": scenario.mtbi_hours,
        "hours": scenario.hours, "step_s": scenario.step_s, "min_quorum": scenario.min_quorum,
        "elastic": scenario.elastic, "constants": asdict(scenario.constants),
        "assumptions": {name: getattr(scenario, name) for name in paper.ASSUMED if name != "step_s"},
    }  # fmt: skip
