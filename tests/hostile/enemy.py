"""Whoever means harm: raw frames over real sockets, under an identity of its own choice.

Rule: an enemy knows the protocol and keeps none of it. It never waits without an end, and its sockets are the test's.
"""

import io
import pickle
import random
import socket
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack
import zmq

from tests.wire.examples import EXAMPLES, GOLDEN
from zdiloco.node.sockets import Road, identity_of
from zdiloco.units import MemberKey
from zdiloco.wire.encoding import decode, encode
from zdiloco.wire.transfer import Chunk

LIMIT_S = 90.0
PORTS = {road: at for at, road in enumerate(Road)}


class Enemy:
    """Two sockets, control and bulk, that say what they are told under `identity` (a member's, or any bytes).

    `options`: what else they are set to before they are connected, such as keys."""

    def __init__(
        self, context: Any, port: int, identity: MemberKey | bytes, options: Mapping[int, Any] | None = None
    ) -> None:  # fmt: skip
        name = identity_of(identity) if isinstance(identity, MemberKey) else identity
        self.sockets = {road: context.socket(zmq.DEALER) for road in (Road.CONTROL, Road.BULK)}
        for road, made in self.sockets.items():
            made.setsockopt(zmq.LINGER, 0)
            made.setsockopt(zmq.IDENTITY, name)
            made.setsockopt(zmq.SNDTIMEO, int(LIMIT_S * 1000))
            for option, value in (options or {}).items():
                made.setsockopt(option, value)
            made.connect(f"tcp://127.0.0.1:{port + PORTS[road]}")

    def frames(self, road: Road, *frames: bytes) -> None:
        """Send frames as they are."""
        self.sockets[road].send_multipart(frames or [b""])

    def say(self, *messages: Any) -> None:
        """Send well-formed messages on the control road."""
        for message in messages:
            self.frames(Road.CONTROL, encode(message))

    def chunk(self, transfer: str, index: int, checksum: int, payload: bytes) -> None:
        """Send one chunk."""
        self.frames(Road.BULK, encode(Chunk(transfer=transfer, index=index, checksum=checksum)), payload)

    def hear(self, *kinds: type) -> Any:
        """The next message of one of these kinds; others are passed over."""
        ends = time.monotonic() + LIMIT_S
        while self.sockets[Road.CONTROL].poll(max(0.0, ends - time.monotonic()) * 1000):
            message = decode(self.sockets[Road.CONTROL].recv())
            if isinstance(message, kinds):
                return message
        raise AssertionError(f"nobody said {' or '.join(kind.__name__ for kind in kinds)}")

    def close(self) -> None:
        """Hang up."""
        for made in self.sockets.values():
            made.close(0)


class _Bomb:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("import os; os._exit(66)",))


def zip_bomb() -> bytes:
    """An archive of some kilobytes that unpacks to 64 MB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(2**26))
    return file.getvalue()


def malformed_headers() -> list[bytes]:
    """Headers of every wrong kind: none of them is a message."""
    hello, contribution = bytes.fromhex(GOLDEN["hello"]), bytes.fromhex(GOLDEN["contribution"])
    fields = msgpack.unpackb(contribution)
    body = fields["body"]
    wrong: list[dict[str, Any]] = [
        {**fields, "body": {**body, "nbytes": 2**60}}, {**fields, "body": {**body, "nbytes": -1}},
        {**fields, "body": {**body, "chunk_bytes": 0}}, {**fields, "fragment": -1}, {**fields, "fragment": 2**40},
        {**fields, "steps": "many"}, {**fields, "stamp": [[1]]}, {**fields, "codec": ["bf16"]}, {**fields, "seq": 0.5},
        {**fields, "seq": float("nan")}, {**fields, "extra": 1}, {**fields, "t": "pickle"}, {**fields, "t": 5},
        {**fields, "tokens": True}, {**fields, "body": None}, {name: fields[name] for name in fields if name != "seq"},
    ]  # fmt: skip
    return [
        *(msgpack.packb(each) for each in wrong),
        *(hello[:cut] for cut in range(0, len(hello), 9)),
        hello + b"\0", hello * 2, b"\xde\xff\xff" + hello[1:], b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff",
        b"\x82\xa1v\x01\xa1v\x01", b"\x83\xa1v\x01\xa1t\xa5hello\xa1t\xa5query", b"\x91" * 16_000, b"\x81\xa1a" * 5000,
        b"\x81\xa1v\xc6\xff\xff\xff\xff", b"\x81\xa1v\xc7\x04\x01abcd", b"\x81\xa1v\xdb\x7f\xff\xff\xff",
        pickle.dumps(_Bomb()), pickle.dumps(EXAMPLES["hello"]), b"PK\x03\x04" + zip_bomb()[:9000],
        zlib.compress(bytes(2**24)), b"\xff" * 16_384, b"{" * 9000, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 60_000,
    ]  # fmt: skip


def greeting(port: int, road: Road) -> socket.socket:
    """A raw connection that has shaken hands as a DEALER (or SUB) does; the next bytes are frames."""
    made = socket.create_connection(("127.0.0.1", port + PORTS[road]), timeout=LIMIT_S)
    made.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(23, b"\0") + bytes(32))
    kind = b"DEALER" if road in (Road.CONTROL, Road.BULK) else b"SUB"
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    ready += b"\x08Identity" + struct.pack(">I", 0) if kind == b"DEALER" else b""
    made.sendall(b"\x04" + bytes([len(ready)]) + ready)
    left = 64
    while left:
        left -= len(made.recv(left))
    return made


def huge_frame(size: int) -> bytes:
    """The head of a frame that claims so many bytes."""
    return b"\x02" + struct.pack(">Q", size)


RAW = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), bytes(64),
    b"\xff" * 64, b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE".ljust(23, b"\0") + bytes(32), pickle.dumps(_Bomb()), b"",
]  # fmt: skip
"""What strangers say on a port of ours before they have shaken hands."""


BELIEVED = ("welcome", "unwelcome", "farewell", "heartbeat")
"""What may end a process, or take it to another run, where it comes from a peer that speaks the protocol well."""


def nonsense(rng: random.Random) -> Iterator[tuple[Road, list[bytes]]]:
    """Frames for any of the roads, without end: random bytes, damaged messages, several frames, far too long ones."""
    golden = [bytes.fromhex(text) for tag, text in GOLDEN.items() if tag not in BELIEVED]
    while True:
        road = rng.choice(list(Road))
        data = bytearray(rng.choice(golden))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        most = 60_000 if road in (Road.CONTROL, Road.CONTROL_CAST) else 200_000
        yield road, rng.choice([
            [bytes(data)], [bytes(data), rng.randbytes(50)], [rng.randbytes(rng.randrange(200))], [bytes(data)] * 5,
            [rng.randbytes(rng.randrange(most))], [b""], [b"", b""], [bytes(data), rng.randbytes(rng.randrange(most))],
        ])  # fmt: skip
