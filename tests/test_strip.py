"""The strip chart: what is drawn of whom, and that it is drawn."""

from pathlib import Path

import pytest

from zdiloco import trace
from zdiloco.errors import ConfigError
from zdiloco.strip import MOST_LOSSES, MOST_ROWS, chart_of, draw

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
    assert (a.silent, a.stalled) == ([(8.5, 10)], []), "it was stopped"
    assert a.joined == [1]
    assert a.dead == [(12, 20)]
    assert chart.rounds == [(2, 4, 5)]
    assert chart.faults == [(12, "a", "kill"), (13, trace.SYNCER, "crash for 1 s")]
    assert (chart.starts, chart.seconds, chart.left_out) == ([0], 20, 0)


def member(t: float, who: str, state: str, silent_s: float) -> trace.Record:
    return trace.Member(t=t, who=who, state=state, silent_s=silent_s, incarnation=f"{who}7")


def test_who_was_where_and_when() -> None:
    """A region is cut off, and comes back: its learners are not heard meanwhile, and have not died."""
    where = {"a": "west", "b": "east", "c": "west"}
    begins = [trace.Joined(t=0, who=who, incarnation=f"{who}7", region=region) for who, region in where.items()]
    made = {"a": (*range(1, 6), *range(21, 30)), "b": range(1, 30), "c": (*range(1, 6), *range(21, 26))}
    steps = [trace.Step(t=t, who=who, step=t) for who, times in made.items() for t in times]
    cut = [member(t, who, state, t - 5) for t, state in ((8, "suspect"), (11, "gone")) for who in "ac"]
    back = [trace.Joined(t=20, who=who, incarnation=f"{who}7", region="west") for who in "ac"]
    moved = [member(26, "c", "finished", 0), trace.Joined(t=28, who="c", incarnation="c8", region="north")]
    part = trace.Part(name="a", incarnation="a7", steps=9, tokens=90)
    merges = [trace.Merge(t=t, fragment=0, version=t, members=(part,)) for t in (4, 22)]
    chart = chart_of([trace.Start(t=0), *begins, *steps, *cut, *back, *moved, *merges, trace.End(t=30)])
    assert [strip.label for strip in chart.strips] == ["b (east)", "c (north)", "a (west)"], "by regions, then names"
    b, c, a = chart.strips
    assert (a.joined, a.silent, a.stalled, a.dead, a.merged) == ([0], [(5, 20)], [(20, 21)], [], [4, 22])
    assert (b.joined, b.silent, b.dead) == ([0], [], [])
    assert (c.joined, c.silent) == ([0, 28], [(5, 20)]), "another process, in another region"


def test_losses_are_drawn_where_the_trace_has_wall_time(tmp_path: Path) -> None:
    losses = [("a", [(1001.0, 5.5), (1009.5, 2.5)])]
    assert chart_of(RUN, losses).losses == [("a", [(1.0, 5.5), (9.5, 2.5)])]
    assert chart_of([trace.Start(t=3), *RUN[1:]], losses).losses == []
    many = [(f"l{n}", [(1001.0, 1.0 + n)]) for n in range(MOST_LOSSES + 1)]
    for number, told in enumerate((losses, many, [("$a", [])])):
        assert draw(RUN, tmp_path / f"{number}.png", told).read_bytes().startswith(b"\x89PNG")


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
