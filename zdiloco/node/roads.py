"""Messages and chunks over the sockets of one process: framing, retry queues, and counts of what passed.

Rule: a send never blocks and never raises because of a peer. A control message that the socket refuses waits in a
bounded queue of its peer, the oldest going first over board (the machines repeat what matters); a chunk waits once,
however often the peer asks for it, so what is on offer bounds the queue. What a peer sends and does not parse is
counted, and that is all; but one that speaks another version of the protocol is told so in ours, which it cannot read
either, and so learns it.
"""

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import zmq

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Heartbeat, Hello, Report, StatusQuery, Unwelcome
from zdiloco.errors import ConfigError, MalformedFrame, PeerError, VersionMismatch
from zdiloco.node.sockets import Road, identity_of, key_of
from zdiloco.units import MemberKey
from zdiloco.wire.encoding import decode, encode
from zdiloco.wire.outbox import ChunkOut
from zdiloco.wire.transfer import Chunk

log = logging.getLogger(__name__)

CONTROL_WAITING = 256
"""Most control messages that wait for one peer; above it the oldest is dropped."""
MOST_CHUNKS = 1024
"""Chunks that may wait for one peer before its credits are passed over: it reads nothing, and asks for ever more."""
NEWEST_ONLY = (Hello, Heartbeat, Report, StatusQuery)
"""What says how things are now: of those that wait, only the last one is worth sending."""
MAX_COUNTED = 4096
"""Most peers whose counts are kept: incarnations come and go."""
Frames = list[Any]


class Arrival(NamedTuple):
    """One decoded message and its payload (None: it has none); `payload` is a read-only view of the frame."""

    key: MemberKey
    message: Any
    payload: memoryview | None


@dataclass(slots=True)
class Counts:
    """What passed to and from one peer, all roads together, without broadcasts' copies per listener."""

    frames_up: int = 0
    bytes_up: int = 0
    frames_down: int = 0
    bytes_down: int = 0
    dropped: int = 0
    malformed: Counter[str] = field(default_factory=Counter)


