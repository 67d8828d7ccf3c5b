"""Who lived when: joins, deaths, stalls and returns, of simulated runs and as a real syncer sees them."""

import math
from typing import Any

import pytest

from zdiloco import trace
from zdiloco.lives import Life, joined_spans, length, parts_of, without


def lives_of(*facts: dict[str, Any]) -> list[tuple[str, str, float, float, str]]:
    (part,) = parts_of([trace.record_of(each) for each in facts])
    return [(life.who, life.incarnation, life.began, life.ended, life.how) for life in part.lives]


def fact(t: float, who: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"t": t, "who": who, "kind": kind, **more}


def member(t: float, who: str, state: str, **more: Any) -> dict[str, Any]:
    return fact(t, who, "member", state=state, **more)


def test_a_life_ends_when_it_was_last_heard() -> None:
    found = lives_of(
        fact(1, "a", "joined", incarnation="07"),
        member(2, "a", "live"),
        member(8, "a", "suspect", silent_s=3),
        member(11, "a", "gone", silent_s=6),
        fact(20, "a", "joined", incarnation="08"),
        fact(30, "b", "joined", incarnation="09"),
        member(40, "a", "finished"),
    )
    assert found == [("a", "07", 1, 5, "gone"), ("a", "08", 20, 40, "finished"), ("b", "09", 30, 40, "open")]


def test_who_is_heard_again_after_it_was_gone_had_not_died() -> None:
    """Its region was cut off: it trained on meanwhile."""
    facts = [
        fact(1, "a", "joined", incarnation="07", region="west"),
        *(fact(t, "a", "step", step=t) for t in (2, 3, 4, 5)),
        member(8, "a", "suspect", silent_s=3, incarnation="07"),
        member(11, "a", "gone", silent_s=6, incarnation="07"),
        fact(20, "a", "joined", incarnation="07", region="west"),
        fact(21, "a", "step", step=21),
        fact(22, "a", "step", step=22),
        fact(30, "syncer", "end"),
    ]
    assert lives_of(*facts) == [("a", "07", 1, 30, "open")]
    (part,) = parts_of([trace.record_of(each) for each in facts])
    (life,) = part.lives
    assert (life.silent, life.steps, life.region) == ([(5, 20)], 22, "west")
    assert part.deaths() == {"a": []}
    other = fact(15, "a", "joined", incarnation="08")
    assert lives_of(*facts[:-4], other, *facts[-4:]) == [
        ("a", "07", 1, 5, "gone"), ("a", "08", 15, 20, "replaced"), ("a", "07", 20, 30, "open"),
    ], "another process had its name meanwhile"  # fmt: skip


def test_a_newer_process_replaces_an_older_one() -> None:
    found = lives_of(
        fact(1, "a", "joined", incarnation="07"),
        fact(4, "a", "joined", incarnation="08"),
        fact(5, "a", "joined", incarnation="08"),
        fact(9, "a", "step", step=3),
    )
    assert found == [("a", "07", 1, 4, "replaced"), ("a", "08", 4, 9, "open")]


def test_a_simulated_death_is_known_at_once() -> None:
    found = lives_of(
        fact(1, "a", "joined", incarnation="07"),
        fact(4, "a", "killed"),
        member(10, "a", "gone", silent_s=6),
        fact(12, "a", "returned"),
        fact(13, "a", "joined", incarnation="08"),
        fact(15, "a", "step"),
        fact(16, "syncer", "killed"),
    )
    assert found == [("a", "07", 1, 4, "killed"), ("a", "08", 12, 16, "open")]


def test_a_word_about_the_process_before_does_not_end_the_one_that_was_started() -> None:
    found = lives_of(
        fact(1, "a", "joined", incarnation="07"),
        fact(4, "a", "killed"),
        fact(9, "a", "returned"),
        member(10, "a", "gone", silent_s=6, incarnation="07"),
        fact(11, "a", "joined", incarnation="08"),
        fact(16, "syncer", "killed"),
    )
    assert found == [("a", "07", 1, 4, "killed"), ("a", "08", 9, 16, "open")]


def test_a_simulated_learner_starts_over_and_stops_by_itself() -> None:
    facts = [
        fact(1, "a", "joined", incarnation="7"),
        fact(1.5, "a", "joined", incarnation="0007"),
        fact(2, "a", "step", tokens=10),
        fact(3, "a", "step", tokens=15),
        fact(4, "a", "reborn", incarnation="8"),
        fact(5, "a", "stop", code=0),
        fact(5, "b", "joined", incarnation="9"),
        fact(6, "b", "stop", code=2),
    ]
    assert lives_of(*facts) == [
        ("a", "0007", 1, 4, "replaced"), ("a", "8", 4, 5, "finished"), ("b", "9", 5, 6, "gone"),
    ]  # fmt: skip
    (part,) = parts_of([trace.record_of(each) for each in facts])
    assert (part.lives[0].steps, part.lives[0].trained) == (2, 25)


