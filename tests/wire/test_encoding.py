"""Every message on the wire: fixed bytes, round trips, and what a peer may not send."""

import dataclasses
import pickle
import random
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.core import bounds
from zdiloco.core import messages as m
from zdiloco.core.bounds import MAX_COUNT
from zdiloco.core.messages import Body
from zdiloco.errors import MachineError, MalformedFrame, VersionMismatch
from zdiloco.units import MAX_FRAGMENTS, Epoch, Stamp
from zdiloco.wire.encoding import TAGS, WireMessage, decode, encode
from zdiloco.wire.frames import MAX_HEADER, PROTOCOL
from zdiloco.wire.transfer import MAX_RANGES, Chunk, Credit, Gone

BODY = Body(transfer="c/3/17", nbytes=2_500_000, chunk_bytes=2**20, digest=2**64 - 2)
EPOCH = Epoch(2, 0xFEDCBA9876543210)
STAMP = Stamp(EPOCH, 41)

EXAMPLES: dict[str, WireMessage] = {
    "hello": m.Hello(
        name="us-east-0", incarnation=2**64 - 1, run_id="r1", layout_digest="ab12", epoch=EPOCH, stamps=(STAMP,)
    ),
    "report": m.Report(step=100, trained_tokens=409_600, unmerged_tokens=8192.5, dropped_tokens=0.0),
    "heartbeat": m.Heartbeat(epoch=EPOCH),
    "contribution": m.Contribution(
        fragment=3,
        seq=17,
        after=16,
        stamp=STAMP,
        steps=24,
        tokens=98_304,
        cut_step=400,
        version=42,
        codec="bf16",
        body=BODY,
    ),
    "decline": m.Decline(fragment=3, version=42, reason="uplink busy", eta_s=1.5),
    "pull": m.Pull(fragment=3),
    "layout": m.LayoutOffer(digest="ab12", body=BODY),
    "initial": m.InitialOffer(fragment=3, body=BODY),
    "handback": m.Handback(fragment=3, stamp=STAMP, codec="bf16", value_bytes=2_000_000, body=BODY),
    "goodbye": m.Goodbye(reason="finished", trained_tokens=10**6, left_tokens=12.25, dropped_tokens=0.0),
    "query": m.StatusQuery(),
    "welcome": m.Welcome(
        epoch=EPOCH, run_id="r1", order=5, versions=(41, -1, 300), progress=0.25
    ),
    "unwelcome": m.Unwelcome(reason="layout", text="tensor a differs", fatal=True),
    "donate": m.Donate(),
    "want": m.HandbackRequest(fragment=3),
    "ack": m.Ack(fragment=3, held=17, merged=16),
    "refused": m.Refused(fragment=3, seq=17, reason="epoch", text="of an older epoch"),
    "call": m.Call(epoch=EPOCH, fragment=3, version=42),
    "update": m.Update(fragment=3, stamp=STAMP, full=False, codec="bf16", value_bytes=2_000_000, body=BODY),
    "beat": m.Beat(
        epoch=EPOCH, open_rounds=((3, 42), (4, 41)), versions=(41, 40), stable=(40, -1), progress=0.5
    ),
    "farewell": m.Farewell(epoch=EPOCH, finished=True, reason="target reached", versions=(7, 8)),
    "status": m.Status(body=BODY),
    "credit": Credit(transfer="c/3/17", upto=2**23, received=2**20, missing=((1, 2), (5, 1))),
    "chunk": Chunk(transfer="c/3/17", index=2, checksum=2**64 - 3),
    "gone": Gone(transfer="c/3/17", by_sender=True, reason="dropped"),
}

