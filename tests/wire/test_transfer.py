"""The arithmetic of chunks, and what a Body says of its payload."""

import pytest
import xxhash

from zdiloco.errors import MachineError
from zdiloco.wire.frames import MAX_CHUNK
from zdiloco.wire.transfer import MIN_CHUNK, checksums_of, chunk_count, make_body


@pytest.mark.parametrize(
    ("nbytes", "count"),
    [(0, 0), (1, 1), (1023, 1), (1024, 1), (1025, 2), (2048, 2), (2049, 3)],
)
def test_a_body_has_as_many_chunks_as_it_needs(nbytes: int, count: int) -> None:
    assert chunk_count(nbytes, 1024) == count
    assert len(checksums_of(bytes(nbytes), 1024)) == count


def test_the_digest_is_taken_over_the_chunk_checksums() -> None:
    payload = bytes(range(256)) * 10
    parts = [payload[:1024], payload[1024:2048], payload[2048:]]
    sums = b"".join(xxhash.xxh3_64_intdigest(part).to_bytes(8, "little") for part in parts)
    body = make_body("a", payload, 1024)
    assert (body.transfer, body.nbytes, body.chunk_bytes) == ("a", 2560, 1024)
    assert body.digest == xxhash.xxh3_64_intdigest(sums)
    assert make_body("a", payload, 2048).digest != body.digest
    assert make_body("a", b"", 1024).digest == xxhash.xxh3_64_intdigest(b"")
    assert make_body("a", memoryview(bytearray(payload)), 1024) == body


def test_the_digest_is_fixed() -> None:
    assert make_body("a", bytes(range(256)) * 10, 1024).digest == 13026484353522904569


@pytest.mark.parametrize("chunk_bytes", [-1, 0, MIN_CHUNK - 1, MAX_CHUNK + 1])
def test_a_chunk_size_out_of_bounds_is_our_mistake(chunk_bytes: int) -> None:
    with pytest.raises(MachineError, match="allowed is 1024 to 8388608"):
        make_body("a", b"payload", chunk_bytes)
