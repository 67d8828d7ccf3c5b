"""A recorded process: where its steps are between two that are told, what it cuts, and what it has adopted."""

import math

import pytest

from zdiloco.lives import Life, Mark
from zdiloco.units import Epoch, MemberKey
from zdiloco.whatif.replica import Pace, Replica

EPOCH = Epoch(1, 1)


def life(*marks: tuple[float, int, int | None], ended: float = 100.0) -> Life:
    told = [Mark(t=t, step=step, trained=trained) for t, step, trained in marks]
    return Life(who="a", incarnation="", began=0.0, ended=ended, marks=told)


def test_between_two_that_are_told_steps_are_even() -> None:
    pace = Pace(life((1.0, 1, 10), (2.0, 3, 30), (3.0, 3, 30), (4.0, 7, 110), ended=4.0))
    assert [pace.steps_at(at) for at in (0.9, 1.0, 1.4, 1.5, 2.0, 2.4, 2.5, 4.0, 9.0)] == [0, 1, 1, 2, 3, 3, 4, 7, 7]
    assert [pace.time_of(step) for step in (1, 2, 3, 5, 7)] == [1.0, 1.5, 2.0, 3.0, 4.0]
    assert (pace.time_of(0), pace.time_of(8)) == (1.0, math.inf)
    assert [pace.next_boundary(at) for at in (0.0, 1.0, 1.2, 1.5)] == [1.0, 1.5, 1.5, 2.0]
    assert [pace.boundary_from(at) for at in (0.0, 1.0, 1.2, 1.5)] == [1.0, 1.0, 1.5, 1.5]
    assert [pace.tokens_at(step) for step in (0, 1, 2, 3, 5)] == [0.0, 10.0, 20.0, 30.0, 70.0]


def test_after_the_last_that_is_told_it_goes_on_for_a_while() -> None:
    pace = Pace(life((1.0, 1, None), (2.0, 3, None), (3.0, 5, None)))
    assert (pace.steps[-1], pace.times[-1]) == (7, 4.0)
    assert Pace(life((1.0, 1, None), (2.0, 3, None), ended=2.6)).steps[-1] == 4, "not beyond its end"
    assert Pace(life()).next_boundary(0.0) == math.inf
    assert Pace(life()).tokens_at(3) == 0.0


def replica() -> Replica:
    made = Replica(MemberKey("a", 1), life(*((float(n), n, 10 * n) for n in range(1, 60))), 2)
    made.welcome((4, 5))
    return made


def test_a_cut_holds_what_is_unmerged_and_follows_what_is_merged() -> None:
    made = replica()
    first = made.cut(0, 5, 8, EPOCH, 100)
    assert first
    assert (first.seq, first.after, first.steps, first.tokens, first.cut_step) == (1, 0, 8, 80, 8)
    assert (first.stamp.version, first.version, first.body.nbytes) == (4, 5, 100)
    made.adopt(0, 5, 1)
    assert made.tasks[0].way == 0
    second = made.cut(0, 6, 20, EPOCH, 100)
    assert second
    assert (second.seq, second.after, second.steps, second.stamp.version) == (2, 1, 12, 5)
    made.adopt(0, 6, 0)
    assert made.tasks[0].way == 2, "held for the next round"
    made.settle(0, 2)
    third = made.cut(0, 7, 30, EPOCH, 100)
    assert third
    assert (third.seq, third.after, third.steps) == (3, 1, 22), "refused work is in the next one"
    made.adopt(0, 7, 3)
    assert made.cut(0, 8, 30, EPOCH, 100) is None, "no step since"


def test_a_cut_is_as_far_behind_the_even_pace_as_it_was() -> None:
    made = replica()
    assert made.cut_step(10.3, None) == 10
    assert made.cut_step(20.3, (10.9, 10)) == 19
    assert made.cut_step(20.3, (10.1, 10)) == 20
    assert made.cut_step(20.3, (30.0, 5)) == 12, "no further than is believed"
    assert made.cut_step(20.3, (0.5, 3)) == 20, "of another process"


def test_a_silence_ends_and_a_life_too() -> None:
    made = Replica(MemberKey("a", 1), life((1.0, 1, 1), ended=9.0), 1)
    made.silent = [(3.0, 5.0)]
    assert [made.heard(at) for at in (2.9, 3.0, 4.0, 5.0)] == [2.9, 5.0, 5.0, 5.0]
    assert [made.lives(at) for at in (-0.1, 0.0, 8.9, 9.0)] == [False, True, True, False]
    assert [made.trains(at) for at in (0.5, 1.0, 9.0)] == [False, True, False]
    assert made.pace.at(1.0) == pytest.approx(1.0)
