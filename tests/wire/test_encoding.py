"""Every message on the wire: fixed bytes, round trips, and what a peer may not send."""

import dataclasses
import pickle
import random
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.examples import BODY, EXAMPLES, GOLDEN
from zdiloco.core import bounds
from zdiloco.core import messages as m
from zdiloco.core.bounds import MAX_COUNT
from zdiloco.core.bundle_messages import MOST_MEMBERS
from zdiloco.core.messages import Body
from zdiloco.errors import MachineError, MalformedFrame, VersionMismatch
from zdiloco.knobs import NAME
from zdiloco.units import MAX_FRAGMENTS, NO_STAMP, Epoch, Stamp
from zdiloco.wire.encoding import TAGS, WireMessage, decode, encode
from zdiloco.wire.frames import MAX_HEADER, PROTOCOL
from zdiloco.wire.transfer import MAX_RANGES, Credit, Gone

# ---- any valid message, by the types of its fields

counts, numbers = st.integers(0, MAX_COUNT), st.floats(0, MAX_COUNT, allow_nan=False)
epochs = st.builds(Epoch, st.integers(0, bounds.MAX_EPOCH), st.integers(0, 2**64 - 1))
stamps = st.builds(Stamp, epochs, st.integers(-1, MAX_COUNT))
versions = st.lists(st.integers(-1, MAX_COUNT), max_size=8).map(tuple)
bodies = st.builds(
    Body,
    transfer=st.text(max_size=128),
    nbytes=counts,
    chunk_bytes=st.integers(1, 2**23),
    digest=st.integers(0, 2**64 - 1),
)
ranges = st.lists(st.integers(0, MAX_COUNT), max_size=20, unique=True).map(
    lambda edges: tuple(
        (first, end - first) for first, end in zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False)
    )
)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(min_size=1, max_size=64),
    "incarnation": st.integers(1, 2**64 - 1),
    "checksum": st.integers(0, 2**64 - 1),
    "value_digest": st.integers(0, 2**64 - 1),
    "base": st.none(),
    "fragment": st.integers(0, MAX_FRAGMENTS - 1),
    "seq": st.integers(1, MAX_COUNT),
    "version": st.integers(1, MAX_COUNT),
    "stamps": st.lists(stamps, max_size=8).map(tuple),
    "versions": versions,
    "stable": versions,
    "open_rounds": st.lists(st.tuples(st.integers(0, 511), st.integers(1, MAX_COUNT)), max_size=8).map(tuple),
    "missing": ranges,
    "progress": st.floats(0, 1e9),
    "number": st.integers(1, MAX_COUNT),
    "members": st.lists(
        st.builds(
            m.Bundled, st.text(min_size=1, max_size=64), st.integers(1, 2**64 - 1), counts, counts, counts, counts,
            st.floats(0, 1e300), st.floats(1e-300, 1e300),
        ),
        min_size=1, max_size=8, unique_by=lambda member: member.key,
    ).map(tuple),
    "eta_s": st.floats(0, 1e9),
    "settings": st.lists(st.tuples(st.text(max_size=64), st.text(max_size=200)), max_size=8).map(tuple),
    "region": st.just("") | st.from_regex(NAME, fullmatch=True),
}
BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    int: counts,
    float: numbers,
    bool: st.booleans(),
    str: st.text(max_size=64),
    Epoch: epochs,
    Stamp: stamps,
    Body: bodies,
}


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    strategies = {
        field.name: BY_NAME[field.name] if field.name in BY_NAME else BY_TYPE[field.type] for field in fields_of(kind)
    }
    if kind is not m.Update:
        return st.builds(kind, **strategies)
    after = {"full": st.just(False), "base": st.just(NO_STAMP), "stamp": st.builds(Stamp, epochs, counts)}
    return st.builds(kind, **strategies) | st.builds(kind, **{**strategies, **after})


