"""`zdiloco bench overhead`: what a learner costs the loop that it is attached to (docs/operating.md).

Rule: the loop and the clock are outside the library (`bench/loop.py`), every figure and what it is compared with come
from one process, and each says by the syncer's own journal whether it counts (`bench/rounds.py`).
"""

import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zdiloco.bench.loop import LAYERS, STEP_S, Record
from zdiloco.bench.pauses import measure_pauses, quantile
from zdiloco.bench.results import Result
from zdiloco.bench.rounds import open_calls, rounds_within
from zdiloco.bench.stage import EVENT_S, SYNC_PERIOD, Player, Stage, member
from zdiloco.errors import ConfigError
from zdiloco.rundir.journal import read_journal

log = logging.getLogger(__name__)

LEAST_RATIO = 0.97
SLOWDOWN = 5.0
WARM_ROUNDS = 2 * LAYERS
"""Rounds before a measurement: two turns, of which the first is staggered."""
TAIL_S = SYNC_PERIOD * STEP_S
"""A round that was called in a measurement may close within so long after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How long to measure. The figures are meant for the defaults, whose `steps` make a minute: so a learner saves its
    state as often as in use. Less is for tests. `keyed`: with everything encrypted."""

    steps: int = 1_200
    parameters: int = 25_000_000
    times: int = 10
    keyed: bool = False

    def __post_init__(self) -> None:
        least = 2 * SYNC_PERIOD
        for name, low, high in (("steps", least, 10**6), ("parameters", LAYERS, 10**9), ("times", 1, 10**4)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"--{name} is {value}; allowed is {low} to {high}")


def measure(plan: Plan) -> Iterator[Result]:
    """Yield each figure when it is there. Raises BenchFailed where a process does what it must not do."""
    yield from _speeds(plan)
    yield from measure_pauses(plan.parameters, plan.steps, plan.times, keyed=plan.keyed)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Speed:
    """One comparison, before the journal has been read. `bare`: the loop without a learner, before and after."""

    name: str
    bare: Sequence[Record]
    reference: Sequence[Record]
    attached: Record
    still_open: Sequence[float]
    bound: float | None


def _speeds(plan: Plan) -> list[Result]:
    """The loop with a learner ÷ the bare loop; the same beside a slow learner ÷ alone; a loop that really computes."""
    save_every_s = plan.steps * STEP_S  # once in each measurement
    with Stage(plan.parameters, STEP_S, {"learner": {"save_every_s": save_every_s}}, keyed=plan.keyed) as stage:
        syncer, player = stage.syncer(), stage.player("a")
        bare = [_bare(player, plan)]
        alone = _attached(stage, player, plan, "alone", bare)
        slow = stage.player("slow", SLOWDOWN)
        slow.do("attach")
        beside = _attached(stage, player, plan, "beside_slow", bare)
        speeds = [alone, replace(beside, reference=(alone.attached,))]
        slow.kill()
        player.do("compute computing")
        bare = [_bare(player, plan)]
        speeds.append(_attached(stage, player, plan, "computing", bare))
        player.kill()
        stage.end(syncer)
        journal = list(read_journal(stage.config.run.path))
    return [_result(speed, journal) for speed in speeds]


def _bare(player: Player, plan: Plan) -> Record:
    log.info("measures the bare loop")
    return _record(player, f"bare {plan.steps // 2}", plan.steps // 2)


def _attached(stage: Stage, player: Player, plan: Plan, name: str, bare: list[Record]) -> _Speed:
    """Measure with a learner, then bare again. `bare`: so far; the newest is compared with, and one is added."""
    before = stage.status().get("rounds", 0)
    player.do("attach")
    log.info("measures %s", name)

    def warm(status: dict[str, Any]) -> bool:
        beside = name != "beside_slow" or member(status, "slow").get("rounds", 0) > 0
        return bool(status["rounds"] >= before + WARM_ROUNDS and beside)

    stage.until(warm, f"{name}: two turns of rounds", player)
    attached = _record(player, f"measure {plan.steps}", plan.steps)
    time.sleep(TAIL_S)
    status = stage.status()
    still_open = open_calls(status, time.monotonic())
    player.do("detach")
    bare.append(_bare(player, plan))
    bound = None if name == "computing" else LEAST_RATIO
    around = tuple(bare[-2:])
    return _Speed(
        name=name,
        bare=around,
        reference=around,
        attached=attached,
        still_open=still_open,
        bound=bound,
    )


def _record(player: Player, command: str, steps: int) -> Record:
    return Record(**player.do(command, EVENT_S + 10 * STEP_S * steps))


def _result(speed: _Speed, journal: Sequence[dict[str, Any]]) -> Result:
    attached = speed.attached
    step_s = (attached.ended - attached.began) / len(attached.pauses)
    reference_s = sum(r.ended - r.began for r in speed.reference) / sum(len(r.pauses) for r in speed.reference)
    span = (attached.began, attached.ended)
    rounds = rounds_within(journal, "a", [span], step_s, speed.still_open)
    void = rounds.void(SYNC_PERIOD)
    if speed.name == "beside_slow" and not rounds.others_tokens:
        void = void or "nothing of the slow learner was merged"
    pauses = [1e3 * pause for pause in attached.pauses]
    p99 = quantile(pauses, 0.99)
    return Result(
        name=speed.name, ours=1 / step_s, reference=1 / reference_s, unit="steps/s", better="higher", bound=speed.bound,
        void=void,
        details={
            "bare": [len(r.pauses) / (r.ended - r.began) for r in speed.bare],
            "step_ms_p50": statistics.median(pauses), "step_ms_p99": p99, "step_ms_max": max(pauses),
            **rounds.to_obj(),
        },
        remark=f"step() p50 {statistics.median(pauses):.2f}, p99 {p99:.2f}, max {max(pauses):.2f} ms; {rounds.words}",
    )  # fmt: skip
