"""The flow from one peer: what the window holds when chunks come unasked, and how patience grows and shrinks."""

import pytest

from zdiloco.errors import ConfigError
from zdiloco.wire import inbox as inbox_file
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Inbox
from zdiloco.wire.outbox import Outbox

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
            InboxParams(**wrong)  # type: ignore[arg-type]
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
