"""Messages and chunks over the sockets of one process: framing, retry queues, and counts of what passed.

Rule: a send never blocks and never raises because of a peer. A control message that the socket refuses waits in a
bounded queue of its peer, the oldest going first over board (the machines repeat what matters); a chunk waits once,
however often the peer asks for it, so what is on offer bounds the queue.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import Any

import zmq

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Heartbeat, Hello, Receipt, Report, StatusQuery
from zdiloco.node.counts import MAX_COUNTED, Counts, PeerCounts
from zdiloco.node.gate import Gate
from zdiloco.node.guard import Guard
from zdiloco.node.reading import Arrival, Frames, Reader
from zdiloco.node.sockets import Road, identity_of
from zdiloco.units import MemberKey
from zdiloco.wire.encoding import encode
from zdiloco.wire.invitations import Join
from zdiloco.wire.outbox import ChunkOut
from zdiloco.wire.stripes import Stripes
from zdiloco.wire.transfer import Credit

CONTROL_WAITING = 256
"""Most control messages that wait for one peer; above it the oldest is dropped."""
MOST_CHUNKS = 1024
"""Chunks that may wait for one peer before its credits are passed over: it reads nothing, and asks for ever more."""
NEWEST_ONLY = (Hello, Heartbeat, Join, Receipt, Report, StatusQuery)
"""What says how things are now: of those that wait, only the last one is worth sending."""


class Offered(Enum):
    """What became of frames that were handed to a socket."""

    TAKEN = auto()
    FULL = auto()
    NOWHERE = auto()
    """The peer is not there, or not on this stripe."""


class Roads:
    """The sockets of one process. `server` says whether they are ROUTER and PUB, or DEALER and SUB.

    `more`: a learner's bulk stripes beyond the first; `most_stripes`: how many of each learner a server tries; `guard`:
    judges what a server is told, by the key of who tells it; `gate`: what of it is read at all.
    `waiting_of`: bytes of chunks that wait to be sent, by transfer; `waiting_bytes`: of all of them.
    """

    def __init__(
        self, sockets: Mapping[Road, "zmq.Socket[bytes]"], *, server: bool, most_stripes: int = 1,
        guard: Guard | None = None, gate: Gate | None = None,
    ) -> None:  # fmt: skip
        self.guard, self.gate = guard, gate
        self.sockets = dict(sockets)
        self.more: list[zmq.Socket[bytes]] = []
        self.server, self.most_stripes = server, most_stripes
        self.counts = PeerCounts()
        self._reader = Reader(self.counts, self._answer, server=server, guard=guard, gate=gate)
        self.waiting_of: Counter[str] = Counter()
        self.waiting_bytes = 0
        self._control: dict[MemberKey, deque[tuple[type, bytes]]] = {}
        self._bulk: dict[MemberKey, OrderedDict[tuple[str, int], ChunkOut]] = {}
        self._stripes: dict[MemberKey, Stripes] = {}
        self._tokens: dict[MemberKey, str] = {}

    def ends(self, road: Road) -> list["zmq.Socket[bytes]"]:
        """The sockets of a road: more than one only where a learner has several bulk stripes, none where it does not
        listen to a broadcast."""
        first = self.sockets.get(road)
        return [first, *(self.more if road is Road.BULK else ())] if first else []

    def outlets(self, road: Road) -> list["zmq.Socket[bytes]"]:
        """Those of a learner that may take the next frames of a road."""
        ends = self.ends(road)
        return [ends[number] for number in self.stripes_of(SYNCER).turns()] if len(ends) > 1 else ends

    # ---- receiving

    def receive(self, road: Road, most: int) -> Iterator[Arrival | None]:
        """Yield up to `most` arrivals that are there now; None stands for one that did not parse."""
        for turn in range(most):
            frames = self._next(road, turn)
            if frames is None:
                return
            yield self._parse(road, frames)

    def _next(self, road: Road, turn: int) -> Frames | None:
        """What is there next on a road, its stripes in turn."""
        ends = self.ends(road)  # what an arrival sets off may have put other sockets in their places
        for number in range(turn, turn + len(ends)):
            with suppress(zmq.Again):
                return ends[number % len(ends)].recv_multipart(zmq.NOBLOCK, copy=False)
        return None

    def _parse(self, road: Road, frames: Frames) -> Arrival | None:
        found = self._reader.read(road, frames)
        if found is None:
            return None
        arrival, token = found
        fresh = isinstance(arrival.message, Hello | Heartbeat)
        if self.server and (fresh or token != self._tokens.get(arrival.key, "")):
            self._remember(arrival.key, token)
        return arrival

    def offends(self, key: MemberKey, why: str) -> None:
        """Count what a peer that is believed has sent and should not have."""
        self.of(key).malformed[why] += 1
        if self.gate:
            self.gate.offends_as(key, why)

    def _answer(self, identity: bytes, message: Any) -> None:
        """Tell one connection, whoever it says to be: it is not believed, so nothing waits for it."""
        with suppress(zmq.ZMQError):
            self.sockets[Road.CONTROL].send_multipart([identity, encode(message)], zmq.NOBLOCK)

    def _remember(self, key: MemberKey, token: str) -> None:
        """From now on this is how a process is reached; of very many, those that were heard last."""
        self._tokens.pop(key, None)
        if len(self._tokens) >= MAX_COUNTED:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[key] = token

    def check_version(self) -> None:
        """Raise ConfigError where nothing but another version of the protocol was ever heard; both are named."""
        self._reader.check_version()

    @property
    def strangers(self) -> Counter[str]:
        """What came from nobody, or from somebody under a name that is not its own, by what was wrong."""
        return self._reader.strangers

    # ---- sending

    def send(self, key: MemberKey, message: Any) -> None:
        """Send a control message to one peer, or queue it behind those that wait."""
        if self.gate and isinstance(message, Credit):
            self.gate.was_asked(key, message.upto - message.received)
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
        if not chunks:
            return
        waiting, stripes = self._bulk.setdefault(key, OrderedDict()), self.stripes_of(key)
        for chunk in chunks:
            place = (chunk.transfer, chunk.index)
            if place in waiting:
                stripes.wake()
            else:
                stripes.asked_again(*place)
            before = waiting.get(place)
            waiting[place] = chunk
            self._waiting_grows(chunk.transfer, chunk.view.nbytes - (before.view.nbytes if before else 0))

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
        self.counts.up(SYNCER, frames)
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
        """Send the oldest chunk for this peer on the next stripe that has room; False: it must wait."""
        waiting, stripes = self._bulk[key], self.stripes_of(key)
        oldest = next(iter(waiting.values()))
        found = self._offer_stripes(key, oldest)
        if found is Offered.NOWHERE and stripes.resting:
            stripes.wake()  # a peer may have fewer than are tried: those that are awake are perhaps no stripes of it
            found = self._offer_stripes(key, oldest)
        if found is Offered.FULL:
            return False
        self.of(key).dropped += found is Offered.NOWHERE
        waiting.popitem(last=False)
        self._waiting_grows(oldest.transfer, -oldest.view.nbytes)
        if not waiting:
            del self._bulk[key]
        return True

    def _offer_stripes(self, key: MemberKey, chunk: ChunkOut) -> Offered:
        """Hand a chunk to the first stripe with room, of those that may carry it. NOWHERE: none of them is there."""
        stripes, result = self.stripes_of(key), Offered.NOWHERE
        frames = [encode(chunk.header), chunk.view]
        for stripe in stripes.turns():
            found = self._offer(Road.BULK, key, frames, stripe)
            if found is Offered.TAKEN:
                stripes.carries(stripe, chunk.transfer, chunk.index)
                return found
            if found is Offered.FULL:
                result = found
        return result

    def _try(self, road: Road, key: MemberKey, frames: Frames) -> bool:
        """Hand frames to the socket; False: it is full. A peer that is not there any more counts as sent and lost."""
        found = self._offer(road, key, frames)
        self.of(key).dropped += found is Offered.NOWHERE
        return found is not Offered.FULL

    def _offer(self, road: Road, key: MemberKey, frames: Frames, stripe: int = 0) -> Offered:
        """Hand frames to the socket, for or on this stripe."""
        socket = self.sockets[road] if self.server else self.ends(road)[stripe]
        address = [identity_of(key, stripe, self._tokens.get(key, ""))] if self.server else []
        try:
            socket.send_multipart(address + frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return Offered.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Offered.NOWHERE
        self.counts.up(key, frames)
        if self.gate and road is Road.BULK:
            self.gate.was_sent(key)
        return Offered.TAKEN

    # ---- state

    def of(self, key: MemberKey) -> Counts:
        """The counts of this peer."""
        return self.counts.of(key)

    def stripes_of(self, key: MemberKey) -> Stripes:
        """The bulk connections to this peer, and which of them rest."""
        found = self._stripes.get(key)
        if found is None:
            if len(self._stripes) >= MAX_COUNTED:
                del self._stripes[next(iter(self._stripes))]
            count = self.most_stripes if self.server else 1 + len(self.more)
            found = self._stripes[key] = Stripes(count)
        return found

    def _waiting_grows(self, transfer: str, nbytes: int) -> None:
        self.waiting_bytes += nbytes
        self.waiting_of[transfer] += nbytes
        if not self.waiting_of[transfer]:
            del self.waiting_of[transfer]

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
        for chunk in self._bulk.pop(key, {}).values():
            self._waiting_grows(chunk.transfer, -chunk.view.nbytes)
        self._stripes.pop(key, None)
        self._tokens.pop(key, None)
        self.counts.pop(key, None)

    def drop_transfer(self, key: MemberKey, transfer: str) -> None:
        """Drop the chunks of one transfer that wait for a peer."""
        if key in self._stripes:
            self._stripes[key].forget(transfer)
        if key in self._bulk:
            waiting = self._bulk[key]
            for place in [place for place in waiting if place[0] == transfer]:
                self._waiting_grows(transfer, -waiting.pop(place).view.nbytes)
            if not waiting:
                del self._bulk[key]

    def drop_everywhere(self, transfer: str) -> None:
        """Drop the chunks of one transfer that wait for anybody: its payload has been let go."""
        for key in list(self._bulk):
            self.drop_transfer(key, transfer)

    def close(self, linger_ms: int) -> None:
        """Close every socket; what lies in them has so long to leave. Harmless when repeated."""
        for socket in (*self.sockets.values(), *self.more):
            socket.close(linger_ms)
        for door in (self.gate, self.guard):
            if door:
                door.close()
