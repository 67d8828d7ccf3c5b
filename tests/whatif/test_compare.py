"""A recorded run decided again: under its own settings it is the same run, under others it is what they would make.

Tolerances are those that docs/operating.md states.
"""

import dataclasses
from collections.abc import Iterable

import pytest

from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.errors import ConfigError
from zdiloco.lives import parts_of
from zdiloco.sim.links import Link
from zdiloco.sim.recorded import RecordedWorld
from zdiloco.sim.sizes import NBYTES
from zdiloco.whatif.answers import Answers
from zdiloco.whatif.compare import AGAIN, RECORDED, Grid, Row, compare
from zdiloco.whatif.replay import Replay

SETTINGS = SyncParams(min_quorum=2, sync_period=12, beat_every_s=0.5, suspect_after_s=1.5, gone_after_s=3.0)


@pytest.fixture(scope="module")
def told() -> list[trace.Line]:
    """Three unequal learners; one is slow to answer, one dies and comes back; the syncer decides by K = 2."""
    world = RecordedWorld(SETTINGS, 3)
    world.join("a", 0.04)
    world.join("b", 0.067, Link(latency_s=0.02, up_bytes_s=NBYTES / 0.15))
    c = world.join("c", 0.117)
    world.run(7.0)
    world.kill(c)
    world.run(13.0)
    world.join("c", 0.117)
    world.run(20.0)
    return world.told


def calls(records: Iterable[trace.Record]) -> dict[tuple[int, int], float]:
    return {(r.fragment, r.version): r.t for r in records if isinstance(r, trace.Call)}


@pytest.fixture(scope="module")
def again(told: list[trace.Line]) -> tuple[Row, Row]:
    recorded, row = compare(told, Grid())
    assert (recorded.what, row.what) == (RECORDED, AGAIN)
    assert recorded.settings == row.settings == {"min_quorum": 2, "gamma": 0.5, "sync_period": 12}
    return recorded, row


def test_under_its_own_settings_a_simulated_run_is_the_same(again: tuple[Row, Row]) -> None:
    recorded, row = again
    assert recorded.figures.rounds > 60
    assert row.figures.rounds == pytest.approx(recorded.figures.rounds, rel=0.02)
    assert row.figures.participation == pytest.approx(recorded.figures.participation, abs=0.02)
    assert row.figures.goodput == pytest.approx(recorded.figures.goodput, abs=0.02)
    for name in ("staleness", "quorum_s", "grace_s", "sync_s", "period_s", "participants"):
        mine, theirs = getattr(row.figures, name), getattr(recorded.figures, name)
        assert mine.mean == pytest.approx(theirs.mean, rel=0.05, abs=0.02), name
    for mine, theirs in zip(row.figures.learners, recorded.figures.learners, strict=True):
        assert mine.rounds == pytest.approx(theirs.rounds, abs=2)
        assert (mine.name, mine.processes) == (theirs.name, theirs.processes)


def test_every_call_comes_within_two_steps_of_the_recorded_moment(told: list[trace.Line]) -> None:
    (part,) = parts_of(told)
    found = Replay(part, SETTINGS, Answers(part), part.ended).run()
    recorded, mine = calls(told), calls(found)
    apart = [abs(mine[place] - at) for place, at in recorded.items() if place in mine]
    assert len(apart) >= len(recorded) - 1
    assert max(apart) < 2 * 0.117, "of the slowest"
    assert sum(apart) / len(apart) < 0.117
    assert Replay(part, SETTINGS, Answers(part), part.ended).run() == found, "nothing is left to chance"


