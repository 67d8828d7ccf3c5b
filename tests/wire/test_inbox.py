"""The receiving end, step by step: credit, stalls, repair, budget, and peers that break the rules."""

import pytest

from zdiloco.core.messages import Body
from zdiloco.errors import MachineError, MalformedFrame
from zdiloco.wire import inbox as inbox_file
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Expected, GivenUp, Inbox
from zdiloco.wire.outbox import ChunkOut, Outbox
from zdiloco.wire.transfer import Chunk, Credit, Gone, make_body

CHUNK = 1024
PARAMS = InboxParams(budget_bytes=100 * CHUNK, window_bytes=8 * CHUNK, stall_s=2.0, give_up_s=30.0)


def pattern(chunks: float) -> bytes:
    return bytes(index * 7 % 251 for index in range(int(chunks * CHUNK)))


def offer(chunks: float, name: str = "a") -> tuple[Body, list[ChunkOut]]:
    box = Outbox()
    body = box.add(name, pattern(chunks), CHUNK)
    return body, box.broadcast(name)


def give(inbox: Inbox, chunk: ChunkOut, now: float, peer: str = "peer") -> Outcome:
    return inbox.on_chunk(peer, chunk.header, chunk.view, now)


def credits(inbox: Inbox, now: float) -> list[tuple[str, float, float, tuple[tuple[int, int], ...]]]:
    """What is told now, as (transfer, upto in chunks, received in chunks, missing)."""
    told = [message for _, message in inbox.turn(now).to_send]
    assert all(isinstance(message, Credit) for message in told)
    return [(each.transfer, each.upto / CHUNK, each.received / CHUNK, each.missing) for each in told]


def test_credit_runs_a_window_ahead_and_is_told_every_quarter() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(20)
    assert inbox.expect("peer", body, 0.0) is Expected.WAITING
    assert inbox.deadline() == 0.0
    assert credits(inbox, 0.0) == [("a", 8, 0, ())]
    told = {}
    for index, chunk in enumerate(chunks):
        outcome = give(inbox, chunk, 0.1 + index / 100)
        assert outcome is (Outcome.COMPLETE if index == 19 else Outcome.ACCEPTED)
        told[index] = credits(inbox, 0.1 + index / 100)
    assert {index: each for index, each in told.items() if each} == {
        1: [("a", 10, 2, ())],
        3: [("a", 12, 4, ())],
        5: [("a", 14, 6, ())],
        7: [("a", 16, 8, ())],
        9: [("a", 18, 10, ())],
        11: [("a", 20, 12, ())],
        19: [("a", 20, 20, ())],
    }
    assert bytes(inbox.take("peer", "a")) == pattern(20)
    assert inbox.deadline() is not None, "the stall timer is still in the queue, and does nothing"
    assert credits(inbox, 100.0) == []
    assert inbox.deadline() is None


def test_chunks_are_copied_into_one_block_that_take_shares() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(1.5)
    inbox.expect("peer", body, 0.0)
    payload = bytearray(chunks[0].view)
    inbox.on_chunk("peer", chunks[0].header, payload, 0.0)
    payload[:] = bytes(CHUNK)
    with pytest.raises(MachineError, match="before it was complete"):
        inbox.take("peer", "a")
    give(inbox, chunks[1], 0.0)
    view = inbox.take("peer", "a")
    assert bytes(view) == pattern(1.5)
    view[0] = 99
    assert inbox.take("peer", "a")[0] == 99


def test_the_transfers_of_one_peer_share_its_window_oldest_first() -> None:
    inbox, (first, chunks), (second, _) = Inbox(PARAMS), offer(7, "a"), offer(10, "b")
    inbox.expect("peer", first, 0.0)
    inbox.expect("peer", second, 0.0)
    inbox.expect("other", second, 0.0)
    assert credits(inbox, 0.0) == [("a", 7, 0, ()), ("b", 1, 0, ()), ("b", 8, 0, ())]
    assert inbox.owed_bytes == 16 * CHUNK
    for chunk in chunks:
        give(inbox, chunk, 0.1)
    assert credits(inbox, 0.1) == [("b", 7, 0, ()), ("a", 7, 7, ())], "the last free chunk is not worth a word"


