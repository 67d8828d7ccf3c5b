"""Random scenarios: from one seed a fleet, its links and its paces, and half a minute of misfortunes.

Rule: a scenario is drawn whole before anything happens, so it can be written down, shortened, and played again.
"""

import random
from typing import Any

from zdiloco.sim.faults import OF_SYNCER, FaultName
from zdiloco.sim.scenario import Fault, LearnerSpec, Scenario

STEP_S = 0.1
FIRST_S = 3.0
SECONDS = 30.0
LENGTHS: dict[FaultName, tuple[float, float]] = {
    FaultName.KILL: (0.2, 3.0), FaultName.STOP: (0.3, 5.0), FaultName.SLOW: (2.0, 6.0), FaultName.LEAVE: (0.5, 4.0),
    FaultName.REPEAT: (0.1, 4.0), FaultName.CUT_OFF: (0.5, 6.0), FaultName.CUT_UP: (0.5, 6.0),
    FaultName.CUT_DOWN: (0.5, 6.0), FaultName.HALF_OPEN: (0.5, 5.0), FaultName.LOSSY: (1.0, 5.0),
    FaultName.SLOW_LINK: (1.0, 5.0), FaultName.CUT_REGION: (0.5, 5.0), FaultName.HALF_GONE: (0.5, 5.0),
    FaultName.CRASH: (0.2, 4.0), FaultName.UNREACHABLE: (0.2, 2.0), FaultName.SYNCER_STOP: (0.2, 4.0),
    FaultName.DISK_FULL: (1.0, 5.0), FaultName.TAKE_OVER: (1.5, 4.5),
}  # fmt: skip
"""Least and most seconds of each fault that has a length."""
WEIGHTS = {FaultName.POISON: 5, FaultName.REPEAT: 3, FaultName.GIVE_UP: 2, FaultName.TAKE_OVER: 2, FaultName.CRASH: 2}
"""How often a fault is drawn, where not as often as the others."""


def chaos(seed: int) -> Scenario:
    """The random scenario of a seed."""
    rng = random.Random(f"chaos {seed}")
    count = 3 + seed % 3
    learners = tuple(_learner(rng, index) for index in range(count))
    sync: dict[str, Any] = {
        "sync_period": 5, "min_quorum": 1 + (seed % 5 < 2), "checkpoint_every_s": 2.0, "recover_wait_s": 1.0,
        "park_after_s": 2.0, "beat_every_s": 0.5, "suspect_after_s": 1.5, "gone_after_s": 3.0, "drain_s": 2.0,
        "on_lost_quorum": "degrade" if seed % 2 else "wait",
        "budget_bytes": 110_000 if seed % 5 < 2 and seed % 10 != 1 else 2**16,
    }  # fmt: skip
    return Scenario(
        seed=seed, seconds=SECONDS, fragments=1 + seed // 2 % 3, learners=learners, faults=_faults(rng, learners),
        sync=sync, learner={"answer_timeout_s": 1.0, "silent_after_s": 2.0},
    )  # fmt: skip


def _learner(rng: random.Random, index: int) -> LearnerSpec:
    stalls = rng.random() < 0.2
    return LearnerSpec(
        name=f"l{index}", step_s=STEP_S * rng.choice([1, 1, 2]), jitter=rng.choice([0.0, 0.1, 0.3]),
        drift=rng.choice([0.0, 0.0, 0.05]), stalls=0.02 if stalls else 0.0, stall_s=2.0 if stalls else 0.0,
        latency_s=rng.choice([0.001, 0.05, 0.15]), link_jitter_s=rng.choice([0.0, 0.02, 0.1]),
        up_bytes_s=rng.choice([2e6, 1e5, 1.3e4]), down_bytes_s=rng.choice([2e6, 2e5]),
        loss=rng.choice([0.0, 0.02, 0.06]), region="east" if index % 2 else "west",
        max_unmerged_steps=40 if rng.random() < 0.2 else 0,
    )  # fmt: skip


def _faults(rng: random.Random, learners: tuple[LearnerSpec, ...]) -> tuple[Fault, ...]:
    names = list(FaultName)
    weights = [WEIGHTS.get(name, 1) for name in names]
    found, at_s = [], FIRST_S
    while at_s < SECONDS:
        (name,) = rng.choices(names, weights)
        low, high = LENGTHS.get(name, (0.0, 0.0))
        who = "" if name in OF_SYNCER else rng.choice(learners).name
        if name is FaultName.CUT_REGION or (name is FaultName.HALF_GONE and rng.random() < 0.5):
            who = rng.choice(["east", "west"])
        found.append(Fault(at_s=round(at_s, 2), name=name, who=who, for_s=round(rng.uniform(low, high), 2)))
        at_s += 0.3 + 2.2 * rng.random()
    return tuple(found)
