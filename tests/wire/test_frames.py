"""Headers from a hostile peer: every bound holds, and nothing but MalformedFrame comes out."""

import random
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.errors import MachineError, MalformedFrame
from zdiloco.wire import frames
from zdiloco.wire.frames import MAX_CHUNK, MAX_HEADER, pack_header, split_parts, unpack_header

NAN = b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"
INFINITY = b"\xca\x7f\x80\x00\x00"

HOSTILE = {
    "empty": (b"", "does not parse"),
    "cut off": (pack_header({"v": 1, "t": "report"})[:-2], "does not parse"),
    "bytes left over": (pack_header({"v": 1}) + b"\x00", "extra data"),
    "huge array": (b"\x81\xa1a\xdd\xff\xff\xff\xff", "max_array_len"),
    "array over the bound": (b"\x81\xa1a\xdc\x02\x01" + bytes(513), "max_array_len"),
    "huge map": (b"\xdf\xff\xff\xff\xff", "max_map_len"),
    "huge text": (b"\x81\xa1a\xdb\xff\xff\xff\xff", "incomplete input"),
    "text over the bound": (b"\x81\xa1a\xda\x08\x01" + b"x" * 2049, "max_str_len"),
    "bytes": (b"\x81\xa1a\xc4\x01x", "max_bin_len"),
    "empty bytes": (b"\x81\xa1a\xc4\x00", "value of type bytes"),
    "extension": (b"\x81\xa1a\xd4\x05x", "max_ext_len"),
    "empty extension": (b"\x81\xa1a\xc7\x00\x05", "extension type 5"),
    "timestamp": (b"\x81\xa1a\xd6\xff\x00\x00\x00\x01", "max_ext_len"),
    "repeated key": (b"\x82\xa1a\x01\xa1a\x02", "'a' stands there twice"),
    "repeated key inside": (b"\x81\xa1b\x82\xa1a\x01\xa1a\x02", "'a' stands there twice"),
    "number as key": (b"\x81\x01\x02", "does not parse"),
    "bytes as key": (b"\x81\xc4\x00\x02", "a key is a bytes"),
    "no text": (b"\x81\xa1a\xa1\xff", "utf-8"),
    "reserved byte": (b"\xc1", "does not parse"),
    "no map": (b"\x93\x01\x02\x03", "is a list, not a map"),
    "a number": (b"\x01", "is a int, not a map"),
    "not a number": (b"\x81\xa1a" + NAN, "the number nan"),
    "not a number inside": (b"\x81\xa1a\x91" + NAN, "the number nan"),
    "infinite": (b"\x81\xa1a" + INFINITY, "the number inf"),
    "five deep": (b"\x81\xa1a\x91\x91\x91\x91\x01", "nested more than 4 deep"),
    "900 deep": (b"\x81\xa1a" + b"\x91" * 900 + b"\x01", "nested more than 4 deep"),
    "10,000 deep": (b"\x81\xa1a" + b"\x91" * 10_000 + b"\x01", "does not parse"),
    "pickle": (b"\x80\x04\x95\x15\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.", "extra data"),
    "too long": (bytes(MAX_HEADER + 1), "has 16385 bytes; allowed is 16384"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_with_the_reason(name: str) -> None:
    data, reason = HOSTILE[name]
    with pytest.raises(MalformedFrame, match=reason):
        unpack_header(data)


def test_random_bytes_never_raise_anything_else() -> None:
    rng = random.Random(1)
    good = pack_header({"v": 1, "t": "beat", "epoch": [1, 2], "list": [[1, 2], [3, 4]], "x": 0.5, "s": "text"})
    refused = 0
    for _ in range(10_000):
        if rng.random() < 0.5:
            data = rng.randbytes(rng.randrange(64))
        else:
            changed = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            data = bytes(changed[: rng.randrange(len(changed) + 1)])
        try:
            unpack_header(data)
        except MalformedFrame:
            refused += 1
    assert refused > 8_000


values = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
small = values | st.text(max_size=20) | st.lists(values, max_size=5)
small = small | st.dictionaries(st.text(max_size=5), small, max_size=3)


@given(st.dictionaries(st.text(max_size=10), small, max_size=8))
def test_what_is_packed_comes_back(header: dict[str, object]) -> None:
    assert unpack_header(pack_header(header)) == header
    assert unpack_header(memoryview(pack_header(header))) == header


def test_no_header_grows_much_in_memory() -> None:
    nested = b"\xdc\x02\x00" * ((MAX_HEADER - 4) // 3)  # each level declares 512 elements
    maps = b"\x81\xa1a\x9f" + b"\xdc\x02\x00" * 15 + b"\x80" * (MAX_HEADER - 50)
    for data in (b"\x81\xa1a" + nested[: MAX_HEADER - 3], maps):
        tracemalloc.start()
        with pytest.raises(MalformedFrame):
            unpack_header(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * 2**20


def test_a_header_of_ours_that_is_too_large_is_our_mistake() -> None:
    assert len(pack_header({"a": ["x" * 1000] * 16})) < MAX_HEADER
    with pytest.raises(MachineError, match="send it as a body"):
        pack_header({"a": ["x" * 1000] * 17})
    for value in (object(), 2**64, "\ud800"):
        with pytest.raises(MachineError, match="cannot be packed"):
            pack_header({"a": value})


def test_parts_are_views_and_their_number_and_sizes_are_checked() -> None:
    payload = bytearray(10)
    header, view = split_parts([b"head", payload])
    assert bytes(header) == b"head"
    assert view is not None
    payload[0] = 7
    assert view[0] == 7
    assert split_parts([b"head"])[1] is None
    for parts in ([], [b"", b"", b""]):
        with pytest.raises(MalformedFrame, match="frames"):
            split_parts(parts)
    with pytest.raises(MalformedFrame, match="header has"):
        split_parts([bytes(MAX_HEADER + 1)])
    with pytest.raises(MalformedFrame, match="payload has"):
        split_parts([b"", bytes(MAX_CHUNK + 1)])
    assert frames.MAX_FRAME > MAX_CHUNK


def test_what_a_peer_says_is_printed_on_one_safe_line() -> None:
    assert frames.shown("a\x1b[31m\nb" + "c" * 500, 8) == "a?[31m?b"
    with pytest.raises(MalformedFrame) as caught:
        unpack_header(msgpack.packb({"a\n\x1b": 1})[:-1] + b"\x91" * 3)
    assert "\n" not in str(caught.value)
