"""The sending end: views of the payload, and each chunk once unless it is named as missing."""

import pytest

from zdiloco.errors import MachineError
from zdiloco.wire.outbox import MOST_PEERS, ChunkOut, Outbox
from zdiloco.wire.transfer import Credit, Gone, make_body

CHUNK = 1024
PAYLOAD = bytes(range(256)) * 38  # 9,728 bytes: 9 whole chunks and half a one


@pytest.fixture
def outbox() -> Outbox:
    box = Outbox()
    box.add("a", PAYLOAD, CHUNK)
    return box


def credit(chunks: float, *missing: tuple[int, int], received: float = 0) -> Credit:
    return Credit(transfer="a", upto=int(chunks * CHUNK), received=int(received * CHUNK), missing=missing)


def sent(answer: list[ChunkOut] | Gone) -> list[int]:
    assert isinstance(answer, list)
    return [chunk.index for chunk in answer]


def test_chunks_share_memory_with_the_payload() -> None:
    payload, box = bytearray(PAYLOAD), Outbox()
    assert box.add("a", payload, CHUNK) == make_body("a", PAYLOAD, CHUNK)
    chunks = box.on_credit("peer", credit(10))
    assert isinstance(chunks, list)
    assert b"".join(chunk.view for chunk in chunks) == PAYLOAD
    payload[1024] = 77  # only a test may do that
    assert chunks[1].view[0] == 77
    assert chunks[1].view.readonly
    assert chunks[9].view.nbytes == 512
    assert chunks[1].header.index == 1
    assert chunks[1].header.transfer == "a"
    assert box.held_bytes == len(PAYLOAD)


def test_credit_is_used_in_order_and_once(outbox: Outbox) -> None:
    assert sent(outbox.on_credit("peer", credit(2.5))) == [0, 1]
    assert sent(outbox.on_credit("peer", credit(2.5))) == []
    assert sent(outbox.on_credit("peer", credit(1))) == []
    assert sent(outbox.on_credit("peer", credit(4, received=2))) == [2, 3]
    assert sent(outbox.on_credit("other", credit(3))) == [0, 1, 2]
    assert sent(outbox.on_credit("peer", credit(9.5, received=4))) == [4, 5, 6, 7, 8, 9]
    assert sent(outbox.on_credit("peer", credit(9.5, received=9.5))) == []
    assert outbox.counters.handed_out_bytes == len(PAYLOAD) + 3 * CHUNK
    assert outbox.counters.resent_bytes == 0


def test_missing_chunks_are_sent_again_and_counted(outbox: Outbox) -> None:
    outbox.on_credit("peer", credit(4))
    assert sent(outbox.on_credit("peer", credit(4, (1, 2), received=2))) == [1, 2]
    assert outbox.counters.resent_bytes == 2 * CHUNK
    assert sent(outbox.on_credit("peer", credit(6, (3, 2), received=3))) == [3, 4, 5], "a lost credit is made good"
    assert outbox.counters.resent_bytes == 3 * CHUNK
    assert sent(outbox.on_credit("peer", credit(6, (9, 2**40), received=4))) == [9], "ranges end with the body"


def test_a_peer_that_resumes_gets_only_what_it_names(outbox: Outbox) -> None:
    assert sent(outbox.on_credit("peer", credit(8, (2, 1), (6, 2), received=5))) == [2, 6, 7]
    assert sent(outbox.on_credit("peer", credit(10, received=8))) == [8, 9]
    assert outbox.counters.resent_bytes == 0
    outbox.forget_peer("peer")
    assert sent(outbox.on_credit("peer", credit(2))) == [0, 1]


def test_a_peer_that_has_begun_elsewhere_is_sent_what_is_behind(outbox: Outbox) -> None:
    """What it has may have holes: those it names once nothing more comes."""
    assert sent(outbox.on_credit("peer", credit(8, received=5))) == [5, 6, 7]
    assert sent(outbox.on_credit("peer", credit(8, (3, 1), received=7))) == [3]
    assert sent(outbox.on_credit("ahead", credit(4, received=6))) == [], "chunks that were granted and overtaken"
    assert sent(outbox.on_credit("ahead", credit(8, received=6.5))) == [6, 7]


def test_a_completed_transfer_stays_silent_whatever_comes_late(outbox: Outbox) -> None:
    assert sent(outbox.on_credit("peer", credit(9.5, received=9.5))) == []
    assert sent(outbox.on_credit("peer", credit(4))) == []


def test_a_broadcast_hands_out_all_and_repair_only_what_was_lost(outbox: Outbox) -> None:
    chunks = outbox.broadcast("a")
    assert [(chunk.peer, chunk.index) for chunk in chunks] == [(None, index) for index in range(10)]
    assert sent(outbox.on_credit("peer", credit(0, (4, 1), (9, 1), received=8))) == [4, 9]
    assert sent(outbox.on_credit("peer", credit(0, (9, 1), received=9))) == [9]
    assert outbox.counters.handed_out_bytes == len(PAYLOAD) + CHUNK + 512 + 512
    assert outbox.counters.resent_bytes == CHUNK + 512 + 512
    with pytest.raises(MachineError, match="not held"):
        outbox.broadcast("b")


def test_what_is_not_held_is_gone(outbox: Outbox) -> None:
    view = outbox.broadcast("a")[0].view
    assert "a" in outbox
    assert outbox.drop("a")
    assert not outbox.drop("a")
    assert bytes(view) == PAYLOAD[:CHUNK], "a view handed out stays valid"
    answer = outbox.on_credit("peer", credit(1))
    assert answer == Gone(transfer="a", by_sender=True, reason="the sender holds no such transfer")
    assert outbox.counters.gone == 1


def test_a_receiver_that_gives_up_may_begin_again(outbox: Outbox) -> None:
    outbox.on_credit("peer", credit(4))
    outbox.on_gone("peer", Gone(transfer="a", by_sender=False, reason="no progress"))
    outbox.on_gone("peer", Gone(transfer="unknown", by_sender=False, reason="no progress"))
    assert sent(outbox.on_credit("peer", credit(2))) == [0, 1]


def test_of_ever_new_peers_the_first_are_forgotten(outbox: Outbox) -> None:
    for number in range(MOST_PEERS):
        outbox.on_credit(number, credit(2))
    assert sent(outbox.on_credit(0, credit(3))) == [2], "as many as that are known"
    outbox.on_credit("one more", credit(9.5, received=9.5))
    assert sent(outbox.on_credit(1, credit(3))) == [2]
    assert sent(outbox.on_credit(0, credit(3))) == [0, 1, 2]


def test_an_empty_payload_has_no_chunks() -> None:
    box = Outbox()
    assert box.add("a", b"", CHUNK).nbytes == 0
    assert sent(box.on_credit("peer", credit(0))) == []
    assert box.broadcast("a") == []


def test_a_name_is_used_once_and_chunk_sizes_are_bounded(outbox: Outbox) -> None:
    with pytest.raises(MachineError, match="already held"):
        outbox.add("a", b"", CHUNK)
    for chunk_bytes in (0, 2**24):
        with pytest.raises(MachineError, match="allowed is"):
            outbox.add("b", b"x", chunk_bytes)
    assert "b" not in outbox
