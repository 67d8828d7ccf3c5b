"""Unequal learners: what waiting for all costs, and who takes part without it (paper, section 5 on heterogeneity).

Rule: four learners of one kind and four of a slower one, and every step of each takes a little more or less. The
lockstep row is a model of training that waits, which our learners never do; in the other rows the production
machines decide (zdiloco/sim/gathering.py).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zdiloco.core.params import SyncParams
from zdiloco.errors import ConfigError
from zdiloco.sim.gathering import Gathering

LEARNERS = 8
BEHIND = 0.18
"""The slower half makes so much fewer steps a second."""
VARIANCE = 0.1
"""Standard deviation of one step's time, as a share of it."""
LEAST_STEP = 0.5
"""No step is faster than so much of the usual."""
NUM_FRAGMENTS = 6
"""Each has its own rounds; with 24 of them a round has the same learners within 0.1, and takes four times as long."""
STEPS = 288
"""Steps that the fast ones make."""
TAIL_TURNS = 3
"""Turns of H steps at the end of a run whose work may still be under way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A row: how it is called, its K and grace (None: lockstep), and the published goodput in percent, where it is."""

    name: str
    min_quorum: int
    grace: str | None
    paper: int | None


SETTINGS = (
    Setting(name="K=8, all wait (lockstep)", min_quorum=8, grace=None, paper=84),
    Setting(name="K=1, no grace", min_quorum=1, grace="off", paper=100),
    Setting(name="K=1, with grace", min_quorum=1, grace="adaptive", paper=100),
    Setting(name="K=8, nobody waits", min_quorum=8, grace="adaptive", paper=None),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What became of a setting; goodput in percent. `participants`: learners merged in a round, on average.

    `late`: percent of what was merged that had missed its own round. `rounds`: of a fragment, in a hundred steps of the
    fast ones.
    """

    setting: str
    goodput: float
    paper: int | None
    participants: float
    late: float
    rounds: float

    def to_obj(self) -> dict[str, Any]:
        """The row for JSON; `diff` in points, None where nothing was published."""
        diff = None if self.paper is None else round(self.goodput - self.paper, 2)
        return {
            "setting": self.setting, "goodput": round(self.goodput, 2), "paper": self.paper, "diff": diff,
            "participants": round(self.participants, 2), "late": round(self.late, 2), "rounds": round(self.rounds, 2),
        }  # fmt: skip


def table(step_s: float, seeds: Sequence[int]) -> list[Row]:
    """Every row, averaged over the seeds. `step_s`: of the fast learners."""
    if not 0.1 <= step_s <= 100:
        raise ConfigError(f"--step-time is {step_s:g}; allowed for this table is 0.1 to 100")
    rows = []
    for setting in SETTINGS:
        runs = [_lockstep(step_s, seed) if setting.grace is None else _ours(setting, step_s, seed) for seed in seeds]
        goodput, participants, late, rounds = (sum(values) / len(runs) for values in zip(*runs, strict=True))
        row = Row(
            setting=setting.name, goodput=goodput, paper=setting.paper, participants=participants, late=late,
            rounds=rounds,
        )  # fmt: skip
        rows.append(row)
    return rows


Figures = tuple[float, float, float, float]
"""Goodput [%], participants, late [%], rounds."""


def paces(step_s: float, seed: int) -> list[Callable[[], float]]:
    """For each learner, what draws how long its next step takes; each has random numbers of its own."""
    usual = [step_s if number < LEARNERS // 2 else step_s / (1 - BEHIND) for number in range(LEARNERS)]
    return [_pace(base, random.Random(f"{seed}/{number}/pace")) for number, base in enumerate(usual)]


def _pace(usual_s: float, rng: random.Random) -> Callable[[], float]:
    return lambda: usual_s * max(LEAST_STEP, rng.gauss(1.0, VARIANCE))


def _lockstep(step_s: float, seed: int) -> Figures:
    """Every step ends when its slowest learner is ready, since a fragment of all of them is due at every step."""
    draws, worked, passed = paces(step_s, seed), 0.0, 0.0
    for _ in range(STEPS):
        times = [draw() for draw in draws]
        worked, passed = worked + sum(times), passed + max(times)
    turns = STEPS / SyncParams().sync_period
    return 100 * worked / (LEARNERS * passed), float(LEARNERS), 0.0, 100 * turns / (passed / step_s)


def _ours(setting: Setting, step_s: float, seed: int) -> Figures:
    params = SyncParams(min_quorum=setting.min_quorum, grace=setting.grace or "off")
    fleet = Gathering(params, NUM_FRAGMENTS, paces(step_s, seed))
    seconds = STEPS * step_s
    fleet.run(seconds)
    merged = sum(each.participants for each in fleet.closed)
    return (
        100 * fleet.goodput(seconds - TAIL_TURNS * params.sync_period * step_s),
        merged / len(fleet.closed),
        100 * sum(each.late for each in fleet.closed) / merged,
        100 * len(fleet.closed) / NUM_FRAGMENTS / STEPS,
    )
