"""What a learner costs the loop that it is attached to where its syncer is far away: at 200 Mbit/s and 80 ms."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Child
from tests.wan.lab import Lab
from zdiloco.bench.loop import LAYERS, STEP_S, Record
from zdiloco.bench.overhead import LEAST_RATIO
from zdiloco.bench.rounds import open_calls, rounds_within
from zdiloco.bench.stage import SYNC_PERIOD, Player
from zdiloco.rundir.journal import read_journal

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.wan, pytest.mark.timeout(SLOW_MACHINE_S)]
MBIT_S, WAY_S = 200.0, 0.04
PARAMETERS = 5_000_000
"""In int8, both ways, a fifth of what the link carries."""
MOST_APART = SYNC_PERIOD + 2 * (2 * WAY_S / STEP_S) + 2
"""Steps between two calls of a fragment: an answer and an update are under way for a round trip each."""
LIMIT_S = 60.0


@contextmanager
def far_loop(lab: Lab, log: Path) -> Iterator[Player]:
    """The stand-in for a training loop, in region 1."""
    player = lab.regions.asked(1, lambda: Player("a", lab.toml_of(1), PARAMETERS, STEP_S, log))
    try:
        yield player
    finally:
        player.kill()


def steps_s(*records: Record) -> float:
    """Steps a second."""
    return sum(len(each.pauses) for each in records) / sum(each.ended - each.began for each in records)


def begun(lab: Lab, save_every_s: float) -> Child:
    """A syncer that answers, and the link to region 1."""
    sync = {"sync_period": SYNC_PERIOD, "num_fragments": LAYERS}
    learner = {"codec": "int8", "save_every_s": save_every_s}
    lab.write(sync=sync, merge={"delta_codec": "int8"}, learner=learner)
    lab.links[0].both(mbit_s=MBIT_S, delay_s=WAY_S, queue_s=0.1)
    syncer = lab.sync()
    lab.until(lab.status, "the syncer answers", syncer)
    return syncer


@pytest.mark.parametrize(
    ("steps", "least"),
    [
        pytest.param(120, 0.8, marks=pytest.mark.slow, id="12 s"),
        pytest.param(1_200, LEAST_RATIO, marks=pytest.mark.long, id="a minute"),
    ],
)
def test_the_loop_of_a_far_learner_keeps_its_pace(
    lab_of: Callable[[int], Lab], say: Callable[[str], None], tmp_path: Path, steps: int, least: float
) -> None:
    lab = lab_of(2)
    syncer = begun(lab, save_every_s=steps * STEP_S)

    def record(command: str, count: int) -> Record:
        return Record(**player.do(f"{command} {count}", LIMIT_S + 10 * STEP_S * count))

    with far_loop(lab, tmp_path / "a.log") as player:
        before = record("bare", steps // 2)
        player.do("attach", LIMIT_S)
        lab.until(lambda: lab.rounds() >= 2 * LAYERS, "two turns of rounds", syncer)
        carried = lab.links[0].carried
        attached = record("measure", steps)
        now: Any = lab.links[0].carried
        over = time.monotonic() + SYNC_PERIOD * STEP_S  # a round that was called before may close until then
        lab.until(lambda: time.monotonic() > over, "the last rounds", syncer)
        still_open = open_calls(lab.status(), time.monotonic())
        player.do("detach", LIMIT_S)
        after = record("bare", steps // 2)
    syncer.send(signal.SIGTERM)
    assert syncer.wait(LIMIT_S) == 0
    step_s = 1 / steps_s(attached)
    span = (attached.began, attached.ended)
    rounds = rounds_within(read_journal(lab.config.run.path), "a", [span], step_s, still_open)
    ratio = steps_s(attached) / steps_s(before, after)
    mbit_s = {way: 8e-6 * (now[way]["nbytes"] - carried[way]["nbytes"]) / (span[1] - span[0]) for way in now}
    pauses = sorted(attached.pauses)
    waits = f"step() {1e3 * sum(pauses) / len(pauses):.2f} ms, median {1e3 * pauses[len(pauses) // 2]:.2f}"
    say(
        f"a loop with a learner {2 * WAY_S * 1e3:g} ms and {MBIT_S:g} Mbit/s away ÷ the bare loop: {ratio:.3f} of "
        f"{steps_s(before, after):.2f} steps/s; {waits}; {rounds.words}; "
        f"{mbit_s['up']:.0f} Mbit/s up, {mbit_s['down']:.0f} down"
    )
    assert rounds.share >= 0.95
    assert rounds.apart_steps is not None
    assert least < LEAST_RATIO or rounds.apart_steps <= MOST_APART
    assert ratio >= least
