"""The trace of a real run over loopback: it says what the syncer did, and decided again it is nearly the same run."""

from collections.abc import Callable
from typing import Any

import pytest

from zdiloco import trace
from zdiloco.goodput import figures_of
from zdiloco.strip import chart_of
from zdiloco.trace import read_trace
from zdiloco.whatif.compare import Grid, compare

pytestmark = pytest.mark.net


def test_a_real_run_is_told_and_can_be_decided_again(run_of: Callable[..., Any]) -> None:
    run = run_of(sync={"sync_period": 8})
    syncer = run.start_syncer()
    a, b = run.join("a", pace_s=0.015), run.join("b", pace_s=0.03)
    run.until(lambda: syncer.machine.rounds >= 24 and b.steps >= 24, "24 rounds, of both")
    b.stop()
    run.until(lambda: syncer.machine.rounds >= 40, "40 rounds")
    a.stop()
    run.stop_syncer()
    folder = run.config.run.path
    told = read_trace(folder)

    merges = [record for record in told if isinstance(record, trace.Merge)]
    assert len(merges) == syncer.machine.rounds
    assert sum(len(merge.members) for merge in merges) == syncer.machine.contributions
    assert isinstance(told[-1], trace.End)
    assert told[-1].lost_lines == 0
    found = figures_of(told)
    assert [(each.name, each.processes, each.steps) for each in found.learners] == [
        ("a", 1, a.steps), ("b", 1, b.steps),
    ]  # fmt: skip
    assert [each.trained for each in found.learners] == [4 * a.steps, 4 * b.steps], "their goodbyes say so"
    assert found.merged_tokens == pytest.approx(syncer.machine.merged_tokens)
    assert 0.5 < (found.goodput or 0) <= 1.0

    recorded, again = (row.figures for row in compare(told, Grid()))
    assert again.rounds == pytest.approx(recorded.rounds, rel=0.3), "of so short a run, with steps of milliseconds"
    assert recorded.participants
    assert again.participants
    assert again.participants.mean == pytest.approx(recorded.participants.mean, abs=0.4)

    chart = chart_of(told)
    assert len(chart.rounds) == len(merges)
    assert [(each.name, each.dead) for each in chart.strips] == [("a", []), ("b", [])]
