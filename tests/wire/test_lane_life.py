"""Whose lane of a relay is over, and whose is given up for one who comes: judged by what was heard, and when."""

import pytest

from zdiloco.core.messages import Goodbye, Hello
from zdiloco.units import MemberKey
from zdiloco.wire.lane_life import BRIEF_S, STRANGER_S, LaneLife, lane_to_give_up, lanes_over, may_come_beside

FORGET_S = 30.0
BYE = Goodbye(reason="", trained_tokens=0, left_tokens=0, dropped_tokens=0)


def lane(name: str, heard_at: float, *, incarnation: int = 1, greets: bool = True, left: bool = False) -> LaneLife:
    made = LaneLife(MemberKey(name, incarnation), heard_at)
    if greets:
        assert made.hears(Hello(name=name, incarnation=incarnation))
        assert not made.hears(Hello(name=name, incarnation=incarnation)), "the first one only"
    if left:
        made.hears(BYE)
    return made


@pytest.mark.parametrize(
    ("kind", "silent_s", "why"),
    [
        ({}, FORGET_S, ""),
        ({}, FORGET_S + 1, "silent for 31 s"),
        ({"left": True}, BRIEF_S, ""),
        ({"left": True}, BRIEF_S + 1, "it took leave"),
        ({"greets": False}, BRIEF_S, ""),
        ({"greets": False}, BRIEF_S + 1, "it has said no hello"),
    ],
)
def test_a_lane_is_over_after_a_silence_that_depends_on_who_counts_on_it(
    kind: dict[str, bool], silent_s: float, why: str
) -> None:
    found = lanes_over([lane("a", 100.0, **kind), lane("b", 100.0 + silent_s)], 100.0 + silent_s, FORGET_S)
    assert [reason for _, reason in found] == ([why] if why else [])


def test_of_two_processes_of_one_name_the_one_heard_last_keeps_its_lane() -> None:
    old, new = lane("a", 1.0, incarnation=9), lane("a", 1.5, incarnation=2)
    assert lanes_over([new, old], 1.0 + BRIEF_S + 0.1, FORGET_S) == [(old, "a newer process has its name")]


def test_a_place_is_given_up_only_by_one_that_nobody_counts_on_the_stranger_first() -> None:
    greeted, stranger, left = lane("a", 0.0), lane("b", 0.0, greets=False), lane("c", 0.0, left=True)
    assert lane_to_give_up([greeted, stranger, left], STRANGER_S, FORGET_S) is None
    assert lane_to_give_up([greeted, stranger, left], BRIEF_S + 0.1, FORGET_S) is stranger
    assert lane_to_give_up([greeted, left], BRIEF_S + 0.1, FORGET_S) is left
    assert lane_to_give_up([greeted], FORGET_S, FORGET_S) is None


def test_a_newer_process_may_come_beside_one_of_its_name_that_counts_and_one_only() -> None:
    both = [lane("a", 0.0), lane("b", 0.0, greets=False)]
    assert may_come_beside(both, MemberKey("a", 2), 2)
    assert not may_come_beside(both, MemberKey("b", 2), 2), "a stranger's name is nobody's"
    assert not may_come_beside(both, MemberKey("c", 1), 2)
    assert not may_come_beside([*both, lane("a", 0.0, incarnation=2)], MemberKey("a", 3), 2)
