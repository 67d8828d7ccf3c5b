"""Parsers of what peers send: headers, messages, bodies, identities, transfers, encoded values, layouts."""

import functools
import math
import struct

import msgpack
import torch

from tests.fuzz.target import Tape, Target
from tests.wire.examples import EXAMPLES, GOLDEN
from zdiloco.core.messages import Body
from zdiloco.errors import MachineError, MalformedFrame, VersionMismatch
from zdiloco.node.sockets import address_of, identity_of
from zdiloco.tensor.codecs import NAMES, get_codec
from zdiloco.tensor.layout import Fragment, Layout, TensorKind, TensorSpec, layout_of
from zdiloco.tensor.merge import Weighted, merge
from zdiloco.tensor.partial import bundle_of, split_bundle
from zdiloco.tensor.screen import screen
from zdiloco.units import MemberKey, Merged
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.bodies import decode_map, decode_record, encode_map, encode_record, split_update
from zdiloco.wire.encoding import TAGS, decode, encode
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.frames import split_parts
from zdiloco.wire.inbox import Expected, Inbox
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import MAX_RANGES, Chunk, Credit, Gone, checksums_of, make_body

MAX_BYTES = 2**16
RECORD = (Merged("a", 7, 3, 24, 98_304), Merged("b-1", 2**64 - 1, 2**53, 0, 0))
MAP = {"a": [1, 2.5, None, True, "x"], "b": {"c": -1}, "": 2**64 - 1}
TAG_NAMES = sorted(TAGS)
TWO = Fragment(
    index=0,
    tensors=(
        TensorSpec(name="wte", shape=(4, 3), dtype="float32", kind=TensorKind.EMBEDDING),
        TensorSpec(name="a", shape=(5, 4), dtype="float32", kind=TensorKind.MATRIX),
    ),
)


def _headers() -> list[bytes]:
    return [bytes.fromhex(text) for text in GOLDEN.values()]


def parse_header(data: bytes) -> None:
    """Any bytes as a header frame; what came out comes back."""
    view, payload = split_parts([data])
    assert payload is None
    message = decode(view)
    assert decode(encode(message)) == message


def parse_fields(data: bytes) -> None:
    """A well-formed header of some message in which some fields were put in, taken away or replaced."""
    tape = Tape(data)
    tag = TAG_NAMES[tape.pick(len(TAG_NAMES))]
    header = msgpack.unpackb(encode(EXAMPLES[tag]))
    names = sorted(header)
    for _ in range(tape.pick(4)):
        name, how = names[tape.pick(len(names))], tape.pick(8)
        if how == 0:
            header.pop(name, None)
        elif how == 1:
            header[tape.text()] = tape.value()
        elif how == 2 and isinstance(header.get(name), dict) and header[name]:
            header[name] = {**header[name], sorted(header[name])[tape.pick(len(header[name]))]: tape.value()}
        else:
            header[name] = tape.value()
    try:
        packed = msgpack.packb(header)
    except (OverflowError, ValueError):  # such a number no peer can send
        return
    parse_header(packed)


def parse_record(data: bytes) -> None:
    """Any bytes as the record of an update."""
    rows = decode_record(data, MAX_BYTES)
    assert decode_record(encode_record(rows), 4 * MAX_BYTES) == rows


def parse_map(data: bytes) -> None:
    """Any bytes as a map, such as a status."""
    value = decode_map(data, MAX_BYTES)
    assert decode_map(encode_map(value), 8 * MAX_BYTES) == value


def parse_update(data: bytes) -> None:
    """Any bytes as the body of an update: a value of announced length, and a record."""
    tape = Tape(data)
    announced, body = struct.unpack("<h", tape.take(2).ljust(2, b"\0"))[0], data[2:]
    value, rows = split_update(body, announced, MAX_BYTES)
    assert value.nbytes == announced
    assert bytes(value) + body[announced:] == body
    assert len({row.key for row in rows}) == len(rows)


def _layouts() -> list[bytes]:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    small = layout_of(torch.nn.Linear(2, 1), num_fragments=1)
    return [encode_map(layout.to_obj()) for layout in (layout_of(model, num_fragments=2), small)]


def parse_layout(data: bytes) -> None:
    """Any bytes as a donor's layout."""
    layout = Layout.from_obj(decode_map(data, MAX_BYTES))
    assert Layout.from_obj(layout.to_obj()).digest == layout.digest
    assert math.isclose(sum(layout.shares), 1.0)