def test_other_settings_change_what_they_should(told: list[trace.Line], again: tuple[Row, Row]) -> None:
    rows = compare(told, Grid(min_quorum=(1, 3), gamma=(1.0,), sync_period=(6, 24)))[2:]
    figures = {(row.settings["min_quorum"], row.settings["sync_period"]): row.figures for row in rows}
    assert list(figures) == [(1, 6), (1, 24), (3, 6), (3, 24)]
    own = again[1].figures
    assert own.participants
    assert own.quorum_s
    assert own.grace_s
    for (quorum, _), each in figures.items():
        assert each.participants
        assert each.quorum_s
        if quorum == 3:
            assert each.participants.mean == 3.0
            assert each.quorum_s.mean > own.quorum_s.mean
        else:
            assert each.grace_s
            assert each.grace_s.mean > own.grace_s.mean, "gamma is 1, and was a half"
            assert each.quorum_s.mean < own.quorum_s.mean
    assert figures[1, 6].rounds == pytest.approx(4 * figures[1, 24].rounds, rel=0.2), "calls come H steps apart"
    assert (figures[1, 6].goodput or 0) > (figures[1, 24].goodput or 0), "less is unmerged at a death"


def with_start(told: list[trace.Line], **changes: object) -> list[trace.Line]:
    start = told[0]
    assert isinstance(start, trace.Start)
    return [trace.Start(t=start.t, sync={**(start.sync or {}), **changes}), *told[1:]]


@pytest.mark.parametrize(
    ("grid", "wrong"),
    [
        (Grid(min_quorum=(1, 9)), "--min-quorum is 9, but only 3 learners are in this trace"),
        (Grid(min_quorum=(0,)), r"--min-quorum: sync\.min_quorum is 0; allowed is 1 to"),
        (Grid(gamma=(1.5,)), r"--gamma: sync\.gamma is 1\.5; allowed is 0 to 1"),
        (Grid(gamma=(float("nan"),)), r"--gamma: sync\.gamma is nan"),
        (Grid(sync_period=(12, 12)), "--sync-period names a value twice: 12, 12"),
        (Grid(sync_period=tuple(range(1, 66))), "65 combinations are asked for; allowed is 64"),
    ],
)
def test_impossible_settings_are_refused(told: list[trace.Line], grid: Grid, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        compare(told, grid)


def test_a_trace_that_does_not_say_enough_is_refused(told: list[trace.Line]) -> None:
    with pytest.raises(ConfigError, match="nothing was merged in this trace"):
        compare(told[:5], Grid())
    with pytest.raises(ConfigError, match="does not say under which settings"):
        compare([trace.Start(t=0.0), *told[1:]], Grid())
    with pytest.raises(ConfigError, match=r"it knows no sync\.colour"):
        compare(with_start(told, colour=1), Grid())
    with pytest.raises(ConfigError, match=r"sync\.gamma was 'much': it cannot be"):
        compare(with_start(told, gamma="much"), Grid())
    with pytest.raises(ConfigError, match=r"sync\.gamma is 7"):
        compare(with_start(told, gamma=7), Grid())


def test_a_run_is_compared_until_it_begins_to_end() -> None:
    world = RecordedWorld(dataclasses.replace(SETTINGS, min_quorum=1), 2, target_tokens=3000)
    world.join("a", 0.05)
    world.join("b", 0.05)
    world.run(60.0)
    (ending,) = world.of(trace.Ending)
    recorded, row = compare(world.told, Grid())
    assert recorded.figures.seconds == pytest.approx(ending.t - world.told[0].t)
    assert row.figures.rounds == pytest.approx(recorded.figures.rounds, abs=1)


def test_two_syncer_processes_are_decided_again_each_on_its_own() -> None:
    world = RecordedWorld(dataclasses.replace(SETTINGS, min_quorum=1, recover_wait_s=1.0), 2)
    world.join("a", 0.05)
    world.join("b", 0.08)
    world.run(8.0)
    assert world.site is not None
    disk = world.site.disk
    world.kill_syncer(world.site)
    world.run(11.0)
    world.start_syncer(disk)
    world.run(22.0)
    recorded, row = compare(world.told, Grid())
    assert [each.processes for each in recorded.figures.learners] == [2, 2]
    assert row.figures.rounds == pytest.approx(recorded.figures.rounds, rel=0.05)
    assert row.figures.participation == pytest.approx(recorded.figures.participation, abs=0.05)
