"""Random scenarios: from one seed a fleet, its links and its paces, and half a minute of misfortunes.

Rule: a scenario is drawn whole before anything happens, so it can be written down, shortened, and played again.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from zdiloco.sim.fault_names import OF_RELAYS, OF_SYNCER, FaultName
from zdiloco.sim.learner_side import TOKENS
from zdiloco.sim.scenario import NEVER, Fault, LearnerSpec, RelaySpec, Scenario

STEP_S = 0.1
FIRST_S = 3.0
SECONDS = 30.0
BUNDLES_BYTES = 300_000
"""Where relays merge, the budget has room for bundles beside what they stand for."""
STEPS_TO_TARGET = (20, 160)
"""Least and most merged steps of a learner, one with another, by which a run ends."""
LENGTHS: dict[FaultName, tuple[float, float]] = {
    FaultName.KILL: (0.2, 3.0), FaultName.STOP: (0.3, 5.0), FaultName.SLOW: (2.0, 6.0), FaultName.LEAVE: (0.5, 4.0),
    FaultName.REPEAT: (0.1, 4.0), FaultName.CUT_OFF: (0.5, 6.0), FaultName.CUT_UP: (0.5, 6.0),
    FaultName.CUT_DOWN: (0.5, 6.0), FaultName.HALF_OPEN: (0.5, 5.0), FaultName.LOSSY: (1.0, 5.0),
    FaultName.SLOW_LINK: (1.0, 5.0), FaultName.CUT_REGION: (0.5, 5.0), FaultName.HALF_GONE: (0.5, 5.0),
    FaultName.CRASH: (0.2, 4.0), FaultName.UNREACHABLE: (0.2, 2.0), FaultName.SYNCER_STOP: (0.2, 4.0),
    FaultName.DISK_FULL: (1.0, 5.0), FaultName.TAKE_OVER: (1.5, 4.5), FaultName.RELAY_KILL: (0.2, 4.0),
    FaultName.RELAY_STOP: (0.3, 4.0), FaultName.FAR_HALF_OPEN: (0.5, 5.0), FaultName.FAR_LOSSY: (1.0, 5.0),
    FaultName.FAR_SLOW: (1.0, 5.0), FaultName.DEAD_STRIPE: (1.0, 8.0),
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
    relays: tuple[RelaySpec, ...] = ()
    faults = _faults(rng, learners)
    if seed % 3 == 1:  # with chances of their own, so that all else is as it would be without them
        far = random.Random(f"relays {seed}")
        learners = tuple(replace(learner, stripes=far.choice([1, 2, 4])) for learner in learners)
        relays = _relays(far)
        if seed % 2:
            relays, sync["budget_bytes"] = tuple(replace(relay, premerge=True) for relay in relays), BUNDLES_BYTES
            learners = tuple(replace(learner, step_s=STEP_S, latency_s=0.01, up_bytes_s=2e6) for learner in learners)
        faults = tuple(sorted((*faults, *_far_faults(far, learners, relays)), key=lambda fault: fault.at_s))
    return Scenario(
        seed=seed, seconds=SECONDS, fragments=1 + seed // 2 % 3, learners=learners, relays=relays, faults=faults,
        sync=sync, learner={"answer_timeout_s": 1.0, "silent_after_s": 2.0, "warm_start": "peer"},
        target_tokens=_target(seed, count),
        delta_codec=random.Random(f"deltas {seed}").choice(["none", "int8", "4bit"]),
    )  # fmt: skip


def _target(seed: int, learners: int) -> int:
    """A third of the runs end, somewhere among their misfortunes."""
    if seed // 3 % 3 != 1:
        return NEVER
    return learners * TOKENS * random.Random(f"target {seed}").randint(*STEPS_TO_TARGET)


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
    names = [name for name in FaultName if name not in (*OF_RELAYS, FaultName.DEAD_STRIPE)]
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


def _relays(rng: random.Random) -> tuple[RelaySpec, ...]:
    """A relay for one region, for both, or a second one that dials the first."""
    kind = rng.choice(["one", "both", "stacked"])
    names = ["east"] if kind == "one" else ["east", "west"]
    relays = tuple(_relay(rng, name, "east" if kind == "stacked" and name == "west" else "") for name in names)
    if kind != "stacked" and rng.random() < 0.3:
        relays = tuple(replace(relay, most_learners=4) for relay in relays)  # the three of a region, and a twin
    return relays


def _relay(rng: random.Random, name: str, region: str) -> RelaySpec:
    return RelaySpec(
        name=name, region=region, latency_s=rng.choice([0.01, 0.05, 0.15]), link_jitter_s=rng.choice([0.0, 0.02]),
        up_bytes_s=rng.choice([2e6, 2e5]), down_bytes_s=rng.choice([2e6, 2e5]), loss=rng.choice([0.0, 0.02, 0.06]),
        cache_bytes=rng.choice([2**24, 2**18, 2**16]), forget_after_s=rng.choice([30.0, 5.0]),
    )  # fmt: skip


def _far_faults(
    rng: random.Random, learners: tuple[LearnerSpec, ...], relays: tuple[RelaySpec, ...]
) -> Iterator[Fault]:  # fmt: skip
    """What befalls relays, their far links, and stripes."""
    at_s = FIRST_S
    while at_s < SECONDS:
        name = rng.choice([*sorted(OF_RELAYS), FaultName.DEAD_STRIPE])
        names = [spec.name for spec in (learners if name is FaultName.DEAD_STRIPE else relays)]
        who = rng.choice(names)
        yield Fault(at_s=round(at_s, 2), name=name, who=who, for_s=round(rng.uniform(*LENGTHS[name]), 2))
        at_s += 1.2 + 4.0 * rng.random()
