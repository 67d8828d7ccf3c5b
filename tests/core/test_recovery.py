"""How a syncer that starts again comes to have state: the newest of its disk and of the fleet."""

import dataclasses
import math

import pytest

from tests.core.samples import ANN, BOB, BODY, EVE, hello, messages
from zdiloco.core import start
from zdiloco.core.bounds import MAX_EPOCH
from zdiloco.core.machine import (
    CancelFetch,
    Fetch,
    Fetched,
    HandbackTaken,
    Received,
    Send,
    TakeHandback,
    TimerDue,
    Unusable,
)
from zdiloco.core.messages import (
    Handback,
    HandbackRequest,
    Heartbeat,
    Message,
)
from zdiloco.core.params import SyncParams
from zdiloco.core.reception import MOST_RESTARTS
from zdiloco.core.start import PENDING_GRACE_S, Donation, KnownState, Recovery, SyncerPhase, SyncerTurn
from zdiloco.core.syncer import SyncerMachine
from zdiloco.units import Epoch, MemberKey, Merged, Stamp

P, T = SyncerPhase, SyncerTurn
OLD, NEW = Epoch(3, 77), Epoch(4, 11)


def recovery() -> Recovery:
    """Two fragments, on disk at version 5 of the old epoch; the fleet is asked until 10."""
    disk = Stamp(OLD, 5)
    return Recovery(ends_at=10.0, highest=OLD, best=[disk, disk], maps=[(), ()])


def handback(stamp: Stamp, fragment: int = 0) -> Handback:
    return Handback(fragment=fragment, stamp=stamp, codec="fp32", value_bytes=900, body=BODY)


def asked(actions: list) -> list[tuple[MemberKey, int]]:
    sends = [action for action in actions if isinstance(action, Send)]
    return [(send.key, send.message.fragment) for send in sends if isinstance(send.message, HandbackRequest)]


def returning() -> SyncerMachine:
    """A syncer that starts again with one fragment, on its disk at version 5 of the old epoch."""
    known = KnownState(
        run_id="run", epoch=OLD, layout_digest="layout", numels=(9,), shares=(1.0,), stamps=(Stamp(OLD, 5),), maps=((),)
    )
    return SyncerMachine(SyncParams(), run_id="new", ident=9, now=0.0, known=known)


def say(machine: SyncerMachine, key: MemberKey, message: Message, now: float) -> list:
    return machine.handle(Received(key=key, message=message), now)


def hail(machine: SyncerMachine, key: MemberKey, stamp: Stamp, now: float) -> list:
    return say(machine, key, hello(key, (stamp,), run_id="run", layout_digest="layout", epoch=OLD), now)


def test_only_what_is_newer_than_the_disk_is_asked_for() -> None:
    found = recovery().hear(ANN, hello(ANN, (Stamp(OLD, 5), Stamp(OLD, 6)), epoch=OLD))
    assert asked(found) == [(ANN, 1)]


def test_a_later_epoch_is_newer_whatever_its_version() -> None:
    found = recovery().hear(ANN, hello(ANN, (Stamp(NEW, 0), Stamp(Epoch(2, 99), 9))))
    assert asked(found) == [(ANN, 0)]


def test_only_the_newest_is_asked_for_and_again_if_the_question_was_lost() -> None:
    again = recovery()
    assert asked(again.hear(ANN, hello(ANN, (Stamp(OLD, 7),)))) == [(ANN, 0)]
    assert asked(again.hear(BOB, hello(BOB, (Stamp(OLD, 7),)))) == []
    assert asked(again.hear(BOB, hello(BOB, (Stamp(OLD, 6),)))) == []
    assert asked(again.hear(EVE, hello(EVE, (Stamp(OLD, 8),)))) == [(EVE, 0)]
    assert asked(again.hear(EVE, hello(EVE, (Stamp(OLD, 8),)))) == [(EVE, 0)]
    assert list(again.waiting) == [ANN, BOB, EVE]


def test_more_fragments_than_there_are_do_no_harm() -> None:
    assert asked(recovery().hear(ANN, hello(ANN, (Stamp(OLD, 6),) * 3))) == [(ANN, 0), (ANN, 1)]


def test_only_what_was_asked_for_is_fetched() -> None:
    again = recovery()
    again.hear(ANN, hello(ANN, (Stamp(OLD, 7),)))
    assert messages(again.fetch(ANN, handback(Stamp(OLD, 7)))) == [(ANN, "Handback")]
    assert again.fetch(BOB, handback(Stamp(OLD, 9))) == []
    assert again.fetch(ANN, handback(Stamp(OLD, 7), 1)) == []


def test_the_newest_that_is_taken_wins_with_its_map() -> None:
    again = recovery()
    again.hear(ANN, hello(ANN, (Stamp(OLD, 7),)))
    assert again.take(handback(Stamp(OLD, 7)))
    assert not again.take(handback(Stamp(OLD, 6))), "older than what was taken meanwhile"
    again.taken(ANN, 0, (Merged(*ANN, 4, 7, 70),))
    assert again.best == [Stamp(OLD, 7), Stamp(OLD, 5)]
    assert again.maps == [(Merged(*ANN, 4, 7, 70),), ()]
    assert again.pending == {}


