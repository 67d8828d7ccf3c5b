"""The strip chart: what is drawn of whom, and that it is drawn."""

from pathlib import Path

import pytest

from zdiloco import trace
from zdiloco.errors import ConfigError
from zdiloco.strip import MOST_ROWS, chart_of, draw

A = trace.Part(name="a", incarnation="1", steps=4, tokens=40)
RUN = [
    trace.Start(t=100, wall=1000.0),
    trace.Joined(t=101, who="a", incarnation="1"),
    *(trace.Step(t=101 + n, who="a", step=n) for n in range(1, 8)),
    trace.Stopped(t=108.5, who="a"),
    trace.Continued(t=110, who="a"),
    trace.Call(t=104, fragment=2, version=1),
    trace.Merge(t=105, fragment=2, version=1, members=(A,), quorum_s=0.5, grace_s=0.5),
    trace.Killed(t=112, who="a"),
    trace.Fault(t=112, who="a", what="kill"),
    trace.Fault(t=113, what="crash for 1 s"),
    trace.End(t=120),
]


def test_a_learner_trains_stalls_and_is_dead() -> None:
    chart = chart_of(RUN)
    (a,) = chart.strips
    assert (a.name, a.merged) == ("a", [5])
    assert a.training == [(2, 8.5), (10, 12)]
    assert a.stalled == [(8.5, 10)]
    assert a.dead == [(12, 20)]
    assert chart.rounds == [(2, 4, 5)]
    assert chart.faults == [(12, "a", "kill"), (13, trace.SYNCER, "crash for 1 s")]
    assert (chart.starts, chart.seconds, chart.left_out) == ([0], 20, 0)


def test_syncer_processes_follow_each_other_in_wall_time() -> None:
    """The second one ran after a reboot: its clock began anew."""
    again = [trace.Start(t=3, wall=1050.0), trace.Joined(t=4, who="a"), trace.Step(t=5, who="a"), trace.End(t=9)]
    chart = chart_of([*RUN, *again])
    assert (chart.starts, chart.seconds) == ([0, 50], 56)
    assert chart.strips[0].training[-1] == (52, 56)
    plain = [trace.Start(t=3), *again[1:]]
    assert chart_of([*RUN, *plain]).starts == [0, 20], "without wall time, one after the other"


def test_it_is_drawn_whatever_there_is(tmp_path: Path) -> None:
    for name, records in (("run", RUN), ("nothing", [trace.Start(t=0)])):
        path = tmp_path / f"{name}.png"
        assert draw(records, path).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_of_a_large_fleet_some_are_drawn_and_the_others_counted() -> None:
    many = [trace.Step(t=float(t), who=f"l{n:03}") for t in (0, 1) for n in range(MOST_ROWS + 5)]
    chart = chart_of(many)
    assert (len(chart.strips), chart.left_out) == (MOST_ROWS, 5)


def test_another_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be called"):
        draw(RUN, tmp_path / "a.gif")
