"""SIGKILL of the syncer, and how soon the next one merges: every phase with its seconds, from the journal."""

from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Stage, assert_balanced
from zdiloco import trace
from zdiloco.trace import read_trace

pytestmark = [pytest.mark.net, pytest.mark.proc]
DEFAULTS = {
    "checkpoint_every_s": 10.0, "recover_wait_s": 5.0, "beat_every_s": 1.0, "suspect_after_s": 3.0,
    "gone_after_s": 6.0, "report_every_s": 0.1, "drain_s": 20.0, "sync_period": 24,
}  # fmt: skip
HEARD_S = DEFAULTS["recover_wait_s"] / 2
"""All dial again within half a second and report every tenth. A machine may be busy; nobody waits to the end."""


def returns(stage: Stage, kills: int, names: str) -> list[dict[str, float]]:
    """Kill and restart the syncer under learners of these names; seconds of each phase of each return."""
    stage.write(sync=DEFAULTS, learner={"silent_after_s": 6.0, "answer_timeout_s": 5.0}, net={"stall_s": 2.0})
    syncer = stage.sync()
    learners = [stage.script(name, seed=seed, pace_s=0.02) for seed, name in enumerate(names)]
    found = []
    for turn in range(kills):
        stage.until(lambda least=4 + turn % 5: stage.rounds() >= least, "rounds", syncer, *learners)
        syncer.kill()
        syncer = stage.sync()
        stage.until(lambda: stage.rounds() >= 1, "the first merge", syncer, *learners)
        found.append(phases(stage))
    stage.end(*learners, syncer)
    assert_balanced(stage.fates())
    return found


def phases(stage: Stage) -> dict[str, float]:
    """Of the newest syncer process: seconds from its start (imports are over) to each phase's end."""
    records = list(read_trace(stage.run_dir / trace.FILE))
    start = max(index for index, record in enumerate(records) if isinstance(record, trace.Start))
    part = records[start:]
    told: dict[str, Any] = {record.what: record.seconds for record in part if isinstance(record, trace.Phase)}
    return told


@pytest.mark.slow
@pytest.mark.timeout(SLOW_MACHINE_S)
def test_the_first_merge_after_a_return_comes_soon(stage: Stage, say: Callable[[str], None]) -> None:
    """D-62: a killed syncer's port and lock are free, its successor goes on; with default waits, within seconds."""
    tell(returns(stage, 1, "a"), say)


@pytest.mark.long
@pytest.mark.timeout(10 * SLOW_MACHINE_S)
def test_the_first_merge_after_many_returns(stage: Stage, say: Callable[[str], None]) -> None:
    tell(returns(stage, 15, "ab"), say)


def tell(found: list[dict[str, float]], say: Callable[[str], None]) -> None:
    say(f"{len(found)} SIGKILLs of the syncer, seconds from the start of the next (without imports), median and max:")
    for what in found[0]:
        values = [each[what] for each in found]
        say(f"  {what:18s} {median(values):6.2f} {max(values):6.2f}")
    assert median(each["fleet heard"] for each in found) <= HEARD_S
    assert median(each["first merge"] for each in found) <= 5.0
