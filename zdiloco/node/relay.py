"""A relay: the learners of a region dial it as they dial a syncer, and what is published crosses the far link once.

Rule: everything that syncer and learners say to each other goes through unchanged, under each learner's own identity;
nothing is acknowledged, decided or merged here, so a relay may die, return, be stacked or be left out. Broadcasts are
passed on as they come; what a learner lacks of them, and whole states, it gets from the cache where it can.
"""

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Hello, StatusQuery, Unwelcome, Update
from zdiloco.errors import ConfigError, MachineError, ZdilocoError
from zdiloco.node.clock import Clock, monotonic
from zdiloco.node.connections import Connections
from zdiloco.node.gate import Gate
from zdiloco.node.guard import guard_of
from zdiloco.node.keys import keys_of
from zdiloco.node.knock import knock
from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.reading import Arrival
from zdiloco.node.relay_far import STATION, FarLink
from zdiloco.node.relay_lanes import Lane, Lanes, Passed
from zdiloco.node.relay_loop import RelayLoop, Station
from zdiloco.node.relay_roads import credited, most_sockets, open_descriptors, region_again, region_roads
from zdiloco.node.relay_status import NAME, Answers
from zdiloco.node.service import NOBODY, Service
from zdiloco.node.sockets import Road, cast_hwm, check_library, is_connected, new_incarnation, widen
from zdiloco.node.wake import Wake
from zdiloco.units import MemberKey
from zdiloco.wire.cache import UPSTREAM, Cache
from zdiloco.wire.lag import Lag
from zdiloco.wire.outbox import ChunkOut, Outbox
from zdiloco.wire.transfer import Credit, Gone

if TYPE_CHECKING:
    from zdiloco.node.premerge import Premerge, Terms

log = logging.getLogger(__name__)

STOP_DRAIN_S = 1.0
LINGER_MS = 300
FIRST_NOTICE_S = 1.0
SWEEP_S = 1.0
LOOK_S = 0.1
"""How often a relay without an upstream looks whether it is there."""


