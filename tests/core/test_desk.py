"""Rounds at the syncer: since when a fragment waits for its slot, and which declines tell of the links."""

from dataclasses import replace

import pytest

from tests.core.samples import ANN, BOB, FAST, contribution, held
from zdiloco.core.adaptive import Adaptive
from zdiloco.core.desk import Desk, FragmentDesk
from zdiloco.core.membership import Fleet, Member
from zdiloco.core.messages import UPLINK_BUSY
from zdiloco.core.progress import Intake
from zdiloco.units import MemberKey

H = FAST.sync_period


def join(fleet: Fleet, key: MemberKey, now: float) -> Member:
    """A live member that has made no step here yet."""
    one, _ = fleet.welcome(key, False, now)
    fleet.report(one, 0, now)
    fleet.begin(one)
    return one


def desk_without_slots(fleet: Fleet) -> tuple[Desk, FragmentDesk]:
    desk = Desk(FAST, fleet)
    desk.fragments = [FragmentDesk(index=0, numel=1, share=1.0, intake=Intake())]
    desk.most_open = 0
    return desk, desk.fragments[0]


def test_a_fragment_that_waits_for_a_slot_is_overdue_since_then_whoever_comes() -> None:
    fleet = Fleet(FAST)
    desk, fragment = desk_without_slots(fleet)
    ann = join(fleet, ANN, 0.0)
    assert desk.begin_turn(0.0)
    fleet.report(ann, H, 4.0)
    assert desk.call(4.0) == []
    assert (fragment.due.since, fragment.why) == (4.0, "due, waits for one of 1 slots")
    fleet.report(ann, H + 1, 4.5)
    join(fleet, BOB, 5.0)
    desk.look_again(5.0)
    assert desk.call(5.0) == []
    assert fragment.due.since == 4.0, "else every newcomer would make the longest overdue one the youngest"


def test_it_is_due_no_more_once_those_who_had_their_steps_are_gone() -> None:
    fleet = Fleet(FAST)
    desk, fragment = desk_without_slots(fleet)
    ann, bob = join(fleet, ANN, 0.0), join(fleet, BOB, 0.0)
    desk.begin_turn(0.0)
    fleet.report(ann, H, 4.0)
    desk.call(4.0)
    fleet.leave(ann, "over")
    desk.look_again(5.0)
    desk.call(5.0)
    assert (fragment.due, fragment.why) == (None, f"fewer than 1 learners have made {H} steps on it")
    fleet.report(bob, H, 6.0)
    assert desk.deadline() <= 6.0
    desk.most_open = 1
    assert [rnd.fragment for rnd in desk.call(6.0)] == [0]


def test_a_fragment_is_called_at_the_report_that_makes_it_due_however_sudden() -> None:
    """Somebody that was slow makes all its steps at once: nobody waits for a look that was planned for later."""
    fleet = Fleet(FAST)
    desk, _ = desk_without_slots(fleet)
    desk.most_open = 1
    ann = join(fleet, ANN, 0.0)
    desk.begin_turn(0.0)
    fleet.report(ann, 1, 100.0)
    assert desk.call(100.0) == []
    fleet.report(ann, H, 100.5)
    assert [rnd.called_at for rnd in desk.call(100.5)] == [100.5]


def test_two_reports_of_one_moment_are_two_reports() -> None:
    fleet = Fleet(FAST)
    desk, _ = desk_without_slots(fleet)
    desk.most_open = 1
    ann = join(fleet, ANN, 0.0)
    desk.begin_turn(0.0)
    for step in (1, H):
        assert desk.call(5.0) == []
        fleet.report(ann, step, 5.0)
    assert [rnd.fragment for rnd in desk.call(5.0)] == [0]


@pytest.mark.parametrize(
    ("reason", "answered"),
    [
        (f"{UPLINK_BUSY} with 3 (perhaps for 1.5 s)", 0.5),
        ("no step since the last contribution", 1.0),
        ("waits for the newest state of it", 1.0),
    ],
)
def test_of_those_who_decline_only_busy_uplinks_say_that_calls_come_too_often(reason: str, answered: float) -> None:
    fleet = Fleet(FAST)
    desk, fragment = desk_without_slots(fleet)
    desk.most_open, desk.adaptive = 1, Adaptive(replace(FAST, adaptive=True))
    ann, _ = join(fleet, ANN, 0.0), join(fleet, BOB, 0.0)
    desk.begin_turn(0.0)
    fleet.report(ann, H, 4.0)
    (rnd,) = desk.call(4.0)
    desk.declined(fragment, rnd, BOB, reason)
    desk.arrived(held(ANN, contribution(version=rnd.version), 4.5), 4.5)
    assert len(desk.judge(5.0)) == 1
    assert desk.adaptive.answered == answered


def test_whoever_usually_takes_part_is_waited_for_until_a_period_is_over_and_no_longer() -> None:
    """Beyond the K of the settings no grace window is added, and a round has one quorum."""
    fleet = Fleet(FAST)
    desk, fragment = desk_without_slots(fleet)
    desk.most_open, desk.adaptive = 1, Adaptive(replace(FAST, adaptive=True))
    ann, bob = join(fleet, ANN, 0.0), join(fleet, BOB, 0.0)
    desk.begin_turn(0.0)
    fleet.report(ann, H, 4.0)
    fleet.report(bob, H, 4.0)
    (rnd,) = desk.call(4.0)
    desk.adaptive.min_quorum = 2
    desk.arrived(held(ANN, contribution(version=rnd.version), 4.5), 4.5)
    over = rnd.called_at + H * (fleet.paces.least or 0.0)
    assert desk.judge(4.5) == []
    while (ends := desk.deadline()) < over:
        assert desk.judge(ends) == []
    assert fragment.why == "1 in, and 2 usually take part; missing bob"
    assert ends == over
    assert len(desk.judge(over)) == 1
    assert desk.quorum_s.value == 0.5, "one sample, and not that of the end"
