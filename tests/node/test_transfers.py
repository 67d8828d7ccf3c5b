"""Both ends of transfers without a network: names are unique, and what waits for room is bounded."""

from typing import Any

import pytest

from zdiloco.core.messages import Body
from zdiloco.node import transfers as transfers_module
from zdiloco.node.counts import Counts
from zdiloco.node.transfers import Transfers
from zdiloco.units import MemberKey
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Chunk, Credit

KEY = MemberKey("a", 7)
BUDGET = 4096


class Bench:
    """Transfers whose roads write down what is sent; `ended` names what arrived and what was lost."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.crowded = False
        self.counts = Counts()
        self.arrived: list[str] = []
        self.lost: list[tuple[str, str]] = []
        self.transfers = Transfers(
            self,
            InboxParams(budget_bytes=BUDGET, window_bytes=4096, stall_s=1.0, give_up_s=10.0),
            lambda key, transfer, now: self.arrived.append(transfer),
            lambda key, transfer, reason, now: self.lost.append((transfer, reason)),
            keeps_early=False,
        )

    def of(self, key: MemberKey) -> Counts:
        return self.counts

    def offends(self, key: MemberKey, why: str) -> None:
        self.counts.malformed[why] += 1

    def is_crowded(self, key: MemberKey) -> bool:
        return self.crowded

    def send_chunks(self, key: MemberKey, chunks: list[Any]) -> None:
        self.sent += chunks

    def send(self, key: MemberKey, message: Any) -> None:
        self.sent.append(message)

    def offer(self, name: str, payload: bytes) -> Body:
        """Announce a body."""
        self.outbox = Outbox()
        body = self.outbox.add(name, payload, 1024)
        self.transfers.expect(KEY, body, 0.0)
        return body

    def push(self, name: str) -> None:
        """Send all of the body that was announced last."""
        chunks = self.outbox.on_credit(KEY, Credit(transfer=name, upto=BUDGET, received=0))
        assert isinstance(chunks, list)
        for chunk in chunks:
            header = Chunk(transfer=name, index=chunk.index, checksum=chunk.checksum)
            self.transfers.on_chunk(KEY, header, chunk.view, 0.0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_name_in_use_is_refused_though_others_wait_for_room(bench: Bench) -> None:
    """Else the second body of the name would wait, and be let in when nobody knows of it any more."""
    bench.offer("x", bytes(3000))
    bench.push("x")
    assert bench.arrived == ["x"]
    bench.offer("y", bytes(4000))  # must wait
    bench.offer("x", bytes(2000))
    assert [name for name, _ in bench.lost] == ["x"]
    assert "announced twice" in bench.lost[0][1]
    assert bench.counts.malformed["body"] == 1
    bench.transfers.release(KEY, "x", 0.0)
    assert bench.transfers.inbox.reserved_bytes == 4000, "now there is room for the one that waited"
    bench.push("x")
    assert bench.arrived == ["x"], "nothing comes of what was refused"


def test_what_is_withdrawn_while_it_waits_never_comes(bench: Bench) -> None:
    bench.offer("x", bytes(3000))
    bench.push("x")
    bench.offer("y", bytes(2000))
    bench.offer("y", bytes(2000))  # repeated: it waits once
    bench.transfers.release(KEY, "y", 0.0)
    bench.transfers.release(KEY, "x", 0.0)
    assert bench.transfers.inbox.reserved_bytes == 0
    bench.push("y")
    assert bench.arrived == ["x"]


def test_a_crowd_that_waits_for_room_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers_module, "MOST_WAITING", 10)
    bench.offer("full", bytes(BUDGET))
    for number in range(100):
        bench.offer(f"t/{number}", bytes(100))
    assert len(bench.lost) == 90
    assert "10 bodies wait" in bench.lost[0][1]
    bench.transfers.inbox.cancel(KEY, "full")
    bench.transfers.release(KEY, "full", 0.0)
    assert bench.transfers.inbox.reserved_bytes == 1000


def test_a_body_beyond_the_whole_budget_is_lost_at_once(bench: Bench) -> None:
    """User case E-85: a header that claims 2^53 bytes, the most that a header can, allocates nothing."""
    bench.transfers.expect(KEY, Body(transfer="x", nbytes=2**53, chunk_bytes=2**20, digest=1), 0.0)
    assert [name for name, _ in bench.lost] == ["x"]
    assert bench.transfers.inbox.reserved_bytes == 0


def test_a_peer_for_whom_very_much_waits_is_given_no_more(bench: Bench) -> None:
    bench.transfers.outbox.add("u/1", bytes(3000), 1024)
    credit = Credit(transfer="u/1", upto=3000, received=0)
    assert bench.transfers.on_message(KEY, credit, 0.0)
    assert len(bench.sent) == 3
    bench.crowded = True
    assert bench.transfers.on_message(KEY, credit, 0.0)
    assert (len(bench.sent), bench.counts.dropped) == (3, 1)
    bench.crowded = False
    again = Credit(transfer="u/1", upto=3000, received=0, missing=((0, 1),))
    assert bench.transfers.on_message(KEY, again, 0.0)
    assert len(bench.sent) == 4
