"""What two doctors say to each other: lines of JSON, each a small record, over a plain TCP connection.

Rule: pure. Nothing of a partner is believed: a line has at most MAX_LINE bytes, its fields their types and bounds, and
its texts are short and printable; what breaks that is a MalformedFrame. The side that is dialled speaks first.
"""

from typing import Annotated, TypeVar

import msgspec

from zdiloco.errors import MalformedFrame
from zdiloco.wire.frames import shown

FORMAT = 1
MAX_LINE = 2048
MOST_BYTES = 2**28
MOST_SECONDS = 30.0
Text = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[ -~]*$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Who is there: what is installed, its wall clock (seconds since 1970), and TCP as this connection has it. None:
    its system does not tell. Fields that a newer doctor has added are passed over."""

    doctor: Count
    road: Text
    version: Text
    protocol: Count
    libzmq: Text
    wall: Seconds
    congestion: Text | None = None
    send_bytes: Count | None = None
    receive_bytes: Count | None = None
    slow_start_after_idle: bool | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`clock`: say the time; `take`: read what comes after this line, and say how much it was; `give`: send so much.
    For at most so many bytes and seconds, after which the connection is over."""

    ask: Annotated[str, msgspec.Meta(pattern="^(clock|take|give)$")]
    nbytes: Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)] = 0
    seconds: Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)] = 0.0


class Clock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The wall clock, in seconds since 1970."""

    wall: Seconds


class Took(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What has come, and at which rate once it flowed."""

    nbytes: Count
    bytes_s: Annotated[float, msgspec.Meta(ge=0, le=1e15)]


Line = TypeVar("Line", About, Ask, Clock, Took)


def line_of(record: About | Ask | Clock | Took) -> bytes:
    """The record as a line, with its end."""
    return msgspec.json.encode(record) + b"\n"


def read_line(kind: type[Line], data: bytes) -> Line:
    """The record of a line, with or without its end. Raises: MalformedFrame."""
    if len(data) > MAX_LINE:
        raise MalformedFrame(f"a line has {len(data)} bytes; allowed is {MAX_LINE}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(f"a line is no {kind.__name__}: {shown(error)}") from error
