"""A road on which everything is in vain is dead; one on which anything comes, or whose peer is silent, is not."""

import pytest

from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Inbox
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit
from zdiloco.wire.vain import MOST_VAIN, PassedInVain, Vain

CHUNK = 1024
PARAMS = InboxParams(budget_bytes=100 * CHUNK, window_bytes=8 * CHUNK, stall_s=1.0, give_up_s=90.0)


def asked_until(inbox: Inbox, times: int) -> float:
    """Let time pass until everything was asked for so often again; return the moment."""
    now, before = 0.0, inbox.counters.asked_again
    while inbox.counters.asked_again < before + times:
        now = max(now, inbox.deadline() or 0.0)
        inbox.turn(now)
    return now


def test_what_is_asked_for_in_vain_condemns_the_bulk_road_once() -> None:
    inbox, box = Inbox(PARAMS), Outbox()
    vain = Vain(inbox, PARAMS.give_up_s)
    inbox.expect("peer", box.add("a", bytes(20 * CHUNK), CHUNK), 0.0)
    now = asked_until(inbox, MOST_VAIN - 1)
    assert vain.judge("peer", 5, now) == ""
    now = asked_until(inbox, 1)
    assert vain.judge("peer", 0, now) == "", "the peer itself was not heard"
    assert vain.judge("peer", 6, now) == "bulk"
    assert vain.judge("peer", 7, now) == "", "it was dialled a moment ago"
    chunk = box.broadcast("a")[0]
    asked_until(inbox, MOST_VAIN)
    inbox.on_chunk("peer", chunk.header, chunk.view, now + 80.0)
    assert vain.judge("peer", 8, now + 80.0) == "", "something has come"


def test_what_waits_for_its_turn_is_not_asked_for_and_condemns_nothing() -> None:
    """A pull that waits at the syncer is announced later: until then no body is expected, however long words come."""
    inbox, box = Inbox(PARAMS), Outbox()
    vain = Vain(inbox, PARAMS.give_up_s)
    for second in range(600):
        inbox.turn(float(second))
        assert vain.judge("peer", second + 1, float(second)) == ""
    inbox.expect("peer", box.add("a", bytes(20 * CHUNK), CHUNK), 600.0)
    assert vain.judge("peer", 601, 600.0) == ""
    asked_until(inbox, MOST_VAIN)
    assert vain.judge("peer", 602, 700.0) == "bulk", "from its turn on it is judged like any other"


def test_broadcasts_of_which_nothing_comes_condemn_their_road() -> None:
    inbox, box = Inbox(PARAMS), Outbox()
    vain = Vain(inbox, PARAMS.give_up_s)
    for number in range(MOST_VAIN):
        assert vain.judge("peer", number + 1, float(number)) == ""
        inbox.expect("peer", box.add(f"u{number}", bytes(2 * CHUNK), CHUNK), float(number), passive=True)
        asked_until(inbox, 1)
        for chunk in box.broadcast(f"u{number}"):  # repaired by the other road
            inbox.on_chunk("peer", chunk.header, chunk.view, number + 0.5)
    assert vain.judge("peer", 9, 9.0) == "bulk_cast"
    assert vain.judge("peer", 10, 99.0) == ""


def test_chunks_that_are_sent_and_asked_for_again_condemn_the_bulk_road() -> None:
    vain = Vain(Inbox(PARAMS), PARAMS.give_up_s)
    lost = Credit(transfer="c/0/1", upto=4096, received=1024, missing=((1, 3),))
    for _ in range(MOST_VAIN):
        vain.credited(lost)
        assert vain.judge("peer", 1, 0.0) == ""
    vain.credited(Credit(transfer="c/0/1", upto=8192, received=2048))
    for _ in range(MOST_VAIN):
        vain.credited(Credit(transfer="c/0/1", upto=8192, received=2048, missing=((2, 2),)))
    assert vain.judge("peer", 2, 0.0) == "bulk"


def test_what_is_not_wanted_any_more_was_not_asked_for_in_vain() -> None:
    inbox, box = Inbox(PARAMS), Outbox()
    inbox.expect("peer", box.add("a", bytes(20 * CHUNK), CHUNK), 0.0)
    now = asked_until(inbox, MOST_VAIN)
    assert inbox.asked_in_vain("peer") == MOST_VAIN
    inbox.expect("peer", box.add("b", bytes(20 * CHUNK), CHUNK), now)
    inbox.cancel("peer", "a")
    assert inbox.asked_in_vain("peer") == 0


@pytest.mark.parametrize("way", ["up", "down"])
def test_who_passes_on_condemns_the_road_on_which_either_end_asks_in_vain(way: str) -> None:
    vain = PassedInVain(PARAMS.give_up_s)
    asking, other = (vain.up, vain.down) if way == "up" else (vain.down, vain.up)
    lost = Credit(transfer="c/0/1", upto=4096, received=1024, missing=((1, 3),))
    asking.credited(lost)
    for number in range(MOST_VAIN):
        assert not vain.judge(number + 1, 0.0)
        asking.credited(lost)
        other.credited(Credit(transfer="loan/1", upto=9000, received=1000 * number, missing=((9, 1),)))  # this comes
    assert not vain.judge(1, 0.0), "the far end was not heard since"
    assert vain.judge(9, 0.0)
    for _ in range(MOST_VAIN):
        asking.credited(lost)
    assert not vain.judge(10, PARAMS.give_up_s / 3 - 0.1), "it was dialled a moment ago"
    asking.credited(Credit(transfer="c/0/1", upto=4096, received=2048))
    assert not vain.judge(11, PARAMS.give_up_s), "something has come"