class RelayNode:
    """One relay process: binds its ports and dials upstream; then `run` blocks until it is told to leave.

    Raises ConfigError (a port in use, an address that may not be bound, too few descriptors).
    """

    def __init__(
        self, net: NetParams, params: RelayParams, *, terms: "Terms | None" = None, clock: Clock = monotonic,
        service: Service = NOBODY,
    ) -> None:  # fmt: skip
        check_library()
        self.net, self.params, self.clock, self._service = net, params, clock, service
        self.region_net = params.region(net)
        self.key = MemberKey(NAME, new_incarnation())
        self.started_at = clock()
        self.cache = Cache(net.inbox(params.cache_bytes), idle_s=2 * net.stall_s)
        self.lag = Lag()
        self.connected, self.lost, self.dropped = False, 0, 0
        self.reason = "not started"
        self.failure: BaseException | None = None
        self._noticed = self._closed = self._stop_asked = False
        self._outbox = Outbox()
        self._answers = Answers(self, self._outbox)
        self.region_passed = Passed()
        self._sweep_at = clock() + SWEEP_S
        open_descriptors(net, params)
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, most_sockets(net, params))
        self.wake = Wake()
        try:
            self._open(terms)
        except BaseException:
            self._context.destroy(0)  # with every socket of it
            self.wake.close()
            raise

    def _open(self, terms: "Terms | None") -> None:
        keys = keys_of(self.net, NAME)
        guard = guard_of(self._context, self.net, keys)
        gate = Gate(self.net, guard, self.clock, Connections(self._context, self.net, self.clock))
        self.region = region_roads(self._context, self.region_net, gate, guard)
        if guard:
            knock(guard, self.region.sockets.values())
        self.far = FarLink(self._context, self.net, self.key, self.cache, keys)
        self.up = self.far.roads
        entrance = self.far.lanes_entrance
        self.lanes = Lanes(self._context, self.net, self.params, self.clock, self._opened, self._forget, entrance)
        self._loop = RelayLoop(self.wake, self.clock, self._service)
        self.premerge = self._premerge(terms) if terms and self.params.premerge else None
        self._loop.add("region", Station(self.region, self._from_region))
        self._loop.add(STATION, Station(self.up, self._from_upstream))
        self._loop.look_at(self.region.sockets[Road.BULK_CAST])
        if self.region.guard:
            self._loop.look_at(self.region.guard.socket)

    def _premerge(self, terms: "Terms") -> "Premerge":
        from zdiloco.node.premerge import Premerge  # loads torch, which a relay that only passes on can do without

        return Premerge(self, terms)

    def fail(self, error: BaseException) -> None:
        """End loudly: a thread of this relay has failed; from any thread."""
        self.failure = self.failure or error
        self.wake.post(lambda: self._loop.stop(0.0))

    # ---- the life of the process

    def run(self) -> int:
        """Relay until `stop`; returns the exit code. Raises what made it fail: ConfigError where upstream speaks
        another version of the protocol."""
        net, params = self.net, self.params
        log.info("relay serves listen=%s port=%d upstream=%s:%d", params.listen, params.port, net.connect, net.port)
        try:
            self._loop.run(self)
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            self._service.stops(str(self.failure or self.reason))
            self.close()
        if self.failure is None:
            log.info("relay ends why=%r", self.reason)
            return 0
        if isinstance(self.failure, ZdilocoError) or not isinstance(self.failure, Exception):
            raise self.failure
        raise MachineError(f"the relay failed: {self.failure!r}") from self.failure

    def stop(self, reason: str) -> None:
        """Have it leave; from any thread or signal handler, harmless when repeated."""
        if not self._stop_asked:
            self._stop_asked, self.reason = True, reason
            self.wake.post(lambda: self._loop.stop(STOP_DRAIN_S if self.connected else 0.0))

    def look_again(self) -> None:
        """Read anew who may connect; as `SyncerNode.look_again`."""
        self.wake.post(self._service.reloads)
        self.wake.post(self._look_again)

    def _look_again(self) -> None:
        guard = self.region.guard
        if self.region.gate:
            self.region.gate.release_all()
        if guard is None:
            log.warning("there are no keys (net.keys): nothing to read anew")
        elif guard.reload():
            self._shut_out()

    def _shut_out(self) -> None:
        """Every connection of the region is made anew."""
        self._loop.look_away(self.region.sockets[Road.BULK_CAST])
        self._loop.anew("region", partial(region_again, self._context, self.region_net, self.region, self.clock))
        self._loop.look_at(self.region.sockets[Road.BULK_CAST])

    def close(self) -> None:
        """Let go of everything; `run` does so at its end. Harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self.premerge:
            self.premerge.close()
        for lane in list(self.lanes):
            self.lanes.close(lane, "the relay ends", 0 if self.failure else LINGER_MS)
        linger_ms = 0 if self.failure else LINGER_MS
        self.far.close(linger_ms)
        self.region.close(linger_ms)
        self._context.term()
        self.wake.close()

    def start(self) -> threading.Thread:
        """Run on a thread of its own; `failure` says afterwards how it went."""

        def quietly() -> None:
            try:
                self.run()
            except ZdilocoError:
                log.exception("the relay failed")

        thread = threading.Thread(target=quietly, name="zdiloco-relay", daemon=True)
        thread.start()
        return thread

    # ---- from the learners

    def _from_region(self, road: Road, arrival: Arrival, now: float) -> None:
        key, message, payload = arrival
        lane = self.lanes.get(key)
        if lane is not None:
            lane.heard_at = now
        if payload is not None:
            if self.premerge and self.premerge.on_chunk(key, message, payload, now):
                return
            lane = lane or self._lane_of(key, message, now)
            if lane is not None and self._may_wait(lane.waiting_bytes + payload.nbytes, lane):
                lane.push(message, payload)
            return
        if isinstance(message, StatusQuery) and message.relay:
            self._answers.say(key, now)
            return
        transfer = message.transfer if isinstance(message, Credit | Gone) else None
        if transfer not in self._outbox:  # only who has a lane is served: what is known of it goes with the lane
            lane = lane or self._lane_of(key, message, now)
            if lane is None:
                return
        served = isinstance(message, Credit | Gone) and self._served_here(key, message, now)
        if not served and lane is not None:
            self.lag.said(key, message)
            if isinstance(message, Credit):
                lane.vain.down.credited(message)
            lane.say(message)
            if self.premerge:
                self.premerge.said(key, message, now)

    def _lane_of(self, key: MemberKey, message: object, now: float) -> Lane | None:
        """The lane of a learner, opened now; one that cannot be taken in is told so when it says hello."""
        lane = self.lanes.open(key, now)
        if lane is None and isinstance(message, Hello):
            text = f"the relay it dials has {self.params.most_learners} learners (relay.most_learners)"
            self.region.send(key, Unwelcome(reason="room", text=text, fatal=False))
        return lane

    def _may_wait(self, waiting_bytes: int, lane: Lane) -> bool:
        """Whether a chunk may queue up; what is over the bounds is dropped and counted, and will be asked for again."""
        mine = waiting_bytes <= 2 * self.net.window_bytes + self.net.chunk_bytes
        if mine and self.waiting_bytes <= self.params.budget_bytes:
            return True
        lane.dropped += 1
        return False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of chunks that wait, both ways, besides those that the cache counts."""
        waiting = self.region.waiting_of.items()
        down = sum(nbytes for transfer, nbytes in waiting if transfer not in self.cache)
        return down + sum(lane.waiting_bytes for lane in self.lanes)

    def _served_here(self, key: MemberKey, message: Credit | Gone, now: float) -> bool:
        """Answer a word about a transfer whose bytes are here. False: it is for others to answer."""
        mine = message.transfer in self._outbox
        if isinstance(message, Gone):
            known = not message.by_sender and (mine or self.cache.on_gone(key, message))
            if known:
                self.region.drop_transfer(key, message.transfer)
            return known
        credited(self.region, key, message)
        if self.region.is_crowded(key):  # an honest receiver asks again
            self.dropped += 1
            return mine or message.transfer in self.cache
        chunks = self._outbox.on_credit(key, message) if mine else self.cache.on_credit(key, message, now)
        if chunks is None or isinstance(chunks, Gone):
            return False
        self._send_chunks(chunks)
        return True

    def _send_chunks(self, chunks: list[ChunkOut]) -> None:
        """Send each chunk to the learner that it is for."""
        for chunk in chunks:
            assert isinstance(chunk.peer, MemberKey)
            self.region.send_chunks(chunk.peer, [chunk])
            if self.lanes.get(chunk.peer) is not None:
                followed = self.lag.of(chunk.peer)
                followed.repaired_chunks += 1
                followed.repaired_bytes += chunk.view.nbytes

    # ---- from upstream

    def _from_upstream(self, road: Road, arrival: Arrival, now: float) -> None:
        """What is broadcast, and what this relay has asked for itself."""
        _, message, payload = arrival
        if payload is not None:
            if self.premerge and self.premerge.layout.on_chunk(message, payload, now):
                return
            cast = road is Road.BULK_CAST
            if cast:
                chunk = ChunkOut(None, message.transfer, message.index, message.checksum, payload)
                self.region.cast_chunks([chunk])
            self._send_chunks(self.cache.on_chunk(message, payload, now, early=cast))
        elif road is Road.CONTROL_CAST:
            self._heard(message, now)
            self.region.cast(message)
            if self.premerge:
                self.premerge.broadcast(message)
        elif self.premerge and self.premerge.told(message, now):
            return
        elif isinstance(message, Gone) and message.by_sender:
            self.cache.on_upstream_gone(message)

    def _from_lane(self, lane: Lane, arrival: Arrival, now: float) -> None:
        """What is for one learner."""
        _, message, payload = arrival
        if payload is None:
            self._heard(message, now)
            if isinstance(message, Credit):
                credited(lane.roads, SYNCER, message)
                lane.vain.up.credited(message)
            if not (self.premerge and self.premerge.heard(lane.key, message, now)):
                self.region.send(lane.key, message)
        elif self._may_wait(0, lane):
            chunk = ChunkOut(lane.key, message.transfer, message.index, message.checksum, payload)
            self.region.send_chunks(lane.key, [chunk])

    def _heard(self, message: object, now: float) -> None:
        """Take note of what the syncer says; of an announced state the body is to be here."""
        self.lag.published(message)
        if not isinstance(message, Update):
            return
        if not message.full:  # the marks count messages, and the chunks of a whole state are smaller, and not broadcast
            mark = cast_hwm(message.body.nbytes, message.body.chunk_bytes)
            widen(self.region.sockets[Road.BULK_CAST], mark)
            self.far.widen(mark)
        self._send_chunks(self.cache.announce(message, now, comes=self.far.taken))

    def _opened(self, lane: Lane) -> None:
        self._loop.add(lane.key, Station(lane.roads, lambda road, arrival, now: self._from_lane(lane, arrival, now)))

    def _forget(self, lane: Lane) -> None:
        self._loop.remove(lane.key)
        self.cache.forget_peer(lane.key)
        self.lag.forget(lane.key)
        if self.premerge:
            self.premerge.gone(lane.key)
        counts = self.region.of(lane.key)
        self.region_passed.bytes_up += counts.bytes_up
        self.region_passed.bytes_down += counts.bytes_down
        self.region.forget(lane.key)

    # ---- time

    def on_time(self, now: float) -> None:
        """Inputs are drained: fetch what is missing, and see who is gone."""
        if self.region.gate:
            self.region.gate.turn()
        if self.region.guard:
            self.region.guard.serve()
            if self.region.guard.expired():
                self._shut_out()
        if why := self.far.why_refused():
            raise ConfigError(why)
        self.far.turn(self._loop, self.region.sockets[Road.BULK_CAST], now)
        turn = self.cache.turn(now)
        for message in turn.upstream:
            self.up.send(SYNCER, message)
        for peer, gone in turn.gone:
            assert isinstance(peer, MemberKey)
            self.region.send(peer, gone)
        for transfer in self.cache.dropped:
            self.region.drop_everywhere(transfer)
        self.cache.dropped.clear()
        if self.premerge:
            self.premerge.turn(now)
        self._look_upstream(now)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self.lanes.sweep(now)
            self.far.look_at(self.lanes, self._loop, now)
            for roads in (self.up, *(lane.roads for lane in self.lanes)):
                roads.check_version()

    def deadline(self) -> float:
        """When `on_time` is due next."""
        look_at = self._sweep_at if self.connected else min(self._sweep_at, self.clock() + LOOK_S)
        due = [self.cache.deadline(), self.premerge.deadline() if self.premerge else None]
        return min([look_at, *(at for at in due if at is not None)])

    def _look_upstream(self, now: float) -> None:
        connected = is_connected(self.up.sockets[Road.CONTROL])
        place = f"{self.net.connect}:{self.net.port}"
        if connected and not self.connected:
            log.info("upstream is found at=%s", place)
            self.cache.inbox.resume(UPSTREAM, now)
        elif self.connected and not connected:
            self.lost += 1
            log.warning("upstream is lost at=%s learners=%d", place, len(self.lanes))
        elif not connected and not self._noticed and now > self.started_at + FIRST_NOTICE_S:
            self._noticed = True
            log.warning("relay waits for its upstream at=%s", place)
        self.connected = connected
