"""Records and maps: round trips, bounds given by the caller, and bounded growth in memory."""

import random
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.core.bounds import MAX_COUNT
from zdiloco.errors import MachineError, MalformedFrame
from zdiloco.units import Merged
from zdiloco.wire.bodies import decode_map, decode_record, encode_map, encode_record, join_update, split_update

MIB = 2**20
ROW = Merged("us-east-0", 2**64 - 1, 7, 24, 98_304)

counts = st.integers(0, MAX_COUNT)
rows = st.builds(Merged, st.text(min_size=1, max_size=64), st.integers(1, 2**64 - 1), st.integers(1, MAX_COUNT), counts,
                 counts)  # fmt: skip
records = st.lists(rows, max_size=20, unique_by=lambda row: row.key).map(tuple)


@given(records)
def test_a_record_comes_back(record: tuple[Merged, ...]) -> None:
    assert decode_record(encode_record(record), MIB) == record


def test_the_bytes_of_a_record_are_fixed() -> None:
    assert encode_record([ROW]).hex() == "9195a975732d656173742d30cfffffffffffffffff0718ce00018000"
    assert encode_record([]).hex() == "90"


WRONG_RECORDS = {
    "cut off": encode_record([ROW])[:-1],
    "left over": encode_record([ROW]) + b"\x00",
    "empty": b"",
    "huge": b"\xdd\xff\xff\xff\xff",
    "no rows": b"\x91\x01",
    "short row": msgpack.packb([["a", 1, 1, 1]]),
    "long row": msgpack.packb([["a", 1, 1, 1, 1, 1]]),
    "text as number": msgpack.packb([["a", 1, "1", 1, 1]]),
    "float": msgpack.packb([["a", 1, 1, 1, 1.0]]),
    "truth value": msgpack.packb([["a", 1, 1, 1, True]]),
    "no name": msgpack.packb([["", 1, 1, 1, 1]]),
    "long name": msgpack.packb([["a" * 65, 1, 1, 1, 1]]),
    "no text": b"\x91\x95\xa1\xff\x01\x01\x01\x01",
    "no incarnation": msgpack.packb([["a", 0, 1, 1, 1]]),
    "no seq": msgpack.packb([["a", 1, 0, 1, 1]]),
    "negative": msgpack.packb([["a", 1, 1, -1, 1]]),
    "too many tokens": msgpack.packb([["a", 1, 1, 1, 2**53 + 1]]),
    "twice": msgpack.packb([["a", 1, 1, 1, 1], ["a", 1, 2, 1, 1]]),
    "pickle": b"\x80\x04K\x01.",
}


@pytest.mark.parametrize("name", WRONG_RECORDS)
def test_a_wrong_record_is_refused(name: str) -> None:
    with pytest.raises(MalformedFrame, match="record"):
        decode_record(WRONG_RECORDS[name], MIB)


def test_a_record_has_the_callers_bound_and_ours_must_be_right() -> None:
    data = encode_record([ROW])
    assert decode_record(data, len(data)) == (ROW,)
    with pytest.raises(MalformedFrame, match=f"has {len(data)} bytes; allowed is {len(data) - 1}"):
        decode_record(data, len(data) - 1)
    with pytest.raises(MachineError, match="out of range"):
        encode_record([ROW._replace(seq=0)])
    with pytest.raises(MachineError, match="two rows of one process"):
        encode_record([ROW, ROW])


def test_an_update_is_split_without_copying_its_value() -> None:
    body = bytearray(join_update(b"value", [ROW]))
    value, record = split_update(body, 5, MIB)
    assert record == (ROW,)
    body[0] = ord("V")
    assert bytes(value) == b"Value"
    assert split_update(join_update(b"", []), 0, 1) == (b"", ())
    for value_bytes in (-1, len(body) + 1):
        with pytest.raises(MalformedFrame, match="announced in a body"):
            split_update(body, value_bytes, MIB)
    with pytest.raises(MalformedFrame, match="record"):
        split_update(body, 4, MIB)
    with pytest.raises(MalformedFrame, match="allowed is 3"):
        split_update(body, 5, 3)


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8)
leaves = leaves | st.floats(allow_nan=False, allow_infinity=False)
trees = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
                     max_leaves=10)  # fmt: skip


