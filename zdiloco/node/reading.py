"""What a process makes of the frames that come in: messages and chunks of peers that are believed, or counts.

Rule: what a peer sends and does not parse is counted, under the name that its key stands for, and that is all; but one
that speaks another version of the protocol is told so in ours, which it cannot read either, and so learns it.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Hello, Unwelcome
from zdiloco.errors import ConfigError, MalformedFrame, PeerError, VersionMismatch
from zdiloco.node.counts import PeerCounts
from zdiloco.node.gate import Gate, Sender
from zdiloco.node.guard import Guard
from zdiloco.node.sockets import Address, Road, address_of
from zdiloco.units import MemberKey
from zdiloco.wire.encoding import decode
from zdiloco.wire.invitations import Join
from zdiloco.wire.transfer import Chunk

log = logging.getLogger("zdiloco.node.roads")

Frames = list[Any]
Answer = Callable[[bytes, Any], None]
"""Tells one connection a message; whoever it says to be, it is not believed, so nothing waits for it."""
FROM_SYNCER = Address(SYNCER, 0, "")


class Arrival(NamedTuple):
    """One decoded message and its payload (None: it has none); `payload` is a read-only view of the frame."""

    key: MemberKey
    message: Any
    payload: memoryview | None


class Letter(NamedTuple):
    """Frames as they came: on which road, from which connection (`identity`, and what that says); `sender`: whose."""

    road: Road
    identity: bytes
    address: Address | None
    sender: Sender | None
    frames: Frames


class Reader:
    """Reads for the roads of one process. `server`: frames come with the identity of their connection, and are judged
    by `guard` and `gate`, where there are such. `version`: what was said in another one, first; empty: nothing."""

    def __init__(
        self, counts: PeerCounts, answer: Answer, *, server: bool, guard: Guard | None = None, gate: Gate | None = None
    ) -> None:  # fmt: skip
        self.strangers: Counter[str] = Counter()
        self.version = ""
        self._counts, self._answer, self._server = counts, answer, server
        self._guard, self._gate = guard, gate
        self._understood = False

    def check_version(self) -> None:
        """Raise ConfigError where nothing but another version of the protocol was ever heard; both are named."""
        if self.version and not self._understood:
            raise ConfigError(self.version)

    def read(self, road: Road, frames: Frames) -> tuple[Arrival, str] | None:
        """What these frames say, and the token of the connection; None: nothing that counts."""
        letter = self._opened(road, frames)
        if not self._is_admitted(letter):
            return None
        address = letter.address
        if address is None or (road is Road.CONTROL and address.stripe):  # words come on no stripe
            self._strange("identity", letter)
            return None
        try:
            message = _message(road, letter.frames)
        except PeerError as error:
            self._malformed(letter, letter.sender.key if letter.sender else address.key, error)
            return None
        if self._server and not self._is_believed(letter, address.key, message):
            return None
        self._counts.down(address.key, letter.frames)
        self._understood = True
        payload = letter.frames[1].buffer if len(letter.frames) == 2 else None
        return Arrival(address.key, message, payload), address.token

    def _opened(self, road: Road, frames: Frames) -> Letter:
        if not self._server:
            return Letter(road, b"", FROM_SYNCER, None, frames)
        identity = frames.pop(0).bytes
        address = address_of(identity)
        return Letter(road, identity, address, self._gate.sender(frames[0], address) if self._gate else None, frames)

    def _is_admitted(self, letter: Letter) -> bool:
        """Whether frames may be read. Who is banned is told so once, for it may be honest and wrong."""
        if self._gate is None or letter.sender is None or self._gate.admits(letter.sender, letter.road, letter.frames):
            return True
        if letter.road is Road.CONTROL and (text := self._gate.to_tell(letter.sender.who)):
            self._answer(letter.identity, Unwelcome(reason="banned", text=text, fatal=False))
        return False

    def _is_believed(self, letter: Letter, key: MemberKey, message: Any) -> bool:
        """Whether whoever sent this is who it says. One that may not is told so where it says hello."""
        why = self._guard.why_silent(letter.frames[0], key.name, message) if self._guard else ""
        if not why and letter.sender and not letter.sender.proven:
            why = f"another key has the name {key.name} with this incarnation"
        if why:
            self._strange("key", letter)
            if isinstance(message, Hello | Join) and letter.road is Road.CONTROL:
                self._answer(letter.identity, Unwelcome(reason="key", text=why, fatal=True))
            return False
        if isinstance(message, Hello) and (message.name, message.incarnation) != key:
            self._strange("hello", letter)  # it speaks for somebody else
            return False
        if self._gate and letter.sender:
            self._gate.believed(letter.sender)
        return True

    def _strange(self, what: str, letter: Letter) -> None:
        self.strangers[what] += 1
        if self._gate and letter.sender:
            self._gate.offends(letter.sender.who, what)

    def _malformed(self, letter: Letter, key: MemberKey, error: PeerError) -> None:
        """Count what is no message; whoever speaks another version is told so."""
        self._counts.down(key, letter.frames)
        other = isinstance(error, VersionMismatch)
        malformed, what = self._counts.of(key).malformed, "version" if other else "frame"
        malformed[what] += 1
        if self._gate and letter.sender:
            self._gate.offends(letter.sender.who, what)
        if not other:
            return
        self.version = self.version or str(error)
        if self._server and letter.road is Road.CONTROL:
            if malformed["version"] == 1:
                log.warning("%s is turned away why=%r", key.name, str(error))
            self._answer(letter.identity, Unwelcome(reason="version", text=str(error), fatal=True))


def _message(road: Road, frames: Frames) -> Any:
    """What a header says. Raises MalformedFrame, VersionMismatch."""
    if not 1 <= len(frames) <= 2:
        raise MalformedFrame(f"{len(frames)} frames; allowed is a header and one payload")
    message = decode(frames[0].buffer)
    words = road in (Road.CONTROL, Road.CONTROL_CAST)
    if isinstance(message, Chunk) != (len(frames) == 2) or words != (len(frames) == 1):
        raise MalformedFrame("a payload belongs to a chunk, and a chunk to the bulk road")
    return message
