"""The flow from one peer: what the window holds when chunks come unasked, and how patience grows and shrinks."""

import pytest

from zdiloco.errors import ConfigError
from zdiloco.wire import inbox as inbox_file
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Inbox
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit

CHUNK = 1024
PARAMS = InboxParams(budget_bytes=100 * CHUNK, window_bytes=8 * CHUNK, stall_s=2.0, give_up_s=90.0)


def test_chunks_beyond_the_credit_are_taken_and_not_granted_again() -> None:
    inbox, box = Inbox(PARAMS), Outbox()
    inbox.expect("peer", box.add("a", bytes(20 * CHUNK), CHUNK), 0.0)
    chunks = box.broadcast("a")
    for index in (*range(10, 18), *range(8)):
        assert inbox.on_chunk("peer", chunks[index].header, chunks[index].view, 0.0) is Outcome.ACCEPTED
        assert 0 <= inbox.owed_bytes <= PARAMS.window_bytes
    assert inbox.owed_bytes == 4 * CHUNK, "8, 9, 18 and 19"
    for index in (8, 9, 18):
        inbox.on_chunk("peer", chunks[index].header, chunks[index].view, 0.0)
    assert inbox.on_chunk("peer", chunks[19].header, chunks[19].view, 0.0) is Outcome.COMPLETE
    assert inbox.owed_bytes == 0


def test_what_is_last_is_granted_only_what_others_of_its_peer_leave() -> None:
    inbox, box = Inbox(PARAMS), Outbox()
    inbox.expect("peer", box.add("loan", bytes(20 * CHUNK), CHUNK), 0.0, last=True)
    assert inbox.owed_bytes == 8 * CHUNK, "nothing else is there"
    for name in ("a", "b"):
        inbox.expect("peer", box.add(name, bytes(4 * CHUNK), CHUNK), 0.0)
    inbox.expect("peer", box.add("another loan", bytes(4 * CHUNK), CHUNK), 0.0, last=True)
    granted: dict[str, None] = {}
    for chunk in box.broadcast("loan")[:8]:
        inbox.on_chunk("peer", chunk.header, chunk.view, 0.1)
        granted |= dict.fromkeys(word.transfer for _, word in inbox.turn(0.1).to_send if word.transfer != "loan")
    assert list(granted) == ["a", "b"], "what was granted before has come, and the rest of the loan waits"
    for name in granted:
        for chunk in box.broadcast(name):
            inbox.on_chunk("peer", chunk.header, chunk.view, 0.2)
    (more,) = [word.upto for _, word in inbox.turn(0.2).to_send if word.transfer == "loan"]
    assert more > 8 * CHUNK, "then it goes on"


def test_an_outage_does_not_make_the_next_stall_longer() -> None:
    inbox, box = Inbox(PARAMS), Outbox()
    inbox.expect("peer", box.add("a", bytes(20 * CHUNK), CHUNK), 0.0)
    chunks = box.broadcast("a")
    for now in (0.0, 2.0, 6.0, 14.0):
        inbox.turn(now)
    assert inbox.counters.asked_again == 3
    for index in range(8):
        inbox.on_chunk("peer", chunks[index].header, chunks[index].view, 25.0 + index / 100)
    inbox.turn(25.1)
    while (due := inbox.deadline()) is not None and not inbox.turn(due).to_send:
        assert due < 30.0
    assert due == pytest.approx(27.07), "2 s after the last chunk"


def test_params_are_checked() -> None:
    for wrong in ({"window_bytes": 2**40}, {"stall_s": 0.0}, {"stall_s": 11.0}, {"give_up_s": -1}):
        key = "give_up_s" if wrong == {"stall_s": 11.0} else next(iter(wrong))
        with pytest.raises(ConfigError, match=rf"^net\.{key} is "):
            InboxParams(**wrong)
    with pytest.raises(ConfigError, match=r"^inbox\.budget_bytes is 0"):
        InboxParams(budget_bytes=0)


def test_peers_that_are_gone_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_file, "IDLE_PEERS", 3)
    inbox, box = Inbox(PARAMS), Outbox()
    body = box.add("a", bytes(CHUNK), CHUNK)
    (chunk,) = box.broadcast("a")
    inbox.expect("busy", body, 0.0)
    for peer in range(20):
        for name in (peer, "regular"):
            inbox.expect(name, body, 0.0)
            assert inbox.on_chunk(name, chunk.header, chunk.view, 0.0) is Outcome.COMPLETE
            assert (name, False) in inbox._streams, "its body is held here"
            assert inbox.release(name, "a")
    assert set(inbox._streams) == {("busy", False), ("regular", False), (18, False), (19, False)}
    inbox.cancel_peer("busy")
    assert "busy" not in {peer for peer, _ in inbox._streams}
    assert len(inbox._idle) <= 3


def test_while_nothing_has_come_the_first_request_names_one_chunk() -> None:
    """The first chunk of a slow link may take longer than patience: a whole window asked for twice would be in its way
    for longer than the limit without progress. (B-33) Asked in vain, all of it is named."""
    inbox, box = Inbox(PARAMS), Outbox()
    inbox.expect("peer", box.add("a", bytes(20 * CHUNK), CHUNK), 0.0)
    inbox.turn(0.0)
    named = []
    for _ in range(2):
        due = inbox.deadline()
        assert due is not None
        ((_, credit),) = inbox.turn(due).to_send
        assert isinstance(credit, Credit)
        named.append(credit.missing)
    assert named == [((0, 1),), ((0, 8),)]


def test_whoever_waits_behind_others_that_move_is_not_given_up() -> None:
    """A chunk every 26 s: all are asked for at first, and the last body comes long after `give_up_s`."""
    inbox, box = Inbox(PARAMS), Outbox()
    chunks = []
    for name in ("a", "b", "c"):
        inbox.expect("peer", box.add(name, bytes(2 * CHUNK), CHUNK), 0.0)
    for name in ("a", "b", "c"):
        chunks += box.broadcast(name)
    assert len(inbox.turn(0.0).to_send) == 3
    now = 0.0
    for chunk in chunks:
        for _ in range(26):
            now += 1.0
            assert not inbox.turn(now).given_up
        inbox.on_chunk("peer", chunk.header, chunk.view, now)
    assert now > PARAMS.give_up_s + 60.0
    assert inbox.reserved_bytes == 6 * CHUNK, "all of them are here"


def test_whoever_gets_nothing_while_those_behind_it_move_is_given_up() -> None:
    inbox, box = Inbox(PARAMS), Outbox()
    for name in ("dead", "alive"):
        inbox.expect("peer", box.add(name, bytes(4 * CHUNK if name == "dead" else 90 * CHUNK), CHUNK), 0.0)
    lost = []
    for index, chunk in enumerate(box.broadcast("alive")[:60]):
        inbox.on_chunk("peer", chunk.header, chunk.view, 3.0 * index)
        lost += inbox.turn(3.0 * index).given_up
    assert [each.transfer for each in lost] == ["dead"]