def parse_layout_fields(data: bytes) -> None:
    """A donor's layout in which some places were replaced."""
    tape = Tape(data)
    tree = decode_map(_layout_seeds()[0], MAX_BYTES)
    for _ in range(tape.pick(4)):
        node: object = tree
        while isinstance(node, dict | list) and node:
            place = sorted(node)[tape.pick(len(node))] if isinstance(node, dict) else tape.pick(len(node))
            if tape.pick(4) == 0 or not isinstance(node[place], dict | list):
                node[place] = tape.value()
                break
            node = node[place]
    layout = Layout.from_obj(tree)
    assert Layout.from_obj(layout.to_obj()).digest == layout.digest


_layout_seeds = functools.cache(_layouts)


def parse_identity(data: bytes) -> None:
    """Any bytes as the routing identity of a connection."""
    address = address_of(data)
    if address is None:
        raise MalformedFrame("a stranger")
    assert identity_of(*address) == data


# ---- encoded values


def _payloads() -> list[bytes]:
    values = torch.linspace(-2, 2, 300)
    return [
        struct.pack("<BH", at, values.numel()) + bytes(get_codec(name).encode(values).numpy().tobytes())
        for at, name in enumerate(sorted(NAMES))
    ]


def parse_payload(data: bytes) -> None:
    """Any bytes as encoded values: screening, decoding and merging agree on whether they are finite."""
    tape = Tape(data)
    codec, numel = get_codec(sorted(NAMES)[tape.pick(len(NAMES))]), tape.number(2) % 4096
    bytes_ = data[3:]
    found = screen(bytes_, codec=codec, numel=numel, cuts=(0, numel // 3))
    if len(bytes_) != codec.encoded_bytes(numel):
        assert found.reason == "length"
    payload = codec.open(bytes_, numel)  # raises for a wrong length
    values = codec.decode(bytes_, numel)
    assert found.finite == bool(torch.isfinite(values).all())
    acc, scratch = torch.zeros(numel), torch.empty(max(1, numel))
    payload.add_to(acc, 0, 1.0, scratch)
    assert torch.equal(acc.isfinite(), values.isfinite())
    if found.finite:
        assert math.isclose(found.norm, float(values.double().norm()), rel_tol=1e-5, abs_tol=1e-30)


def _bundles() -> list[bytes]:
    members = [
        Weighted(data=get_codec("fp32").encode(torch.linspace(-1, at, TWO.numel)), codec=get_codec("fp32"), weight=at)
        for at in (1.0, 2.0)
    ]
    made = [bundle_of(TWO, members, method, codec) for method in ("rda", "avg") for codec in ("fp32", "bf16")]
    return [bytes([at]) + data for at, data in enumerate(made) if data]


def parse_bundle(data: bytes) -> None:
    """Any bytes as the body of a bundle: what is taken apart is finite, and so is what is merged of it."""
    which = Tape(data).pick(4)
    method, codec = ("rda", "avg")[which // 2], ("fp32", "bf16")[which % 2]
    found = split_bundle(TWO, memoryview(data[1:]), method, codec)
    assert math.isfinite(found.norm)
    if found.norm < 1e18:  # larger ones are refused by their norm
        whole = Weighted(data=found.values, codec=get_codec(codec), weight=1.0, radii=found.radii)
        assert bool(merge(TWO, [whole], method).isfinite().all())


# ---- transfers

BODY_BYTES = bytes(range(256)) * 20
BUDGET = 2**14


class _Chunks:
    """An inbox and two peers that say anything in any order; what is known to hold is checked after each word."""

    def __init__(self, tape: Tape) -> None:
        params = InboxParams(budget_bytes=BUDGET, window_bytes=4096, stall_s=0.1, give_up_s=1.0)
        self._tape, self._inbox, self._now = tape, Inbox(params), 0.0

    def word(self) -> None:
        """One word of one peer, or a turn."""
        tape, inbox = self._tape, self._inbox
        what, peer, name = tape.pick(9), tape.pick(2), f"t/{tape.pick(4)}"
        self._now += tape.byte() / 100
        if what < 2:
            self._expect(peer, name)
        elif what < 5:
            self._chunk(peer, name)
        elif what == 5:
            inbox.on_gone(peer, Gone(transfer=name, by_sender=True, reason=""))
        elif what == 6:
            inbox.release(peer, name) or inbox.cancel(peer, name)
        elif what == 7:
            inbox.cancel_peer(peer) if tape.pick(2) else inbox.resume(peer, self._now)
        self._turn()

    def _expect(self, peer: int, name: str) -> None:
        tape, nbytes = self._tape, self._tape.pick(6) * 1000
        body = make_body(name, BODY_BYTES[:nbytes], 1024)
        lie = tape.pick(8)
        if lie < 3:
            body = Body(
                transfer=name,
                nbytes=(2**53, nbytes, nbytes + 1)[lie],
                chunk_bytes=(1024, 1 + tape.number(2), 1024)[lie],
                digest=body.digest ^ (lie == 1),
            )
        if self._inbox.expect(peer, body, self._now, passive=bool(tape.pick(2))) is Expected.COMPLETE:
            assert body.nbytes == len(self._inbox.take(peer, name))

    def _chunk(self, peer: int, name: str) -> None:
        tape, index = self._tape, self._tape.pick(6)
        payload = BODY_BYTES[index * 1024 :][: 1024 if tape.pick(4) else tape.number(2)]
        checksum = checksums_of(payload, 1024)[0] if payload and tape.pick(4) else tape.number(8)
        outcome = self._inbox.on_chunk(peer, Chunk(transfer=name, index=index, checksum=checksum), payload, self._now)
        if outcome is Outcome.COMPLETE:
            whole = bytes(self._inbox.take(peer, name))
            assert whole == BODY_BYTES[: len(whole)]

    def _turn(self) -> None:
        turn = self._inbox.turn(self._now)
        for _, message in turn.to_send:
            assert decode(encode(message)) == message
        assert 0 <= self._inbox.reserved_bytes <= BUDGET
        assert 0 <= self._inbox.owed_bytes <= 2 * (4096 + 5000)


def parse_chunks(data: bytes) -> None:
    """A sequence of announcements, chunks and turns: memory stays in the budget, only what was announced comes out."""
    tape = Tape(data)
    chunks = _Chunks(tape)
    while not tape.over:
        try:
            chunks.word()
        except MalformedFrame:
            chunks._turn()


def parse_credits(data: bytes) -> None:
    """A sequence of credits of two peers: no credit yields a chunk twice, or one that there is not."""
    tape, outbox = Tape(data), Outbox()
    for name in ("t/0", "t/1"):
        outbox.add(name, BODY_BYTES, 1024)
    while not tape.over:
        edges = sorted({tape.number(1 + tape.pick(3)) for _ in range(tape.pick(6))})
        missing = tuple((a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=False))
        credit = Credit(
            transfer=f"t/{tape.pick(3)}", upto=tape.number(2), received=tape.number(2), missing=missing[:MAX_RANGES]
        )
        answer = outbox.on_credit(tape.pick(2), credit)
        if isinstance(answer, list):
            indices = [chunk.index for chunk in answer]
            assert len(set(indices)) == len(indices) <= 5
            assert all(0 <= index < 5 for index in indices)


TARGETS = (
    Target(name="bundle", parse=parse_bundle, allowed=(MalformedFrame,), seeds=_bundles, slow=True),
    Target(name="header", parse=parse_header, allowed=(MalformedFrame, VersionMismatch), seeds=_headers),
    Target(
        name="fields",
        parse=parse_fields,
        allowed=(MalformedFrame, VersionMismatch, MachineError),
        seeds=lambda: [bytes([at]) for at in range(len(TAG_NAMES))],
        grows=80_000,  # an input names the length of a text by two bytes
    ),
    Target(name="record", parse=parse_record, allowed=(MalformedFrame,), seeds=lambda: [encode_record(RECORD)]),
    Target(name="map", parse=parse_map, allowed=(MalformedFrame,), seeds=lambda: [encode_map(MAP)]),
    Target(
        name="update",
        parse=parse_update,
        allowed=(MalformedFrame,),
        seeds=lambda: [b"\5\0value" + encode_record(RECORD)],
    ),
    Target(name="layout", parse=parse_layout, allowed=(MalformedFrame,), seeds=_layout_seeds),
    Target(
        name="layout_fields",
        parse=parse_layout_fields,
        allowed=(MalformedFrame,),
        seeds=lambda: [b""],
        grows=80_000,
    ),
    Target(
        name="identity",
        parse=parse_identity,
        allowed=(MalformedFrame,),
        seeds=lambda: [
            identity_of(MemberKey("a-1", 2**63), stripe, token) for stripe in (0, 3) for token in ("", "0" * 16)
        ],
    ),
    Target(name="payload", parse=parse_payload, allowed=(MalformedFrame,), seeds=_payloads, slow=True),
    Target(
        name="chunks",
        parse=parse_chunks,
        allowed=(),
        seeds=lambda: [
            bytes([0, 0, 0, 0, 2, 5, 0, 3, 0, 0, 0, 0, 1, 1]),
            b"".join(bytes([2, 0, 0, 0, at, 1, 1]) for at in range(3)),
        ],
    ),
    Target(name="credits", parse=parse_credits, allowed=(), seeds=lambda: [bytes([2, 0, 0, 0, 3, 0, 0, 20, 0, 20, 0])]),
)
