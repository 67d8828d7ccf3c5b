"""Figures of a trace: by hand on a small one, and against the fleet's own books on a simulated run."""

import json

import pytest

from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.goodput import Spread, figures_of, spread
from zdiloco.sim.recorded import RecordedWorld

A = trace.Part(name="a", incarnation="1", steps=4, tokens=40, seq=1, staleness=0)
B = trace.Part(name="b", incarnation="2", steps=2, tokens=20, seq=1, staleness=2)


def test_figures_by_hand() -> None:
    """Two fragments of a quarter and three; a lives 10 s and is merged half, b 5 s and a quarter, then it is dead."""
    found = figures_of(
        [
            trace.Start(t=0),
            trace.Opened(t=0, shares=(0.25, 0.75)),
            trace.Joined(t=0, who="a", incarnation="1"),
            trace.Joined(t=0, who="b", incarnation="2"),
            *(trace.Step(t=t, who="a", step=t, trained=10 * t) for t in range(1, 9)),
            trace.Step(t=1, who="b", step=1, trained=10),
            trace.Step(t=2, who="b", step=4, trained=20),
            trace.Call(t=2, fragment=0, version=1),
            trace.Arrived(t=3, who="a", fragment=0, version=1, answer_s=1.0),
            trace.Merge(t=3, fragment=0, version=1, members=(A, B), quorum_s=1.0, grace_s=0.0),
            trace.Published(t=3.5, fragment=0, version=1, sync_s=0.5),
            trace.Declined(t=4, who="b", fragment=1, version=1),
            trace.Arrived(t=4, who="a", fragment=0, version=1, answer_s=2.0),
            trace.Killed(t=5, who="b"),
            trace.Call(t=6, fragment=0, version=2),
            trace.Merge(t=7, fragment=1, version=1, members=(A,), quorum_s=3.0, grace_s=1.0),
            trace.End(t=10, lost_lines=3),
        ]
    )
    a, b = found.learners
    assert a.merged_tokens == pytest.approx(0.25 * 40 + 0.75 * 40)
    assert (a.merged_share, b.merged_share) == (pytest.approx(0.5), pytest.approx(0.25))
    assert found.goodput == pytest.approx((10 * 0.5 + 5 * 0.25) / 15)
    assert (a.rounds, a.of_rounds, b.rounds, b.of_rounds) == (2, 2, 1, 1)
    assert (found.participation, a.participation) == (1.0, 1.0)
    assert found.participants == Spread(mean=1.5, p90=2, most=2)
    assert found.staleness == Spread(mean=pytest.approx(2 / 3), p90=2, most=2)
    assert (found.quorum_s, found.grace_s) == (Spread(mean=2, p90=3, most=3), Spread(mean=0.5, p90=1, most=1))
    assert (found.sync_s, found.period_s) == (Spread(mean=0.5, p90=0.5, most=0.5), Spread(mean=4, p90=4, most=4))
    assert (a.answer_s, b.answer_s) == (Spread(mean=1.5, p90=2, most=2), None)
    assert (a.late, b.late, a.declined, b.declined) == (1, 0, 0, 1)
    assert (b.seconds, b.dead_s, a.dead_s) == (5, 5, 0)
    assert (a.stalled_s, found.uptime) == (0, pytest.approx(0.9)), "a's first step is made after one second of ten"
    assert (found.rounds, found.lost_lines, found.seconds) == (2, 3, 10)
    assert json.loads(json.dumps(found.to_obj()))["learners"][0]["participation"] == 1.0


def test_without_tokens_steps_say_what_was_merged() -> None:
    merge = trace.Merge(t=2, fragment=0, version=1, members=(trace.Part(name="a", steps=3),))
    (a,) = figures_of([*(trace.Step(t=t / 4, who="a") for t in range(6)), merge]).learners
    assert (a.steps, a.trained, a.merged_share) == (6, None, pytest.approx(0.5))


def test_a_trace_of_nothing_has_no_figures() -> None:
    found = figures_of([trace.Start(t=0)])
    assert (found.rounds, found.learners) == (0, ())
    assert {found.goodput, found.uptime, found.participation, found.participants, found.period_s} == {None}
    assert spread([]) is None


def test_figures_agree_with_the_books_of_a_simulated_fleet() -> None:
    world = RecordedWorld(SyncParams(min_quorum=1, sync_period=8), 2)
    actors = [world.join("a", 0.05), world.join("b", 0.13)]
    world.run(20.0)
    found = figures_of(world.told)
    site = world.site
    assert site is not None
    assert found.rounds == len(world.of(trace.Merge))
    for each, actor in zip(found.learners, actors, strict=True):
        merged = [desk.intake.map[actor.key] for desk in site.machine.desk]
        assert each.merged_tokens == pytest.approx(sum(entry.tokens for entry in merged) / 2)
        assert each.steps == pytest.approx(actor.machine.step, abs=1 / actor.step_s), "told once a second"
        assert each.merged_share == pytest.approx(1.0, abs=0.06)
    assert found.goodput == pytest.approx(1.0, abs=0.06)
