"""One body while it arrives: where its chunks go, and what is missing of it."""

import itertools
import random

import pytest

from zdiloco.core.messages import Body
from zdiloco.errors import MalformedFrame
from zdiloco.wire.assembly import Assembly, Outcome
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import MAX_RANGES

CHUNK = 1024


def test_in_any_order_the_bytes_come_out_as_they_went_in() -> None:
    rng = random.Random(1)
    payload, box = rng.randbytes(20 * CHUNK + 5), Outbox()
    assembly = Assembly(box.add("a", payload, CHUNK))
    chunks = box.broadcast("a")
    rng.shuffle(chunks)
    for number, chunk in enumerate(chunks, 1):
        assert not assembly.complete
        assert assembly.put(chunk.header, chunk.view) is (Outcome.ACCEPTED if number < 21 else Outcome.COMPLETE)
        assert assembly.put(chunk.header, chunk.view) is Outcome.DUPLICATE
        assert assembly.received_bytes == sum(each.view.nbytes for each in chunks[:number])
    assert assembly.complete
    assert assembly.digest_is_right
    assert bytes(assembly.data) == payload


def test_what_is_missing_is_named_in_ranges_as_a_plain_count_would() -> None:
    rng, payload = random.Random(2), bytes(300 * CHUNK)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        box = Outbox()
        assembly = Assembly(box.add("a", payload, CHUNK))
        have = {chunk.index for chunk in box.broadcast("a") if rng.random() < share}
        for chunk in box.broadcast("a"):
            if chunk.index in have:
                assembly.put(chunk.header, chunk.view)
        for start, end in ((0, 300), (7, 100), (50, 50)):
            ranges = assembly.missing(start, end)
            named = [index for first, count in ranges for index in range(first, first + count)]
            expected = [index for index in range(start, end) if index not in have]
            assert named == expected[: len(named)]
            assert len(ranges) <= MAX_RANGES
            assert len(named) == len(expected) or len(ranges) == MAX_RANGES
            assert all(first + count < after for (first, count), (after, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize(("nbytes", "chunk_bytes"), [(2, 1), (1025, 1023)])
def test_tiny_chunks_are_refused(nbytes: int, chunk_bytes: int) -> None:
    with pytest.raises(MalformedFrame, match=f"chunks of {chunk_bytes} bytes; allowed is 1024 to 8388608"):
        Assembly(Body(transfer="a", nbytes=nbytes, chunk_bytes=chunk_bytes, digest=0))


def test_a_single_small_chunk_is_fine() -> None:
    assert Assembly(Body(transfer="a", nbytes=7, chunk_bytes=7, digest=0)).count == 1