def test_a_cancelled_transfer_frees_the_window_for_the_next() -> None:
    inbox = Inbox(PARAMS)
    inbox.expect("peer", offer(8, "a")[0], 0.0)
    inbox.expect("peer", offer(8, "b")[0], 0.0)
    assert credits(inbox, 0.0) == [("a", 8, 0, ())]
    assert inbox.cancel("peer", "a")
    assert not inbox.cancel("peer", "a")
    assert inbox.deadline() == 0.0
    assert credits(inbox, 1.0) == [("b", 8, 0, ())]
    assert inbox.reserved_bytes == 8 * CHUNK


def test_a_chunk_larger_than_the_window_goes_alone() -> None:
    inbox, box = Inbox(PARAMS), Outbox()
    body = box.add("a", pattern(40), 16 * CHUNK)
    inbox.expect("peer", body, 0.0)
    for upto, chunk in zip((16, 32, 40), box.broadcast("a"), strict=True):
        assert credits(inbox, 0.0)[0][1] == upto
        outcome = give(inbox, chunk, 0.0)
    assert outcome is Outcome.COMPLETE


def test_a_stall_names_what_is_missing_and_waits_longer_each_time() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(10)
    inbox.expect("peer", body, 0.0)
    inbox.turn(0.0)
    for index in (0, 2, 3, 6):
        give(inbox, chunks[index], 0.5)
    assert credits(inbox, 0.5) == [("a", 10, 4, ())]
    asked = []
    now = 0.5
    while not (turn := inbox.turn(now)).given_up:
        if turn.to_send:
            asked.append((now, turn.to_send[0][1]))
        now = inbox.deadline() or 0.0
    assert [at for at, _ in asked] == [2.5, 6.5, 14.5, 24.5]
    missing = ((1, 1), (4, 2), (7, 3))
    assert {message for _, message in asked} == {
        Credit(transfer="a", upto=10 * CHUNK, received=4 * CHUNK, missing=missing)
    }
    assert now == 30.5, "30 s after the last chunk"
    why = "no progress for 30 s"
    assert turn.given_up == [GivenUp("peer", "a", why)]
    assert turn.to_send == [("peer", Gone(transfer="a", by_sender=False, reason=why))]
    assert (inbox.reserved_bytes, inbox.owed_bytes, inbox.deadline()) == (0, 0, None)
    assert give(inbox, chunks[1], now) is Outcome.UNKNOWN


def test_progress_ends_a_stall() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(4)
    inbox.expect("peer", body, 0.0)
    now = 0.0
    for index, chunk in enumerate(chunks):
        now += 29.0
        turn = inbox.turn(now)
        assert not turn.given_up, index
        outcome = give(inbox, chunk, now)
    assert outcome is Outcome.COMPLETE


def test_a_new_connection_asks_at_once() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(3)
    inbox.expect("peer", body, 0.0)
    inbox.turn(0.0)
    give(inbox, chunks[1], 0.1)
    inbox.resume("stranger", 0.2)
    inbox.resume("peer", 0.2)
    assert credits(inbox, 0.2) == [("a", 3, 1, ((0, 1), (2, 1)))]


def test_a_new_connection_is_met_with_fresh_patience() -> None:
    """After a long silence a peer is asked once in 10 s; over a new connection at once, and again after twice 2 s."""
    inbox, (body, _) = Inbox(PARAMS), offer(1)
    inbox.expect("peer", body, 0.0)
    while (due := inbox.deadline()) is not None and due < 15.0:
        inbox.turn(due)
    inbox.resume("peer", 15.0)
    assert credits(inbox, 15.0) == [("a", 1, 0, ((0, 1),))]
    assert inbox.deadline() == pytest.approx(19.0)