def fields_of(kind: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def changed(tag: str, **fields: object) -> bytes:
    """The header of an example with fields set, or taken away where the value is ... ."""
    header = {**msgpack.unpackb(encode(EXAMPLES[tag])), **fields}
    return msgpack.packb({name: value for name, value in header.items() if value is not ...})


def test_the_table_holds_every_message_once_and_each_has_an_example() -> None:
    assert set(TAGS.values()) == set(get_args(WireMessage))
    assert len(set(TAGS.values())) == len(TAGS)
    assert {tag: type(message) for tag, message in EXAMPLES.items()} == TAGS
    assert GOLDEN.keys() == TAGS.keys()
    assert not {"v", "t"} & {field.name for kind in TAGS.values() for field in fields_of(kind)}


@pytest.mark.parametrize("tag", TAGS)
def test_the_bytes_of_a_message_are_fixed(tag: str) -> None:
    assert encode(EXAMPLES[tag]).hex() == GOLDEN[tag]
    assert decode(bytes.fromhex(GOLDEN[tag])) == EXAMPLES[tag]


@given(st.sampled_from(sorted(TAGS)).flatmap(lambda tag: any_of(TAGS[tag])))
def test_every_valid_message_comes_back(message: WireMessage) -> None:
    back = decode(memoryview(encode(message)))
    assert back == message
    assert type(back) is type(message)


@pytest.mark.parametrize("tag", TAGS)
def test_a_field_missing_added_or_of_another_type_is_named(tag: str) -> None:
    with pytest.raises(MalformedFrame, match="has no field 'colour'"):
        decode(changed(tag, colour=1))
    for field in fields_of(TAGS[tag]):
        with pytest.raises(MalformedFrame, match=f"lacks the field '{field.name}'"):
            decode(changed(tag, **{field.name: ...}))
        for wrong in ({"a": 1}, [[[]]], *([] if field.default is None else [None])):
            with pytest.raises(MalformedFrame, match=field.name):
                decode(changed(tag, **{field.name: wrong}))


@pytest.mark.parametrize("tag", [tag for tag, kind in TAGS.items() if "body" in {f.name for f in fields_of(kind)}])
def test_the_fields_of_a_body_are_checked_too(tag: str) -> None:
    body = dataclasses.asdict(BODY)
    assert decode(changed(tag, body=body)) == EXAMPLES[tag]
    with pytest.raises(MalformedFrame, match=r"\.body has no field 'colour'"):
        decode(changed(tag, body={**body, "colour": 1}))
    with pytest.raises(MalformedFrame, match=r"\.body lacks the field 'digest'"):
        decode(changed(tag, body={name: value for name, value in body.items() if name != "digest"}))
    with pytest.raises(MalformedFrame, match="chunk_bytes is 0"):
        decode(changed(tag, body={**body, "chunk_bytes": 0}))
    with pytest.raises(MalformedFrame, match="nbytes"):
        decode(changed(tag, body={**body, "nbytes": "1"}))


OUT_OF_RANGE = [
    ("report", {"step": -1}, "Report.step is -1"),
    ("report", {"step": 2**53 + 1}, "Report.step is"),
    ("report", {"step": True}, "bool.*step"),
    ("report", {"step": 1.0}, "float.*step"),
    ("report", {"step": "1"}, "str.*step"),
    ("report", {"unmerged_tokens": -0.5}, "Report.unmerged_tokens is -0.5"),
    ("report", {"unmerged_tokens": float("nan")}, "the number nan"),
    ("report", {"unmerged_tokens": float("inf")}, "the number inf"),
    ("hello", {"name": ""}, "Hello.name has 0 characters"),
    ("hello", {"name": "x" * 65}, "Hello.name has 65 characters"),
    ("hello", {"incarnation": 0}, "Hello.incarnation is 0"),
    ("hello", {"epoch": [1, 2, 3]}, "length 2, got 3.*epoch"),
    ("hello", {"epoch": [-1, 2]}, "Hello holds the epoch"),
    ("hello", {"stamps": [[[1, 2], -2]]}, "Hello holds version -2"),
    ("hello", {"stamps": [[[1, 2], 3, 4]]}, r"stamps\[0\]"),
    ("hello", {"watching": 1}, "watching"),
    ("hello", {"region": 1}, "int.*region"),
    ("hello", {"region": "$a$"}, "Hello.region is .*allowed is what may be a name"),
    ("update", {"value_digest": -1}, "Update.value_digest is -1"),
    ("update", {"base": [[1, 2]]}, "base"),
    ("update", {"base": [[-1, 2], 3]}, "Update holds the epoch"),
    ("update", {"full": True}, "Update.base is .* none when full"),
    ("contribution", {"fragment": 513}, "Contribution.fragment is 513"),
    ("contribution", {"codec": "x" * 65}, "Contribution.codec has more"),
    ("beat", {"open_rounds": [[1, 2, 3]]}, r"open_rounds\[0\]"),
    ("bundle", {"number": 0}, "Bundle.number is 0"),
    ("bundle", {"members": []}, "Bundle.members has 0 entries"),
    ("bundle", {"members": [["a", index + 1, 1, 0, 1, 1, 1.0, 1.0] for index in range(41)]}, "has 41 entries"),
    ("bundle", {"members": [["a", 7, 1, 0, 1, 1, 1.0, 1.0]] * 2}, "names a process twice"),
    ("bundle", {"members": [["a", 7, 1, 0, 1, 1, 1.0]]}, r"length 8, got 7.*members\[0\]"),
    ("bundle", {"members": [["", 7, 1, 0, 1, 1, 1.0, 1.0]]}, "out of range"),
    ("bundle", {"members": [["a", 0, 1, 0, 1, 1, 1.0, 1.0]]}, "out of range"),
    ("bundle", {"members": [["a", 7, 1, -1, 1, 1, 1.0, 1.0]]}, "out of range"),
    ("bundle", {"members": [["a", 7, 1, 0, 1, 1, -1.0, 1.0]]}, "out of range"),
    ("bundle", {"members": [["a", 7, 1, 0, 1, 1, 1.0, 0.0]]}, "out of range"),
    ("gone", {"reason": "x" * 513}, "Gone.reason has more"),
    ("credit", {"missing": [[3, 0]]}, "ascending and disjoint"),
    ("credit", {"missing": [[3, 2], [4, 1]]}, "ascending and disjoint"),
    ("credit", {"missing": [[3, 1]] * 65}, "65 ranges; allowed is 64"),
    ("chunk", {"index": -1}, "Chunk.index is -1"),
]


@pytest.mark.parametrize(("tag", "fields", "reason"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_named(tag: str, fields: dict[str, object], reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        decode(changed(tag, **fields))


def test_another_protocol_version_is_named_beside_ours() -> None:
    with pytest.raises(VersionMismatch, match=f"protocol 9 and this side {PROTOCOL}"):
        decode(changed("report", v=9))
    with pytest.raises(VersionMismatch, match="protocol 9"):
        decode(msgpack.packb({"v": 9, "t": "of the future", "field": 1}))
    for wrong in (..., "1", True, None, 1.0):
        with pytest.raises(MalformedFrame, match="names no protocol version"):
            decode(changed("report", v=wrong))


def test_an_unknown_tag_is_named() -> None:
    for wrong in ("gossip", ..., 7, ["report"]):
        with pytest.raises(MalformedFrame, match="unknown tag"):
            decode(changed("report", t=wrong))


def test_a_pickle_or_noise_is_never_anything_but_malformed() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(MalformedFrame):
            decode(pickle.dumps({"v": 1, "t": "donate"}, protocol))
    rng, good = random.Random(2), [encode(example) for example in EXAMPLES.values()]
    refused = 0
    for turn in range(10_000):
        data = bytearray(good[turn % len(good)])
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decode(bytes(data))
        except (MalformedFrame, VersionMismatch):
            refused += 1
    assert refused > 5_000


def largest() -> list[WireMessage]:
    """The messages that can become large, each as large as its checks allow."""
    text, name = "\U0010ffff" * bounds.MAX_TEXT, "\U0010ffff" * bounds.MAX_NAME
    epoch = Epoch(bounds.MAX_EPOCH, 2**64 - 1)
    many = (MAX_COUNT,) * MAX_FRAGMENTS
    body = Body(transfer=2 * name, nbytes=MAX_COUNT, chunk_bytes=2**23, digest=2**64 - 1)
    stamp = Stamp(epoch, MAX_COUNT)
    return [
        m.Hello(
            name=name, incarnation=2**64 - 1, run_id=name, layout_digest=name, epoch=epoch,
            stamps=(stamp,) * MAX_FRAGMENTS, region="r" * bounds.MAX_NAME,
        ),
        m.Beat(
            epoch=epoch, open_rounds=((MAX_FRAGMENTS - 1, MAX_COUNT),) * MAX_FRAGMENTS, versions=many, stable=many,
            progress=1.0,
        ),
        m.Welcome(epoch=epoch, run_id=name, order=MAX_COUNT, versions=many, progress=1.0),
        m.Unwelcome(reason=name, text=text, fatal=True),
        m.Bundle(
            fragment=511, number=MAX_COUNT, method=name, codec=name, body=body,
            members=tuple(
                m.Bundled(name, 2**64 - 1 - index, *(MAX_COUNT,) * 4, 1e300, 1e300) for index in range(MOST_MEMBERS)
            ),
        ),
        m.Handback(fragment=511, stamp=stamp, codec=name, value_bytes=MAX_COUNT, body=body),
        Credit(
            transfer=2 * name, upto=MAX_COUNT, received=MAX_COUNT,
            missing=tuple((2**52 + 2 * index, 1) for index in range(MAX_RANGES)),
        ),
        Gone(transfer=2 * name, by_sender=True, reason=text),
    ]  # fmt: skip


@pytest.mark.parametrize("message", largest(), ids=lambda message: type(message).__name__)
def test_the_largest_message_of_each_kind_fits_into_a_header(message: WireMessage) -> None:
    data = encode(message)
    assert len(data) <= MAX_HEADER
    assert decode(data) == message


def test_only_messages_are_encoded() -> None:
    with pytest.raises(MachineError, match="Body is not a message of the wire"):
        encode(BODY)
