"""Payloads that lie in several places: read like one, and copied nowhere but over a seam."""

import random

from zdiloco.wire.joined import Joined, joined
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import make_body


def test_every_piece_is_that_of_the_bytes_in_one_place() -> None:
    rng = random.Random(1)
    for _ in range(300):
        parts = [rng.randbytes(rng.choice((0, 0, 1, 7, 30))) for _ in range(rng.randrange(5))]
        whole, apart = b"".join(parts), Joined(*parts)
        assert apart.nbytes == len(whole)
        start = rng.randrange(len(whole) + 2)
        stop = start + rng.randrange(20)
        assert apart.piece(start, stop) == whole[start:stop], (parts, start, stop)
        assert apart.piece(start, stop).readonly


def test_only_a_piece_over_a_seam_is_a_copy() -> None:
    value = bytearray(b"abcdef")
    apart = Joined(value, b"gh")
    first, seam, last = apart.piece(0, 4), apart.piece(4, 7), apart.piece(7, 9)
    value[:] = b"ABCDEF"  # only a test may do that
    assert (bytes(first), bytes(seam), bytes(last)) == (b"ABCD", b"efg", b"h")
    assert joined(apart) is apart


def test_it_travels_like_bytes_in_one_place() -> None:
    value, record = bytes(range(256)) * 9, b"record" * 100
    outbox = Outbox()
    body = outbox.add("t", Joined(value, record), 1024)
    assert body == make_body("t", value + record, 1024)
    assert b"".join(chunk.view for chunk in outbox.broadcast("t")) == value + record
    assert outbox.held_bytes == body.nbytes