def test_a_transfer_behind_others_of_its_peer_is_not_taken_for_lost() -> None:
    inbox, (first, chunks), (second, _) = Inbox(PARAMS), offer(7, "a"), offer(1, "b")
    inbox.expect("peer", first, 0.0)
    inbox.expect("peer", second, 0.0)
    inbox.turn(0.0)
    for index, chunk in enumerate(chunks):
        give(inbox, chunk, 1.9 * (index + 1))
        assert all(not missing for *_, missing in credits(inbox, 1.9 * (index + 1)))
    assert inbox.counters.asked_again == 0


def test_a_transfer_that_more_than_a_window_has_passed_by_is_lost() -> None:
    inbox, (second, chunks) = Inbox(PARAMS), offer(90, "b")
    inbox.expect("peer", offer(1, "a")[0], 0.0)
    inbox.expect("peer", second, 0.0)
    asked = []
    for index, chunk in enumerate(chunks):
        give(inbox, chunk, index * 0.25)
        asked += [(index, name) for name, *_, missing in credits(inbox, index * 0.25) if missing]
    assert asked[0] == (8, "a"), "2 s and nine chunks after it was granted"
    assert {name for _, name in asked} == {"a"}


def test_a_slow_link_is_not_flooded_with_requests() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(60)
    inbox.expect("peer", body, 0.0)
    now, asked = 0.0, 0
    for chunk in chunks:  # one chunk every 5 s, though a stall is 2 s
        arrival = now + 5.0
        while (due := inbox.deadline()) is not None and due < arrival:
            asked += sum(bool(missing) for *_, missing in credits(inbox, due))
        now = arrival
        give(inbox, chunk, now)
    assert inbox.counters.chunks[Outcome.COMPLETE] == 1
    assert asked <= 2


def test_duplicates_put_off_asking_but_not_giving_up() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(2)
    inbox.expect("peer", body, 0.0)
    inbox.turn(0.0)
    give(inbox, chunks[0], 0.0)
    now = 0.0
    while not (turn := inbox.turn(now)).given_up:
        assert not turn.to_send
        now += 1.0
        assert give(inbox, chunks[0], now) is Outcome.DUPLICATE
    assert now == 31.0, "30 s after the first of them"
    assert inbox.counters.chunks[Outcome.DUPLICATE] == 31


def test_a_corrupt_chunk_changes_nothing_and_is_asked_for_again() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(2.5)
    inbox.expect("peer", body, 0.0)
    inbox.turn(0.0)
    give(inbox, chunks[0], 0.0)
    good = chunks[1]
    wrong = [
        (good.header, bytes(CHUNK)),
        (good.header, good.view[:-1]),
        (good.header, bytes(good.view) + b"x"),
        (good.header, b""),
        (Chunk(transfer="a", index=1, checksum=good.checksum ^ 1), good.view),
        (Chunk(transfer="a", index=2, checksum=good.checksum), good.view),
    ]
    for header, payload in wrong:
        assert inbox.on_chunk("peer", header, payload, 0.1) is Outcome.CORRUPT
        assert credits(inbox, 0.1) == [("a", 2.5, 1, ((header.index, 1),))]
    beyond = Chunk(transfer="a", index=3, checksum=good.checksum)
    assert inbox.on_chunk("peer", beyond, good.view, 0.1) is Outcome.CORRUPT
    assert credits(inbox, 0.1) == []
    assert inbox.counters.chunks[Outcome.CORRUPT] == 7
    give(inbox, chunks[1], 0.2)
    assert give(inbox, chunks[2], 0.2) is Outcome.COMPLETE
    assert bytes(inbox.take("peer", "a")) == pattern(2.5)


def test_endless_corrupt_chunks_end_in_giving_up() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(2)
    inbox.expect("peer", body, 0.0)
    now = 0.0
    while not inbox.turn(now).given_up:
        now += 0.5
        inbox.on_chunk("peer", chunks[0].header, bytes(CHUNK), now)
    assert now == 30.0


