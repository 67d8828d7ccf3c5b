"""H and K that follow the fleet: when they move, by how much, why, and what a round is told."""

from dataclasses import replace
from typing import Any

import pytest

from zdiloco.core.adaptive import AS_SET, MOST_PATIENCE, PATIENCE, SETTLE, STRETCH, Adaptive, Seen
from zdiloco.core.adaptive_grace import ROUNDS
from zdiloco.core.params import MOST_PERIOD, SyncParams
from zdiloco.core.rounds import Attendance, Close, Wait
from zdiloco.errors import ConfigError
from zdiloco.units import MemberKey

PARAMS = SyncParams(adaptive=True, sync_period=10, min_quorum=1)
QUIET = Seen(fragments=4, open_rounds=4, round_s=0.2, step_s=0.1, slack_s=0.8, usual=1.0, live=4, most_quorum=100)
SLOW = replace(QUIET, round_s=1.5)


def looks(adaptive: Adaptive, seen: Seen, count: int) -> list[str]:
    """Look so often, at the same; return what has changed."""
    return [what for _ in range(count) for what, why in adaptive.look(seen) if why]


def test_it_looks_once_in_as_many_rounds_as_there_are_fragments() -> None:
    adaptive = Adaptive(PARAMS)
    assert [adaptive.is_due(3) for _ in range(7)] == [False, False, True, False, False, True, False]


def test_where_all_is_well_nothing_moves() -> None:
    adaptive = Adaptive(PARAMS)
    assert looks(adaptive, QUIET, 200) == []
    assert looks(adaptive, replace(SLOW, round_s=None), 20) == looks(adaptive, replace(SLOW, step_s=None), 20) == []
    assert (adaptive.sync_period, adaptive.min_quorum, adaptive.why) == (10, 1, AS_SET)


def test_rounds_that_take_longer_than_a_period_make_it_longer() -> None:
    adaptive = Adaptive(PARAMS)
    assert looks(adaptive, SLOW, SETTLE) == [], "not at once"
    assert looks(adaptive, SLOW, 1) == ["H is 15, no longer 10"]
    assert "need 1.50 periods of 1 s" in adaptive.why
    assert looks(adaptive, SLOW, 50) == [], "it suits"


def test_few_rounds_at_once_make_it_longer_too() -> None:
    """Memory holds two rounds at a time: four fragments need two turns."""
    adaptive = Adaptive(PARAMS)
    assert looks(adaptive, replace(QUIET, round_s=0.6, open_rounds=2), SETTLE + 1) == ["H is 12, no longer 10"]