def test_stalls_are_silences_and_steps_that_take_too_long() -> None:
    (part,) = parts_of(
        [
            trace.Joined(t=0, who="a"),
            *(trace.Step(t=t, who="a", step=t) for t in (1, 2, 3, 10, 11)),
            trace.Stopped(t=11.5, who="a"),
            trace.Continued(t=14.0, who="a"),
            trace.Step(t=14.5, who="a", step=12),
            trace.Member(t=18.0, who="a", state="suspect", silent_s=3.0),
            trace.End(t=30.0),
        ]
    )
    (life,) = part.lives
    assert life.steps == 12
    assert life.stalls() == [(4, 10), (11.5, 14.0), (15.0, 30.0)], "usually a step is told every second"
    assert life.seconds == 30.0


def test_counts_never_fall_and_are_split_between_parts() -> None:
    """The syncer was started again; learners went on, one of them anew."""
    first, second = parts_of(
        [
            trace.Start(t=0),
            trace.Joined(t=0, who="a", incarnation="07"),
            trace.Joined(t=0, who="b", incarnation="08"),
            trace.Step(t=1, who="a", step=10, trained=100),
            trace.Step(t=2, who="a", step=9, trained=90),
            trace.Step(t=2, who="b", step=5, trained=50),
            trace.Start(t=20),
            trace.Joined(t=20, who="a", incarnation="07"),
            trace.Joined(t=20, who="b", incarnation="08"),
            trace.Step(t=21, who="a", step=30, trained=300),
            trace.Step(t=21, who="b", step=2, trained=20),
        ]
    )
    assert [(life.who, life.steps, life.trained) for life in first.lives] == [("a", 10, 100), ("b", 5, 50)]
    assert [(life.who, life.steps, life.trained) for life in second.lives] == [("a", 20, 200), ("b", 2, 20)]


def test_a_syncer_that_returns_begins_another_part_under_the_same_settings() -> None:
    start = trace.Start(t=0, sync={"min_quorum": 2})
    merge = trace.Merge(t=3, fragment=1, version=1)
    opened = trace.Opened(t=1, shares=(0.25, 0.75))
    first, second = parts_of([start, opened, merge, trace.Killed(t=4), trace.Returned(t=9), merge])
    assert (first.start, second.start) == (start, start)
    assert (first.shares, second.shares) == ((0.25, 0.75),) * 2
    assert (first.ended, second.began) == (4, 3)


def test_without_shares_fragments_are_alike() -> None:
    (part,) = parts_of([trace.Call(t=1, fragment=3, version=1)])
    assert part.shares == (0.25,) * 4
    assert (part.share(3), part.share(4)) == (0.25, 0.0)


def test_deaths_last_until_somebody_of_that_name_is_back() -> None:
    (part,) = parts_of(
        [
            trace.Joined(t=0, who="a", incarnation="1"), trace.Killed(t=5, who="a"),
            trace.Joined(t=8, who="a", incarnation="2"), trace.Member(t=9, who="a", state="finished"),
            trace.Joined(t=0, who="b", incarnation="3"), trace.Killed(t=5, who="b"), trace.End(t=20),
        ]
    )  # fmt: skip
    assert part.deaths() == {"a": [(5, 8)], "b": [(5, 20)]}


def test_spans() -> None:
    assert joined_spans([(3, 4), (0, 1), (1, 2), (0.5, 0.7)]) == [(0, 2), (3, 4)]
    assert length([(0, 2), (3, 4.5)]) == 3.5
    assert without((0, 10), [(-1, 1), (2, 3), (9, 12)]) == [(1, 2), (3, 9)]
    assert without((0, 10), [(0, 10)]) == []
    assert without((0, 1), []) == [(0, 1)]


def test_an_open_silence_ends_with_the_life() -> None:
    life = Life(who="a", incarnation="", began=0.0, silent=[(1.0, math.inf), (9.0, math.inf)])
    life.end(5.0, "killed")
    assert life.silent == [(1.0, 5.0)]
    assert life.stalls() == [(1.0, 5.0)]
    assert (life.steps, life.trained) == (0, None)
    assert life.seconds == pytest.approx(5.0)