GOLDEN = {
    "hello": (
        "8aa17602a174a568656c6c6fa46e616d65a975732d656173742d30ab696e6361726e6174696f6ecfffffffffffffffffa872"
        "756e5f6e616d65a0a672756e5f6964a27231ad6c61796f75745f646967657374a461623132a565706f63689202cffedcba98"
        "76543210a67374616d707391929202cffedcba987654321029a87761746368696e67c2"
    ),
    "report": (
        "86a17602a174a67265706f7274a47374657064ae747261696e65645f746f6b656e73ce00064000af756e6d65726765645f74"
        "6f6b656e73cb40c0004000000000ae64726f707065645f746f6b656e73cb0000000000000000"
    ),
    "heartbeat": "83a17602a174a9686561727462656174a565706f63689202cffedcba9876543210",
    "contribution": (
        "8ca17602a174ac636f6e747269627574696f6ea8667261676d656e7403a373657111a5616674657210a57374616d70929202"
        "cffedcba987654321029a5737465707318a6746f6b656e73ce00018000a86375745f73746570cd0190a776657273696f6e2a"
        "a5636f646563a462663136a4626f647984a87472616e73666572a6632f332f3137a66e6279746573ce002625a0ab6368756e"
        "6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "decline": (
        "86a17602a174a76465636c696e65a8667261676d656e7403a776657273696f6e2aa6726561736f6eab75706c696e6b206275"
        "7379a56574615f73cb3ff8000000000000"
    ),
    "pull": "83a17602a174a470756c6ca8667261676d656e7403",
    "layout": (
        "84a17602a174a66c61796f7574a6646967657374a461623132a4626f647984a87472616e73666572a6632f332f3137a66e62"
        "79746573ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "initial": (
        "84a17602a174a7696e697469616ca8667261676d656e7403a4626f647984a87472616e73666572a6632f332f3137a66e6279"
        "746573ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "handback": (
        "87a17602a174a868616e646261636ba8667261676d656e7403a57374616d70929202cffedcba987654321029a5636f646563"
        "a462663136ab76616c75655f6279746573ce001e8480a4626f647984a87472616e73666572a6632f332f3137a66e62797465"
        "73ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "goodbye": (
        "86a17602a174a7676f6f64627965a6726561736f6ea866696e6973686564ae747261696e65645f746f6b656e73ce000f4240"
        "ab6c6566745f746f6b656e73cb4028800000000000ae64726f707065645f746f6b656e73cb0000000000000000"
    ),
    "query": "83a17602a174a57175657279a66c61796f7574c2",
    "welcome": (
        "87a17602a174a777656c636f6d65a565706f63689202cffedcba9876543210a672756e5f6964a27231a56f7264657205a876"
        "657273696f6e739329ffcd012ca870726f6772657373cb3fd0000000000000"
    ),
    "unwelcome": (
        "85a17602a174a9756e77656c636f6d65a6726561736f6ea66c61796f7574a474657874b074656e736f722061206469666665"
        "7273a5666174616cc3"
    ),
    "donate": "82a17602a174a6646f6e617465",
    "want": "83a17602a174a477616e74a8667261676d656e7403",
    "ack": "87a17602a174a361636ba8667261676d656e7403a468656c6411a66d657267656410a672656d61726ba0a474657874a0",
    "refused": (
        "86a17602a174a772656675736564a8667261676d656e7403a373657111a6726561736f6ea565706f6368a474657874b16f66"
        "20616e206f6c6465722065706f6368"
    ),
    "call": ("85a17602a174a463616c6ca565706f63689202cffedcba9876543210a8667261676d656e7403a776657273696f6e2a"),
    "update": (
        "88a17602a174a6757064617465a8667261676d656e7403a57374616d70929202cffedcba987654321029a466756c6cc2a563"
        "6f646563a462663136ab76616c75655f6279746573ce001e8480a4626f647984a87472616e73666572a6632f332f3137a66e"
        "6279746573ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "beat": (
        "87a17602a174a462656174a565706f63689202cffedcba9876543210ab6f70656e5f726f756e64739292032a920429a87665"
        "7273696f6e73922928a6737461626c659228ffa870726f6772657373cb3fe0000000000000"
    ),
    "farewell": (
        "86a17602a174a86661726577656c6ca565706f63689202cffedcba9876543210a866696e6973686564c3a6726561736f6eae"
        "7461726765742072656163686564a876657273696f6e73920708"
    ),
    "status": (
        "83a17602a174a6737461747573a4626f647984a87472616e73666572a6632f332f3137a66e6279746573ce002625a0ab6368"
        "756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "credit": (
        "86a17602a174a6637265646974a87472616e73666572a6632f332f3137a47570746fce00800000a87265636569766564ce00"
        "100000a76d697373696e6792920102920501"
    ),
    "chunk": (
        "85a17602a174a56368756e6ba87472616e73666572a6632f332f3137a5696e64657802a8636865636b73756dcffffffffffffffffd"
    ),
    "gone": (
        "85a17602a174a4676f6e65a87472616e73666572a6632f332f3137a962795f73656e646572c3a6726561736f6ea764726f70706564"
    ),
}

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
    "fragment": st.integers(0, MAX_FRAGMENTS - 1),
    "seq": st.integers(1, MAX_COUNT),
    "version": st.integers(1, MAX_COUNT),
    "stamps": st.lists(stamps, max_size=8).map(tuple),
    "versions": versions,
    "stable": versions,
    "open_rounds": st.lists(st.tuples(st.integers(0, 511), st.integers(1, MAX_COUNT)), max_size=8).map(tuple),
    "missing": ranges,
    "progress": st.floats(0, 1e9),
    "eta_s": st.floats(0, 1e9),
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
    return st.builds(kind, **strategies)


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
        for wrong in ({"a": 1}, None, [[[]]]):
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
    ("contribution", {"fragment": 513}, "Contribution.fragment is 513"),
    ("contribution", {"codec": "x" * 65}, "Contribution.codec has more"),
    ("beat", {"open_rounds": [[1, 2, 3]]}, r"open_rounds\[0\]"),
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
    with pytest.raises(VersionMismatch, match=f"protocol 3 and this side {PROTOCOL}"):
        decode(changed("report", v=3))
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
            stamps=(stamp,) * MAX_FRAGMENTS,
        ),
        m.Beat(
            epoch=epoch, open_rounds=((MAX_FRAGMENTS - 1, MAX_COUNT),) * MAX_FRAGMENTS, versions=many, stable=many,
            progress=1.0,
        ),
        m.Welcome(epoch=epoch, run_id=name, order=MAX_COUNT, versions=many, progress=1.0),
        m.Unwelcome(reason=name, text=text, fatal=True),
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
        encode(BODY)  # type: ignore[arg-type]
