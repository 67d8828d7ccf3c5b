"""Messages as header bytes and back: one table of tags, and every field checked.

Rule: a header is {"v": protocol, "t": tag, and each field of the message under its own name}; none may be missing,
none may be added. What `decode` returns has passed its class's own checks, so whoever gets it may trust its bounds.
"""

from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import msgspec

from zdiloco.core import messages
from zdiloco.core.messages import Message
from zdiloco.errors import MachineError, MalformedFrame, VersionMismatch
from zdiloco.wire.frames import PROTOCOL, Buffer, pack_header, shown, unpack_header
from zdiloco.wire.invitations import InvitationMessage, Join, Joined
from zdiloco.wire.transfer import Chunk, Credit, Gone, TransferMessage

WireMessage = Message | TransferMessage | InvitationMessage
"""Everything that may stand in a header."""

TAGS: dict[str, type[WireMessage]] = {
    "hello": messages.Hello,
    "report": messages.Report,
    "heartbeat": messages.Heartbeat,
    "contribution": messages.Contribution,
    "decline": messages.Decline,
    "pull": messages.Pull,
    "layout": messages.LayoutOffer,
    "initial": messages.InitialOffer,
    "handback": messages.Handback,
    "goodbye": messages.Goodbye,
    "query": messages.StatusQuery,
    "welcome": messages.Welcome,
    "unwelcome": messages.Unwelcome,
    "donate": messages.Donate,
    "want": messages.HandbackRequest,
    "ack": messages.Ack,
    "refused": messages.Refused,
    "call": messages.Call,
    "update": messages.Update,
    "beat": messages.Beat,
    "farewell": messages.Farewell,
    "status": messages.Status,
    "borrow": messages.Borrow,
    "lend": messages.Lend,
    "loan": messages.Loan,
    "loanover": messages.LoanOver,
    "receipt": messages.Receipt,
    "bundle": messages.Bundle,
    "unbundled": messages.Unbundled,
    "credit": Credit,
    "chunk": Chunk,
    "gone": Gone,
    "join": Join,
    "joined": Joined,
}
"""Tag on the wire -> class of the message. A tag never changes its meaning within one protocol version."""

_TAG_OF = {kind: tag for tag, kind in TAGS.items()}
_FIELDS = {kind: frozenset(field.name for field in fields(kind)) for kind in TAGS.values()}


def _inner(kind: type[WireMessage]) -> dict[str, frozenset[str]]:
    """Return the fields of each nested dataclass of a message: here too nothing may be added."""
    hints = get_type_hints(kind)
    return {
        name: frozenset(field.name for field in fields(hints[name]))
        for name in _FIELDS[kind]
        if is_dataclass(hints[name])
    }


_INNER = {kind: _inner(kind) for kind in TAGS.values()}


def encode(message: WireMessage) -> bytes:
    """Return the header bytes of a message; `decode` gives back an equal one.

    Raises: MachineError for something that is no message, or whose header is larger than MAX_HEADER.
    """
    tag = _TAG_OF.get(type(message))
    if tag is None:
        raise MachineError(f"{type(message).__name__} is not a message of the wire")
    return pack_header({"v": PROTOCOL, "t": tag, **msgspec.to_builtins(message)})


def decode(buffer: Buffer) -> WireMessage:
    """Return the message in a header frame, all its fields checked.

    Raises: VersionMismatch for another protocol version (both are named); MalformedFrame for bytes that do not parse,
    an unknown tag, and a field that is missing, unknown, of a wrong type or out of range (it is named).
    """
    header = unpack_header(buffer)
    version, tag = header.pop("v", None), header.pop("t", None)
    if type(version) is not int:
        raise MalformedFrame(f"a header names no protocol version (v is {shown(version, 40)})")
    if version != PROTOCOL:
        raise VersionMismatch(
            f"the peer speaks protocol {version} and this side {PROTOCOL}: both need the same version of zdiloco"
        )
    kind = TAGS.get(tag) if type(tag) is str else None
    if kind is None:
        raise MalformedFrame(f"a header has the unknown tag {shown(tag, 40)!r}")
    _check_fields(header, _FIELDS[kind], kind.__name__)
    for name, allowed in _INNER[kind].items():
        if type(header[name]) is not dict:
            raise MalformedFrame(f"{kind.__name__}.{name} is not a map")
        _check_fields(header[name], allowed, f"{kind.__name__}.{name}")
    try:
        return msgspec.convert(header, kind, strict=True)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise MalformedFrame(f"{kind.__name__}: {shown(error, 240)}") from error


def _check_fields(found: dict[str, Any], allowed: frozenset[str], owner: str) -> None:
    if found.keys() == allowed:
        return
    if missing := sorted(allowed - found.keys()):
        raise MalformedFrame(f"{owner} lacks the field {missing[0]!r}")
    extra = sorted(found.keys() - allowed)
    raise MalformedFrame(f"{owner} has no field {shown(extra[0], 40)!r}")
