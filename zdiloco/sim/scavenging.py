"""Learners that are there for a part of the run only: how much sooner a fixed amount of training is done.

Rule: what extra learners bring is counted from the end of their bootstrap to their last merged cut. The time is that in
which as many learner-seconds of useful training are done as the base learners alone do in the whole run. The published
table does not say when its extra learners were there; here each is there half of the time, in stays of ten minutes.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zdiloco.core.params import SyncParams
from zdiloco.sim.chips import Constants
from zdiloco.sim.failures import SECONDS_PER_HOUR

BASE_LEARNERS = 4
STAY_S = 600.0
"""Mean length of a stay, and of an absence; both are exponential."""
PAPER = ((0, 1.00, 1.00), (25, 1.07, 0.90), (50, 1.09, 0.83), (100, 1.02, 0.75), (300, 0.80, 0.62))
"""Extra compute [%], time of data-parallel training, time of decoupled training; both relative to no extra."""

Stay = tuple[float, float]
"""From when to when an extra learner is there, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Times relative to no extra learners, ours and the published ones.

    `elastic`, `restarting`: data-parallel training that reconfigures, or starts again, whenever somebody comes or goes.
    """

    extra: int
    """How much the extra learners would add if they were there all the time, in percent of the base."""
    learners: int
    decoupled: float
    paper: float
    elastic: float
    restarting: float
    paper_dp: float

    def to_obj(self) -> dict[str, Any]:
        """The row for JSON; `diff`: ours less the published, decoupled."""
        return {
            "extra": self.extra, "extra_learners": self.learners, "decoupled": round(self.decoupled, 3),
            "paper": self.paper, "diff": round(self.decoupled - self.paper, 3), "dp_elastic": round(self.elastic, 3),
            "dp_restarting": round(self.restarting, 3), "paper_dp": self.paper_dp,
        }  # fmt: skip


def table(hours: float, step_s: float, constants: Constants, seeds: Sequence[int]) -> list[Row]:
    """Every row, averaged over the seeds. `hours`: how long the base learners alone take."""
    seconds, rows = hours * SECONDS_PER_HOUR, []
    for extra, paper_dp, paper in PAPER:
        count = BASE_LEARNERS * extra // 100
        fleets = [[stays(seed, number, seconds) for number in range(count)] for seed in seeds]
        cut = SyncParams().sync_period * step_s / 2
        columns = (
            [decoupled_s(fleet, seconds, constants.reconfigure_s, cut) for fleet in fleets],
            [data_parallel_s(fleet, seconds, constants.reconfigure_s) for fleet in fleets],
            [data_parallel_s(fleet, seconds, constants.restart_s) for fleet in fleets],
        )
        ours, elastic, restarting = (sum(column) / len(column) / seconds for column in columns)
        rows.append(
            Row(
                extra=extra, learners=count, decoupled=ours, paper=paper, elastic=elastic, restarting=restarting,
                paper_dp=paper_dp,
            )
        )  # fmt: skip
    return rows


def stays(seed: int, number: int, seconds: float) -> list[Stay]:
    """When one extra learner is there, until it is certain that the work is done (twice the run)."""
    rng = random.Random(f"{seed}/{number}/stays")
    found, now = [], rng.expovariate(1 / STAY_S) * rng.randrange(2)  # half of them are there at the start
    while now < 2 * seconds:
        ends = now + rng.expovariate(1 / STAY_S)
        found.append((now, ends))
        now = ends + rng.expovariate(1 / STAY_S)
    return found


def decoupled_s(fleet: Sequence[Sequence[Stay]], seconds: float, join_s: float, cut_s: float) -> float:
    """When the work is done by learners that never wait. An extra one is useful `join_s` after it has come.

    What it did after its last merged cut leaves with it: half a period on average, `cut_s` seconds.
    """
    useful = [(come + join_s, go - cut_s) for row in fleet for come, go in row if go - cut_s > come + join_s]
    changes = [(come, 1) for come, _ in useful] + [(go, -1) for _, go in useful]
    return _done_at(sorted(changes), BASE_LEARNERS * seconds)


def _done_at(changes: Sequence[tuple[float, int]], work: float) -> float:
    """When the learner-seconds reach `work`; the base learners work all the time."""
    now, learners = 0.0, BASE_LEARNERS
    for at, change in changes:
        if learners * (at - now) >= work:
            break
        work -= learners * (at - now)
        now, learners = at, learners + change
    return now + work / learners


def data_parallel_s(fleet: Sequence[Sequence[Stay]], seconds: float, downtime_s: float) -> float:
    """When the work is done by one learner that stands still for so long whenever somebody comes or goes.

    Whoever comes or goes meanwhile is settled at the end of that downtime.
    """
    moments = list(heapq.merge(*(sorted([(c, 1) for c, _ in row] + [(g, -1) for _, g in row]) for row in fleet)))
    work, now, learners = BASE_LEARNERS * seconds, 0.0, BASE_LEARNERS
    for at, change in moments:
        if at > now:
            if learners * (at - now) >= work:
                break
            work -= learners * (at - now)
            now = at + downtime_s
        learners += change
    return now + work / learners