@given(st.dictionaries(st.text(max_size=8), trees, max_size=4))
def test_a_map_comes_back(value: dict[str, object]) -> None:
    assert decode_map(encode_map(value), MIB) == value


def test_the_bytes_of_a_map_are_fixed() -> None:
    assert encode_map({"run_id": "r", "loss": 1.5, "of": [1, None, True, "ä"]}) == (
        '{"run_id":"r","loss":1.5,"of":[1,null,true,"ä"]}'.encode()
    )


WRONG_MAPS = {
    "empty": b"",
    "cut off": b'{"a":1',
    "left over": b'{"a":1}1',
    "no map": b"[1]",
    "repeated key": b'{"a":1,"a":2}',
    "repeated key inside": b'{"b":[{"a":1,"a":2}]}',
    "NaN": b'{"a":NaN}',
    "infinite": b'{"a":-Infinity}',
    "too large": b'{"a":1e999}',
    "many digits": b'{"a":' + b"9" * 100_000 + b"}",
    "65 bits": b'{"a":18446744073709551616}',
    "half a pair": b'{"a":"\\ud800"}',
    "half a pair as key": b'{"\\ud800":1}',
    "no UTF-8": b'{"a":"\xff"}',
    "17 deep": b'{"a":' + b"[" * 16 + b"]" * 16 + b"}",
    "100,000 deep": b'{"a":' + b"[" * 100_000,
    "pickle": b"\x80\x04K\x01.",
}


@pytest.mark.parametrize("name", WRONG_MAPS)
def test_a_wrong_map_is_refused(name: str) -> None:
    with pytest.raises(MalformedFrame, match="map"):
        decode_map(WRONG_MAPS[name], MIB)


def test_a_map_has_the_callers_bound_and_ours_must_be_right() -> None:
    assert decode_map(memoryview(b'{"a":[[1]]}'), 11) == {"a": [[1]]}
    with pytest.raises(MalformedFrame, match="has 11 bytes; allowed is 10"):
        decode_map(b'{"a":[[1]]}', 10)
    deep: list[object] = []
    for _ in range(16):
        deep = [deep]
    for wrong in ({1: 2}, {"a": float("nan")}, {"a": b"x"}, {"a": 2**64}, {"a": "\ud800"}, {"a": deep}, {"a": {1, 2}}):
        with pytest.raises(MachineError, match="a map was made with"):
            encode_map(wrong)


def test_random_bytes_never_raise_anything_else() -> None:
    rng = random.Random(3)
    good = (encode_record([ROW, ROW._replace(name="b")]), encode_map({"a": [1, 2.5, {"b": "text"}], "c": None}))
    for turn in range(6_000):
        changed = bytearray(good[turn % 2])
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        for decode in (decode_record, decode_map):
            try:
                decode(bytes(changed), MIB)
            except MalformedFrame:
                continue


def test_growth_in_memory_is_bounded() -> None:
    size = 40_000
    hostile = {
        "maps": b'{"a":[' + b"{}," * (size // 3) + b"{}]}",
        "lists": b'{"a":[' + b"[]," * (size // 3) + b"[]]}",
        "texts": b'{"a":[' + b'"ab",' * (size // 5) + b"0]}",
        "numbers": b'{"a":[' + b"999," * (size // 4) + b"0]}",
    }
    for name, data in hostile.items():
        tracemalloc.start()
        kept = decode_map(data, MIB)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(kept) == 1
        assert peak < 40 * len(data), name
    maps_for_rows = b"\xdd\x00\x01\x86\xa0" + b"\x80" * 100_000
    tracemalloc.start()
    with pytest.raises(MalformedFrame):
        decode_record(maps_for_rows, MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000
    smallest = msgpack.packb([[chr(97 + at // 26) + chr(97 + at % 26), 1, 1, 1, 1] for at in range(26 * 26)])
    tracemalloc.start()
    kept_rows = decode_record(smallest, MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(kept_rows) == 26 * 26
    assert peak < 50 * len(smallest), peak / len(smallest)
