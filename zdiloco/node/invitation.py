"""An invitation as one line: where the syncer is, by which key it is known, and a key that is good for one joining.

Rule: whoever has the line can join under its name, once, so it is handed on like a password. A line that was cut off or
altered on its way is recognised as such.
"""

import base64
import binascii
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec
import xxhash
import zmq
from zmq.utils import z85

from zdiloco.errors import ConfigError
from zdiloco.knobs import check_name
from zdiloco.node.keys import Pair, is_key
from zdiloco.node.params import NetParams

PREFIX, SUM_BYTES = "zdiloco1-", 8
MOST_CHARS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """What the line holds: `host` and `port` to dial, the `run` and the `name` to join under, the syncer's public key
    (`server`) and the secret half of the pair that is good once, both in Z85."""

    host: str
    port: int
    run: str
    name: str
    server: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigError for what cannot be."""
        NetParams(connect=self.host, port=self.port)
        check_name(self.run, "the run of an invitation")
        check_name(self.name, "the name of an invitation")
        if not (is_key(self.server) and is_key(self.secret)):
            raise ConfigError("a key of the invitation is none")

    @property
    def pair(self) -> Pair:
        """The pair that is good once."""
        secret = self.secret.encode()
        return Pair(zmq.curve_public(secret), secret)


def to_line(invitation: Invitation) -> str:
    """The invitation as a line of letters, digits, - and _."""
    keys = [z85.decode(key) for key in (invitation.server, invitation.secret)]
    said = msgspec.msgpack.encode([invitation.host, invitation.port, invitation.run, invitation.name, *keys])
    return _line_of(xxhash.xxh3_64_digest(said) + said)


def _line_of(data: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def from_line(line: str) -> Invitation:
    """What `to_line` was given. Raises ConfigError for anything else."""
    text = "".join(line.split())  # a mail may have broken it
    if not text.startswith(PREFIX):
        _wrong(f"it begins with {PREFIX!r}")
    if len(text) > MOST_CHARS:
        _wrong("it is shorter")
    try:
        data = base64.b64decode(text[len(PREFIX) :] + "=" * (-(len(text) - len(PREFIX)) % 4), b"-_", validate=True)
        said = data[SUM_BYTES:]
        if xxhash.xxh3_64_digest(said) != data[:SUM_BYTES] or _line_of(data) != text:  # its last bits may be no one's
            _wrong("some of it is missing or altered")
        host, port, run, name, server, secret = msgspec.msgpack.decode(
            said, type=tuple[str, int, str, str, bytes, bytes]
        )
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        _wrong("some of it is missing or altered")
    keys = [z85.encode(key).decode() if len(key) == 32 else "" for key in (server, secret)]
    return Invitation(host=host, port=port, run=run, name=name, server=keys[0], secret=keys[1])


def _wrong(why: str) -> NoReturn:
    what = f"this is not the whole line that zdiloco invite has printed: {why}"
    raise ConfigError(f"{what}; copy all of it, or ask for another one") from None