def test_a_wrong_digest_ends_the_transfer() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(2)
    lying = Body(transfer="a", nbytes=body.nbytes, chunk_bytes=CHUNK, digest=body.digest ^ 1)
    inbox.expect("peer", lying, 0.0)
    inbox.turn(0.0)
    assert give(inbox, chunks[0], 0.0) is Outcome.ACCEPTED
    assert give(inbox, chunks[1], 0.0) is Outcome.CORRUPT
    turn = inbox.turn(0.0)
    assert [each.transfer for each in turn.given_up] == ["a"]
    assert "digest" in turn.given_up[0].why
    assert isinstance(turn.to_send[0][1], Gone)
    assert inbox.reserved_bytes == 0


def test_the_budget_counts_from_expect_to_release() -> None:
    inbox = Inbox(PARAMS)
    bodies = [offer(40, name) for name in "abc"]
    assert inbox.expect("p", bodies[0][0], 0.0) is Expected.WAITING
    assert inbox.expect("q", bodies[1][0], 0.0) is Expected.WAITING
    assert inbox.expect("r", bodies[2][0], 0.0) is Expected.FULL
    assert inbox.room_bytes == 20 * CHUNK
    for chunk in bodies[0][1]:
        give(inbox, chunk, 0.0, "p")
    assert inbox.expect("r", bodies[2][0], 0.0) is Expected.FULL
    assert not inbox.release("q", "b"), "not complete"
    assert inbox.release("p", "a")
    assert not inbox.release("p", "a")
    assert inbox.expect("r", bodies[2][0], 0.0) is Expected.WAITING
    assert inbox.cancel_peer("q") == ["b"]
    assert inbox.cancel_peer("nobody") == []
    assert inbox.reserved_bytes == 40 * CHUNK
    huge = Body(transfer="x", nbytes=2**53, chunk_bytes=2**20, digest=0)
    assert inbox.expect("p", huge, 0.0) is Expected.FULL


def test_a_departed_peer_leaves_its_complete_bodies() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(1)
    inbox.expect("peer", body, 0.0)
    inbox.expect("peer", offer(2, "b")[0], 0.0)
    inbox.expect("peer", offer(2, "c")[0], 0.0, passive=True)
    give(inbox, chunks[0], 0.0)
    assert inbox.cancel_peer("peer") == ["b", "c"]
    assert bytes(inbox.take("peer", "a")) == pattern(1)
    assert inbox.turn(0.0).to_send == [("peer", Credit(transfer="a", upto=CHUNK, received=CHUNK))]


def test_expecting_twice_is_harmless_but_not_with_another_body() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(2)
    inbox.expect("peer", body, 0.0)
    give(inbox, chunks[0], 0.0)
    assert inbox.expect("peer", body, 0.0) is Expected.WAITING
    with pytest.raises(MalformedFrame, match="announced twice"):
        inbox.expect("peer", make_body("a", b"other", CHUNK), 0.0)
    give(inbox, chunks[1], 0.0)
    inbox.turn(0.0)
    assert give(inbox, chunks[1], 0.0) is Outcome.DUPLICATE
    assert inbox.expect("peer", body, 0.0) is Expected.COMPLETE
    assert credits(inbox, 0.0) == [("a", 2, 2, ())], "the sender may have missed it"
    assert inbox.reserved_bytes == 2 * CHUNK


def test_an_empty_body_is_complete_at_once() -> None:
    inbox = Inbox(PARAMS)
    assert inbox.expect("peer", make_body("a", b"", CHUNK), 0.0) is Expected.COMPLETE
    assert inbox.take("peer", "a").nbytes == 0
    assert credits(inbox, 0.0) == [("a", 0, 0, ())]
    assert inbox.release("peer", "a")
    with pytest.raises(MalformedFrame, match="wrong digest"):
        inbox.expect("peer", Body(transfer="a", nbytes=0, chunk_bytes=CHUNK, digest=1), 0.0)