def test_what_cannot_be_had_leaves_what_was_there_before() -> None:
    again = recovery()
    again.hear(ANN, hello(ANN, (Stamp(OLD, 7),)))
    again.take(handback(Stamp(OLD, 7)))
    again.lost(ANN, handback(Stamp(OLD, 7)))
    assert again.best == [Stamp(OLD, 5), Stamp(OLD, 5)]
    assert again.over(10.0)
    again.lost(BOB, handback(Stamp(OLD, 9)))
    assert again.best == [Stamp(OLD, 5), Stamp(OLD, 5)], "it was never taken"


def test_it_is_over_after_the_wait_and_what_is_under_way_has_some_more() -> None:
    again = recovery()
    assert not again.over(9.9)
    assert again.over(10.0)
    again.hear(ANN, hello(ANN, (Stamp(OLD, 7),)))
    assert not again.over(10.0 + PENDING_GRACE_S - 0.1)
    assert again.over(10.0 + PENDING_GRACE_S)


def test_what_has_been_overtaken_is_not_waited_for() -> None:
    again = recovery()
    again.hear(ANN, hello(ANN, (Stamp(OLD, 7),)))
    again.hear(BOB, hello(BOB, (Stamp(OLD, 8),)))
    assert not again.over(10.0)
    again.take(handback(Stamp(OLD, 8)))
    again.taken(BOB, 0, ())
    assert again.over(10.0), "Ann's older state does not matter any more"


def test_theta_and_its_map_are_never_of_two_states() -> None:
    """The question was asked twice, and the second answer comes while the first is on its way into Theta."""
    again = recovery()
    again.hear(ANN, hello(ANN, (Stamp(OLD, 7),)))
    again.take(handback(Stamp(OLD, 7)))
    assert again.fetch(ANN, handback(Stamp(OLD, 7))) == []
    assert again.due_at() == math.inf
    assert not again.over(10.0 + 2 * PENDING_GRACE_S), "the map is still the disk's"
    again.taken(ANN, 0, (Merged(*ANN, 4, 7, 70),))
    assert again.over(10.0)


def test_a_second_answer_that_is_lost_takes_nothing_back() -> None:
    again = recovery()
    again.hear(ANN, hello(ANN, (Stamp(OLD, 7),)))
    twin = dataclasses.replace(handback(Stamp(OLD, 7)), body=dataclasses.replace(BODY, transfer="h/2"))
    again.take(handback(Stamp(OLD, 7)))
    again.lost(ANN, twin)
    assert again.best[0] == Stamp(OLD, 7)
    again.taken(ANN, 0, ())
    again.lost(ANN, twin)
    assert again.best[0] == Stamp(OLD, 7)


def test_of_two_on_their_way_into_theta_either_may_fail() -> None:
    for bad in ({7}, {8}, {7, 8}):
        again = recovery()
        states = {version: handback(Stamp(OLD, version)) for version in (7, 8)}
        for version, key in ((7, ANN), (8, BOB)):
            again.hear(key, hello(key, (Stamp(OLD, version),)))
            again.take(states[version])
        for version, key in ((7, ANN), (8, BOB)):
            if version in bad:
                again.lost(key, states[version])
            else:
                again.taken(key, 0, (Merged(*ANN, version, 0, 0),))
        good = max({5, 7, 8} - bad)
        assert again.best[0] == Stamp(OLD, good), bad
        assert again.maps[0] == ((Merged(*ANN, good, 0, 0),) if good > 5 else ()), bad
        assert again.over(10.0)


def test_who_dies_while_it_hands_back_is_not_waited_for_and_others_are_asked() -> None:
    """A learner was killed while a syncer that had just returned fetched from it: nobody was welcome for 32 s."""
    machine = returning()
    state = Stamp(OLD, 7)
    assert asked([*hail(machine, ANN, state, 0.1), *hail(machine, BOB, state, 0.1)]) == [(ANN, 0)]
    offer = handback(state)
    assert Fetch(key=ANN, message=offer) in say(machine, ANN, offer, 0.2)
    say(machine, ANN, Heartbeat(epoch=OLD), 1.0)
    silent_at = 1.0 + machine.params.gone_after_s
    for at in (5.1, 6.5):  # its last word is not that old, and the other one lives on
        say(machine, BOB, Heartbeat(epoch=OLD), at)
        assert not asked(machine.handle(TimerDue(), at))
    assert machine.deadline() == silent_at
    actions = machine.handle(TimerDue(), silent_at)
    assert CancelFetch(key=ANN, message=offer) in actions
    assert asked(actions) == [(BOB, 0)]
    say(machine, BOB, offer, 7.1)
    assert TakeHandback(key=BOB, message=offer) in machine.handle(Fetched(key=BOB, message=offer), 7.2)
    machine.handle(HandbackTaken(key=BOB, fragment=0, stamp=state, map_=()), 7.3)
    machine.handle(TimerDue(), 7.3)
    assert machine.phase == "sealing"
    assert [desk.stamp.version for desk in machine.desk] == [7]