class Roads:
    """The sockets of one process. `server` says whether they are ROUTER and PUB, or DEALER and SUB."""

    def __init__(self, sockets: Mapping[Road, "zmq.Socket[bytes]"], *, server: bool) -> None:
        self.sockets = dict(sockets)
        self.server = server
        self.counts: dict[MemberKey, Counts] = {}
        self.strangers: Counter[str] = Counter()
        self.version = ""
        self._understood = False
        self._control: dict[MemberKey, deque[tuple[type, bytes]]] = {}
        self._bulk: dict[MemberKey, OrderedDict[tuple[str, int], ChunkOut]] = {}

    # ---- receiving

    def receive(self, road: Road, most: int) -> Iterator[Arrival | None]:
        """Yield up to `most` arrivals that are there now; None stands for one that did not parse."""
        for _ in range(most):
            try:  # what an arrival sets off may have put another socket in its place
                frames = self.sockets[road].recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            yield self._parse(road, frames)

    def _parse(self, road: Road, frames: Frames) -> Arrival | None:
        key = SYNCER
        if self.server:
            sender = key_of(frames.pop(0).bytes)
            if sender is None:
                self.strangers["identity"] += 1
                return None
            key = sender
        counts = self.of(key)
        counts.frames_down += len(frames)
        counts.bytes_down += sum(len(frame) for frame in frames)
        try:
            if not 1 <= len(frames) <= 2:
                raise MalformedFrame(f"{len(frames)} frames; allowed is a header and one payload")
            message = decode(frames[0].buffer)
            if self.server and isinstance(message, Hello) and (message.name, message.incarnation) != key:
                self.strangers["hello"] += 1  # it speaks for somebody else
                return None
            if isinstance(message, Chunk) != (len(frames) == 2) or (road in (Road.CONTROL, Road.CONTROL_CAST)) != (
                len(frames) == 1
            ):
                raise MalformedFrame("a payload belongs to a chunk, and a chunk to the bulk road")
        except PeerError as error:
            if isinstance(error, VersionMismatch):
                self._other_version(road, key, error)
            else:
                counts.malformed["frame"] += 1
            return None
        self._understood = True
        return Arrival(key, message, frames[1].buffer if len(frames) == 2 else None)

    def _other_version(self, road: Road, key: MemberKey, error: VersionMismatch) -> None:
        counts = self.of(key)
        counts.malformed["version"] += 1
        self.version = self.version or str(error)
        if self.server and road is Road.CONTROL:
            if counts.malformed["version"] == 1:
                log.warning("%s is turned away why=%r", key.name, str(error))
            self.send(key, Unwelcome(reason="version", text=str(error), fatal=True))

    def check_version(self) -> None:
        """Raise ConfigError where nothing but another version of the protocol was ever heard; both are named."""
        if self.version and not self._understood:
            raise ConfigError(self.version)

    # ---- sending

    def send(self, key: MemberKey, message: Any) -> None:
        """Send a control message to one peer, or queue it behind those that wait."""
        header = encode(message)
        waiting = self._control.get(key)
        kind = type(message)
        if waiting is None:
            if not self._try(Road.CONTROL, key, [header]):
                self._control[key] = deque([(kind, header)])
            return
        if kind in NEWEST_ONLY:
            waiting = self._control[key] = deque(entry for entry in waiting if entry[0] is not kind)
        if len(waiting) >= CONTROL_WAITING:
            waiting.popleft()
            self.of(key).dropped += 1
        waiting.append((kind, header))

    def send_chunks(self, key: MemberKey, chunks: list[ChunkOut]) -> None:
        """Queue chunks for one peer; `flush` sends them. One that waits already keeps its place."""
        if chunks:
            self._bulk.setdefault(key, OrderedDict()).update(((c.transfer, c.index), c) for c in chunks)

    def is_crowded(self, key: MemberKey) -> bool:
        """Whether so many chunks wait for a peer that it should not be given more."""
        return len(self._bulk.get(key, ())) >= MOST_CHUNKS

    def cast(self, message: Any) -> None:
        """Broadcast a control message; whoever does not listen misses it."""
        self._cast(Road.CONTROL_CAST, [encode(message)])

    def cast_chunks(self, chunks: list[ChunkOut]) -> None:
        """Broadcast chunks, in order."""
        for chunk in chunks:
            self._cast(Road.BULK_CAST, [encode(chunk.header), chunk.view])

    def _cast(self, road: Road, frames: Frames) -> None:
        self._count_up(SYNCER, frames)
        self.sockets[road].send_multipart(frames, zmq.NOBLOCK, copy=False)

    def flush(self, most_chunks: int) -> None:
        """Try again what waits: control first, then at most `most_chunks` chunks, the peers in turn.

        Whoever was sent one comes last, in the next call too: so everybody's turn comes, however many there are.
        """
        for key in list(self._control):
            self._flush_control(key)
        turns = deque(self._bulk)
        sent = 0
        while turns and sent < most_chunks:
            key = turns.popleft()
            if not self._send_chunk(key):
                continue
            sent += 1
            if key in self._bulk:
                self._bulk[key] = self._bulk.pop(key)
                turns.append(key)

    def _flush_control(self, key: MemberKey) -> None:
        waiting = self._control[key]
        while waiting and self._try(Road.CONTROL, key, [waiting[0][1]]):
            waiting.popleft()
        if not waiting:
            del self._control[key]

    def _send_chunk(self, key: MemberKey) -> bool:
        """Send the oldest chunk for this peer; False: it must wait."""
        waiting = self._bulk[key]
        oldest = next(iter(waiting.values()))
        if not self._try(Road.BULK, key, [encode(oldest.header), oldest.view]):
            return False
        waiting.popitem(last=False)
        if not waiting:
            del self._bulk[key]
        return True

    def _try(self, road: Road, key: MemberKey, frames: Frames) -> bool:
        """Hand frames to the socket; False: it is full. A peer that is not there any more counts as sent and lost."""
        address = [identity_of(key)] if self.server else []
        try:
            self.sockets[road].send_multipart(address + frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.of(key).dropped += 1
            return True
        self._count_up(key, frames)
        return True

    # ---- state

    def of(self, key: MemberKey) -> Counts:
        """The counts of this peer; of very many peers, those that came last are remembered."""
        found = self.counts.get(key)
        if found is None:
            if len(self.counts) >= MAX_COUNTED:
                del self.counts[next(iter(self.counts))]
            found = self.counts[key] = Counts()
        return found

    def _count_up(self, key: MemberKey, frames: Frames) -> None:
        counts = self.of(key)
        counts.frames_up += len(frames)
        counts.bytes_up += sum(len(frame) for frame in frames)

    @property
    def waiting(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._control or self._bulk)

    @property
    def waiting_roads(self) -> set[Road]:
        """The roads on which something waits."""
        roads = {Road.BULK} if self._bulk else set()
        return roads | ({Road.CONTROL} if self._control else set())

    def forget(self, key: MemberKey) -> None:
        """Drop what waits for a peer and its counts."""
        self._control.pop(key, None)
        self._bulk.pop(key, None)
        self.counts.pop(key, None)

    def drop_transfer(self, key: MemberKey, transfer: str) -> None:
        """Drop the chunks of one transfer that wait for a peer."""
        if key in self._bulk:
            left = OrderedDict((place, chunk) for place, chunk in self._bulk[key].items() if place[0] != transfer)
            self._bulk[key] = left
            if not left:
                del self._bulk[key]

    def drop_everywhere(self, transfer: str) -> None:
        """Drop the chunks of one transfer that wait for anybody: its payload has been let go."""
        for key in list(self._bulk):
            self.drop_transfer(key, transfer)

    def close(self, linger_ms: int) -> None:
        """Close every socket; what lies in them has so long to leave. Harmless when repeated."""
        for socket in self.sockets.values():
            socket.close(linger_ms)
