"""The lanes of a relay: for each learner behind it, two roads upstream under the learner's own identity.

Rule: the syncer sees each learner as itself, so everything that it and the learner promise each other goes through
unchanged, and nothing is acknowledged here. Lanes are bounded in number, and each in the bytes that wait in it.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import zmq

from zdiloco.core.machine import SYNCER
from zdiloco.node.clock import Clock
from zdiloco.node.counts import Counts
from zdiloco.node.entrance import Entrance
from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.relay_roads import lane_roads
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Context
from zdiloco.units import MemberKey
from zdiloco.wire.lane_life import LaneLife, lane_to_give_up, lanes_over, may_come_beside
from zdiloco.wire.outbox import ChunkOut
from zdiloco.wire.transfer import Chunk
from zdiloco.wire.vain import PassedInVain

log = logging.getLogger("zdiloco.node.relay")


@dataclass(slots=True, eq=False, kw_only=True)
class Lane(LaneLife):
    """The way up of one process. `vain`: what both ends have asked each other for, and did not get."""

    roads: Roads
    vain: PassedInVain
    dropped: int = 0

    @property
    def counts(self) -> Counts:
        """What passed on this lane."""
        return self.roads.of(SYNCER)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the chunks that its upstream does not take yet."""
        return self.roads.waiting_bytes

    def say(self, message: object) -> None:
        """Send a message of this learner upstream."""
        if self.hears(message):
            log.info("learner is here name=%s", self.key.name)
        self.roads.send(SYNCER, message)

    def push(self, chunk: Chunk, payload: memoryview) -> None:
        """Send a chunk of this learner upstream, now; it waits where the upstream is full."""
        self.roads.send_chunks(SYNCER, [ChunkOut(SYNCER, chunk.transfer, chunk.index, chunk.checksum, payload)])
        self.roads.flush(1)


@dataclass(slots=True)
class Passed:
    """Sums of lanes that are closed."""

    bytes_up: int = 0
    bytes_down: int = 0
    dropped: int = 0


@dataclass(slots=True, eq=False)
class Lanes:
    """All lanes of a relay, by learner. `opened` and `closed` hear of those that come and go."""

    context: Context
    net: NetParams
    params: RelayParams
    clock: Clock
    opened: Callable[[Lane], None]
    closed: Callable[[Lane], None]
    entrance: Entrance
    passed: Passed = field(default_factory=Passed)
    _lanes: dict[MemberKey, Lane] = field(default_factory=dict)
    _turned_away: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, key: MemberKey) -> Lane | None:
        """The lane of a learner, if it has one."""
        return self._lanes.get(key)

    def open(self, key: MemberKey, now: float) -> Lane | None:
        """The lane of a learner, made now if it has none; None: there is no room for it."""
        lane = self._lanes.get(key)
        if lane is None and self._has_room(key, now):
            try:
                lane = self._lanes[key] = self._lane(key, now)
            except zmq.ZMQError as error:  # no socket, or no descriptor, is free at this moment
                self._turn_away(key, error.strerror or str(error))
                return None
            self._turned_away.discard(key.name)
            self.opened(lane)
        return lane

    def _lane(self, key: MemberKey, now: float) -> Lane:
        roads = lane_roads(self.context, self.entrance, key)
        return Lane(key, now, roads=roads, vain=PassedInVain(self.net.give_up_s))

    def _has_room(self, key: MemberKey, now: float) -> bool:
        """Whether one more may come; where all places are taken, those that nobody counts on are given up for it."""
        most = self.params.most_learners
        while len(self._lanes) >= most and (strange := lane_to_give_up(self, now, self.params.forget_after_s)):
            self.close(strange, "its place is needed")
        if len(self._lanes) < most or may_come_beside(self, key, most):
            return True
        self._turn_away(key, f"relay.most_learners is {most}")
        return False

    def _turn_away(self, key: MemberKey, why: str) -> None:
        if key.name not in self._turned_away and len(self._turned_away) < self.params.most_learners:
            self._turned_away.add(key.name)
            log.warning("learner is turned away name=%s why=%r", key.name, why)

    def sweep(self, now: float) -> None:
        """Close the lanes of those that are gone."""
        for lane, why in lanes_over(self, now, self.params.forget_after_s):
            self.close(lane, why)

    def close(self, lane: Lane, why: str, linger_ms: int = 0) -> None:
        """Hang up upstream for one learner."""
        del self._lanes[lane.key]
        if lane.greeted:
            log.info("learner is gone name=%s why=%r", lane.key.name, why)
        self.passed.bytes_up += lane.counts.bytes_up
        self.passed.bytes_down += lane.counts.bytes_down
        self.passed.dropped += lane.dropped
        self.closed(lane)
        lane.roads.close(linger_ms)