def test_who_hands_back_what_makes_no_sense_is_not_asked_again_and_others_are() -> None:
    """P-13: a member that forged states, and claimed them anew with each hello, held a returning syncer up for 68 s,
    and what honest learners had was never asked for."""
    machine = returning()
    state, false = Stamp(OLD, 7), Stamp(OLD, 10**6)
    assert asked([*hail(machine, EVE, false, 0.1), *hail(machine, BOB, state, 0.1)]) == [(EVE, 0)]
    forged = handback(false)
    say(machine, EVE, forged, 0.2)
    machine.handle(Fetched(key=EVE, message=forged), 0.3)
    actions = machine.handle(Unusable(key=EVE, message=forged, reason="its proof is not ours"), 0.4)
    assert asked(actions) == [(BOB, 0)], "at once"
    assert asked(hail(machine, EVE, Stamp(OLD, 10**6 + 1), 0.5)) == []
    assert asked(hail(machine, MemberKey(EVE.name, 99), false, 0.5)) == [], "nor a newer process of that name"
    offer = handback(state)
    say(machine, BOB, offer, 0.6)
    machine.handle(Fetched(key=BOB, message=offer), 0.7)
    machine.handle(HandbackTaken(key=BOB, fragment=0, stamp=state, map_=()), 0.8)
    machine.handle(TimerDue(), machine.params.recover_wait_s)
    assert machine.phase == "sealing"
    assert [desk.stamp.version for desk in machine.desk] == [7]


def test_the_body_of_the_last_one_who_dies_is_let_go_as_the_wait_ends() -> None:
    machine = returning()
    offer = handback(Stamp(OLD, 7))
    hail(machine, ANN, offer.stamp, 0.1)
    say(machine, ANN, offer, 0.2)
    actions = machine.handle(TimerDue(), 0.2 + machine.params.gone_after_s)
    assert CancelFetch(key=ANN, message=offer) in actions
    assert machine.phase == "sealing"


def test_a_slow_one_that_lives_is_waited_for() -> None:
    machine = returning()
    hail(machine, ANN, Stamp(OLD, 7), 0.1)
    say(machine, ANN, handback(Stamp(OLD, 7)), 0.2)
    for second in range(1, 60):
        say(machine, ANN, Heartbeat(epoch=OLD), second)
        machine.handle(TimerDue(), second + 0.5)
    assert machine.phase == "recovering"


def test_the_new_epoch_is_above_everything_that_was_ever_seen() -> None:
    again = recovery()
    assert again.next_epoch(9) == Epoch(4, 9)
    again.hear(ANN, hello(ANN, epoch=Epoch(20, 1)))  # never welcomed: what does it know
    again.hear(ANN, hello(ANN, run_id="run", epoch=Epoch(20, 1), watching=True))
    assert again.next_epoch(9) == Epoch(4, 9)
    again.hear(ANN, hello(ANN, run_id="run", epoch=Epoch(8, 1)))
    assert again.next_epoch(9) == Epoch(9, 9)
    assert again.next_epoch(0) > Epoch(8, 2**64 - 1)


def test_a_crowd_that_waits_is_bounded_and_whoever_waits_may_repeat_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "MOST_WAITING", 2)
    donation = Donation()
    recovery = Recovery(ends_at=9.0, highest=Epoch(1, 1), best=[Stamp(Epoch(1, 1), 0)], maps=[()])
    stamp = (Stamp(Epoch(1, 1), 5),)
    for key in (ANN, BOB, EVE, ANN):
        donation.offer(key, hello(key), 0.0)
        recovery.hear(key, hello(key, stamp))
    assert set(donation.waiting) == set(recovery.waiting) == {ANN, BOB}
    assert all(key != EVE for key, _ in recovery.pending)


def test_an_epoch_that_would_leave_no_room_for_the_next_is_not_believed() -> None:
    """One liar during a recovery would otherwise have the fleet refused for ever after."""
    machine = returning()
    claims = {ANN: MAX_EPOCH - 1, BOB: OLD.counter + MOST_RESTARTS}
    for key, counter in claims.items():
        said = hello(key, run_id="run", layout_digest="layout", epoch=Epoch(counter, 1))
        (answer,) = (a.message for a in machine.handle(Received(key=key, message=said), 0.1) if isinstance(a, Send))
        assert (answer.reason, answer.fatal) == (("run", True) if key == ANN else ("starting", False))
    machine.handle(TimerDue(), 60.0)
    assert machine.epoch == Epoch(OLD.counter + MOST_RESTARTS + 1, 9)