def test_one_step_doubles_it_at_most_and_it_has_a_bound() -> None:
    hopeless = replace(QUIET, round_s=1e6)
    adaptive = Adaptive(PARAMS)
    assert looks(adaptive, hopeless, 100) == [
        "H is 20, no longer 10", "H is 40, no longer 20", f"H is {STRETCH * 10}, no longer 40",
    ]  # fmt: skip
    adaptive = Adaptive(replace(PARAMS, adaptive_period_max=13))
    assert looks(adaptive, hopeless, 100) == ["H is 13, no longer 10"]
    adaptive = Adaptive(replace(PARAMS, sync_period=MOST_PERIOD // 2 - 1))
    looks(adaptive, replace(hopeless, round_s=1e9), 100)
    assert replace(PARAMS, sync_period=adaptive.sync_period).sync_period == MOST_PERIOD, "no setting may be longer"


@pytest.mark.parametrize(("answers", "declines", "period"), [(4, 0, 10), (3, 1, 10), (2, 2, 20), (0, 4, 20)])
def test_where_most_links_are_too_busy_to_answer_it_grows(answers: int, declines: int, period: int) -> None:
    """One of four that declines is none of the others' business."""
    adaptive = Adaptive(PARAMS)
    for _ in range(SETTLE + 1):
        adaptive.closed(answers, declines)
        adaptive.look(QUIET)
    assert adaptive.sync_period == period
    assert adaptive.answered == (answers / 4 if period == 10 else 1.0), "after a change it is counted anew"


def test_it_falls_back_by_and_by_and_never_below_the_setting() -> None:
    adaptive = Adaptive(PARAMS)
    looks(adaptive, SLOW, SETTLE + 1)
    assert looks(adaptive, QUIET, PATIENCE - 1) == []
    assert looks(adaptive, QUIET, 1) == ["H is 12, no longer 15"]
    assert looks(adaptive, QUIET, 500) == ["H is 10, no longer 12"]


def test_after_a_fall_that_was_wrong_it_waits_longer() -> None:
    adaptive, waits = Adaptive(PARAMS), []
    for _ in range(8):
        looks(adaptive, SLOW, SETTLE + 1)
        count = 0
        while not looks(adaptive, QUIET, 1):
            count += 1
        waits.append(count + 1)
    assert waits == sorted(waits)
    assert (waits[0], waits[1], waits[-1]) == (PATIENCE, 2 * PATIENCE, MOST_PATIENCE)


def test_the_quorum_grows_by_one_to_those_who_are_always_there_and_falls_with_them() -> None:
    adaptive = Adaptive(PARAMS)
    assert looks(adaptive, replace(QUIET, usual=3.95), 10) == [f"K is {k + 1}, no longer {k}" for k in (1, 2, 3)]
    assert adaptive.why == "K is 4, no longer 3: 3.95 take part in a round"
    assert looks(adaptive, replace(QUIET, usual=3.6), 10) == []
    assert looks(adaptive, replace(QUIET, usual=3.4), 1) == ["K is 3, no longer 4"]
    assert looks(adaptive, replace(QUIET, usual=3.4, live=1), 1) == ["K is 1, no longer 3"]
    assert adaptive.why.endswith("1 are live")
    assert looks(Adaptive(PARAMS), replace(QUIET, usual=1.5), 50) == [], "one beside whom a slow one comes now and then"


@pytest.mark.parametrize("limit", [{"most_quorum": 2}, {"live": 2}])
def test_the_quorum_is_bounded_by_memory_and_by_who_is_there(limit: dict[str, Any]) -> None:
    adaptive = Adaptive(PARAMS)
    looks(adaptive, replace(QUIET, usual=4.0, **limit), 20)
    assert adaptive.min_quorum == 2
    adaptive = Adaptive(replace(PARAMS, min_quorum=3))
    looks(adaptive, replace(QUIET, usual=4.0, **limit), 20)
    assert adaptive.min_quorum == 3, "never below the setting"
    adaptive = Adaptive(replace(PARAMS, adaptive_quorum_max=3))
    looks(adaptive, replace(QUIET, usual=4.0), 20)
    assert adaptive.min_quorum == 3


def attendance(held: int, absent: int) -> Attendance:
    keys = [MemberKey(f"m{number}", 1) for number in range(held + absent)]
    inside = set(keys[:held])
    return Attendance(
        absent=set(keys[held:]), live=held + absent, held=inside, fresh=inside, quorum=1, patience_ends=20.0
    )


def test_a_round_waits_on_only_for_those_who_may_still_come_and_for_a_period() -> None:
    adaptive, close = Adaptive(PARAMS), Close(why="grace window over")
    adaptive.min_quorum = 3
    waits = Wait(until=9.0, why="1 in, and 3 usually take part; missing m1, m2, m3")
    assert adaptive.waits_on(close, attendance(1, 3), 9.0, 5.0) == waits
    assert adaptive.waits_on(close, attendance(1, 3), 9.0, 9.0) is close, "a period is over"
    assert adaptive.waits_on(close, attendance(3, 1), 9.0, 5.0) is close, "as many as usually"
    assert adaptive.waits_on(close, attendance(1, 0), 9.0, 5.0) is close, "the others have declined, or are gone"
    assert isinstance(adaptive.waits_on(close, attendance(1, 1), 9.0, 5.0), Wait), "one of them may still come"
    grace = Wait(until=7.0, why="grace window")
    assert adaptive.waits_on(grace, attendance(1, 3), 9.0, 5.0) is grace, "what waits anyway is left alone"


def test_grace_keeps_to_what_a_period_has_room_for() -> None:
    """Rounds of all fragments fit into a period; where H had to grow, grace is as set."""
    adaptive = Adaptive(PARAMS)

    def follow(seen: Seen, looks: int) -> list[str]:
        found = []
        for _ in range(looks):
            for _ in range(ROUNDS):
                adaptive.closed(1, 0)
                adaptive.grace.came(0.85)
            found += [what for what, _ in adaptive.look(seen)]
        return found

    assert follow(QUIET, 1) == ["grace is at least 90% of the slack, no longer 0%"]
    few = replace(QUIET, open_rounds=3, round_s=0.1)
    assert follow(few, 1) == ["grace is at least 69% of the slack, no longer 90%"]
    assert adaptive.why.endswith("3 rounds at once, 0.8 s of slack in a period of 1 s")
    assert follow(replace(SLOW, open_rounds=3), 1)[:1] == ["H is 20, no longer 10"]
    assert adaptive.grace.share == 0.0
    assert "grace is at least 0% of the slack, no longer 69%: H is above its setting" in adaptive.why


@pytest.mark.parametrize(
    "wrong",
    [{"adaptive_period_max": 9}, {"min_quorum": 4, "adaptive_quorum_max": 3}, {"adaptive_grace_max": 0.4}],
)
def test_bounds_below_the_settings_are_refused(wrong: dict[str, Any]) -> None:
    name = next(key for key in wrong if key.startswith("adaptive"))
    with pytest.raises(ConfigError, match=rf"^sync\.{name} is below [\d.]+, where it starts: raise it, or set it to 0"):
        replace(PARAMS, **wrong)