def test_bookkeeping_cannot_be_made_large(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(PARAMS)
    with pytest.raises(MalformedFrame, match="chunks of 1 bytes; allowed is 1024"):
        inbox.expect("peer", Body(transfer="a", nbytes=2, chunk_bytes=1, digest=0), 0.0)
    monkeypatch.setattr(inbox_file, "MAX_TRANSFERS", 3)
    for name in "abc":
        inbox.expect("peer", make_body(name, b"", CHUNK), 0.0)
    with pytest.raises(MalformedFrame, match="3 transfers under way"):
        inbox.expect("peer", make_body("d", b"", CHUNK), 0.0)
    assert inbox.expect("other", make_body("d", b"", CHUNK), 0.0) is Expected.COMPLETE
    inbox.release("peer", "a")
    assert inbox.expect("peer", make_body("d", b"", CHUNK), 0.0) is Expected.COMPLETE


def test_a_sender_without_the_bytes_ends_the_transfer_and_strangers_end_nothing() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(1)
    inbox.expect("peer", body, 0.0)
    gone = Gone(transfer="a", by_sender=True, reason="dropped")
    assert not inbox.on_gone("stranger", gone)
    assert give(inbox, chunks[0], 0.0, "stranger") is Outcome.UNKNOWN
    assert inbox.on_gone("peer", gone)
    assert not inbox.on_gone("peer", gone)
    assert inbox.reserved_bytes == 0
    assert inbox.turn(0.0).to_send == []


def test_a_broadcast_without_loss_needs_no_word() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(20)
    inbox.expect("syncer", body, 0.0, passive=True)
    for chunk in chunks:
        outcome = give(inbox, chunk, 1.0, "syncer")
        assert inbox.turn(1.0).to_send == []
    assert outcome is Outcome.COMPLETE
    assert bytes(inbox.take("syncer", "a")) == pattern(20)


def test_a_hole_in_a_broadcast_is_asked_for_when_its_last_chunk_is_here() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(20)
    inbox.expect("syncer", body, 0.0, passive=True)
    for index in (*range(3), 5, *range(8, 20)):
        give(inbox, chunks[index], 0.1, "syncer")
    assert credits(inbox, 0.1) == [("a", 0, 16, ((3, 2), (6, 2)))]
    for index in (3, 4, 6):
        give(inbox, chunks[index], 0.2, "syncer")
    assert credits(inbox, 0.2) == []
    assert credits(inbox, 2.3) == [("a", 0, 19, ((7, 1),))]
    assert give(inbox, chunks[7], 2.4, "syncer") is Outcome.COMPLETE
    assert credits(inbox, 2.4) == [("a", 0, 20, ())]


def test_a_broadcast_that_stops_is_fetched_a_window_at_a_time() -> None:
    inbox, (body, chunks) = Inbox(PARAMS), offer(20)
    inbox.expect("syncer", body, 0.0, passive=True)
    give(inbox, chunks[1], 0.0, "syncer")
    assert credits(inbox, 1.9) == []
    assert inbox.deadline() == 2.0
    assert credits(inbox, 2.0) == [("a", 0, 1, ((0, 1), (2, 7)))]
    for index in (0, 2):
        give(inbox, chunks[index], 2.1, "syncer")
    assert credits(inbox, 2.1) == [("a", 0, 3, ((9, 2),))], "each repair request names new chunks only"


def test_a_broadcast_behind_another_is_not_lost_until_a_later_one_is_here() -> None:
    inbox, (first, chunks), (second, _), (third, later) = Inbox(PARAMS), offer(6, "a"), offer(2, "b"), offer(3, "c")
    for body in (first, second, third):
        inbox.expect("syncer", body, 0.0, passive=True)
    for index, chunk in enumerate(chunks):
        give(inbox, chunk, index * 1.0, "syncer")
        assert credits(inbox, index * 1.0) == []
    give(inbox, later[0], 5.5, "syncer")
    assert credits(inbox, 5.5) == [("b", 0, 0, ((0, 2),))]
