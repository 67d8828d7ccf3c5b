"""The one thread that owns the sockets of a process: it polls, drains, lets time pass, and sends.

Rule: all inputs are drained before any deadline is judged, so that a stall of this process is never held against
its peers; control comes before bulk, always. What a role raises is our own mistake: it ends the loop, and loudly.
"""

import logging
import math
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from zdiloco.errors import PeerError
from zdiloco.node.clock import Clock
from zdiloco.node.roads import Roads
from zdiloco.node.service import NOBODY, Service
from zdiloco.node.sockets import Road
from zdiloco.node.wake import Wake
from zdiloco.units import MemberKey

log = logging.getLogger(__name__)

CONTROL_AT_ONCE = 1000
BULK_AT_ONCE = 32
"""Chunks received, and sent, before control is looked at again."""
USEFUL = 0.1
"""Of what is taken at once, so much must be worth it, or inputs are as good as drained."""
DRAIN_MAX_S = 1.0
"""Time passes for the machine at least so often, though inputs never end."""
RETRY_S = 0.005
"""A ROUTER cannot say when a peer has room again: it is asked so often."""
IDLE_S = 1.0


class Role(Protocol):
    """What a node does with what arrives; every call comes from the loop's thread."""

    def on_message(self, key: MemberKey, message: Any, now: float) -> None: ...
    def on_chunk(self, key: MemberKey, chunk: Any, payload: memoryview, now: float) -> None: ...
    def on_time(self, now: float) -> None:
        """Inputs are drained: judge deadlines, carry actions out, hand out chunks."""
        ...

    def deadline(self) -> float | None:
        """When `on_time` is due next, in the clock's seconds."""
        ...


class Loop:
    """Runs one role until `stop`; `wake` is how other threads get in.

    `between` is called while inputs do not end: for what must not wait for that, and judges nobody. `guard`: it is
    asked who may connect, and answers before anything else. `service` hears of every turn.
    """

    def __init__(self, roads: Roads, wake: Wake, clock: Clock, service: Service = NOBODY) -> None:
        self.roads = roads
        self.service = service
        self.wake = wake
        self._clock = clock
        self._stop_at: float | None = None
        self.between: Callable[[float], None] = lambda now: None
        self.turns = 0
        self.guard = roads.guard

    def stop(self, drain_s: float) -> None:
        """End the loop when nothing waits to be sent, or after `drain_s`. Called on the loop's thread."""
        if self._stop_at is None:
            self._stop_at = self._clock() + drain_s

    def run(self, role: Role) -> None:
        """Turn until stopped. Raises what the role raises; a peer never makes it raise."""
        while not self._is_over():
            self.step(role)

    def step(self, role: Role) -> None:
        """Wait for something to happen or fall due, and take one turn."""
        self._poll(role)
        self.turn(role)

    def turn(self, role: Role) -> None:
        """Drain all inputs, then let time pass once, then send."""
        began = self._clock()
        self.turns += 1
        while True:
            self._jobs()
            more = self._drain(Road.CONTROL, CONTROL_AT_ONCE, role)
            more |= self._drain(Road.CONTROL_CAST, CONTROL_AT_ONCE, role)
            more |= self._drain(Road.BULK, BULK_AT_ONCE, role)
            more |= self._drain(Road.BULK_CAST, BULK_AT_ONCE, role)
            if not more or self._clock() - began > DRAIN_MAX_S:
                break
            self.between(self._clock())
            self.roads.flush(BULK_AT_ONCE)
        if self.roads.gate:
            self.roads.gate.turn()
        role.on_time(self._clock())
        self.roads.flush(BULK_AT_ONCE)
        self.service.turn(self._clock())

    def _jobs(self) -> None:
        job: Callable[[], None]
        for job in self.wake.drain():
            job()
        if self.guard:
            self.guard.serve()

    def _drain(self, road: Road, most: int, role: Role) -> bool:
        """Take what is there on one road, `most` at once; True: there may be more that counts.

        Where nearly all of it was for nothing it is a flood: the library takes the peers in turn, so it had hardly
        anything else to hand out, and time may pass.
        """
        if road not in self.roads.sockets or (self.roads.server and road in (Road.CONTROL_CAST, Road.BULK_CAST)):
            return False
        taken = useful = 0
        for arrival in self.roads.receive(road, most):
            taken += 1
            if arrival is None:
                continue
            useful += 1
            try:
                if arrival.payload is None:
                    role.on_message(arrival.key, arrival.message, self._clock())
                else:
                    role.on_chunk(arrival.key, arrival.message, arrival.payload, self._clock())
            except PeerError as error:
                self.roads.offends(arrival.key, type(error).__name__)
                log.debug("peer %s: %s", arrival.key.name, error)
        return taken == most and useful >= USEFUL * most

    def _poll(self, role: Role) -> None:
        now = self._clock()
        due = [now + IDLE_S]
        waiting = self.roads.waiting_roads
        if waiting and self.roads.server:
            due.append(now + RETRY_S)
        for moment in (role.deadline(), self._stop_at):
            if moment is not None:
                due.append(moment)
        poller = zmq.Poller()
        poller.register(self.wake.fileno(), zmq.POLLIN)
        if self.guard:
            poller.register(self.guard.socket, zmq.POLLIN)
        for road in self.roads.sockets:
            listens = not (self.roads.server and road in (Road.CONTROL_CAST, Road.BULK_CAST))
            outlets = self.roads.outlets(road) if not self.roads.server and road in waiting else ()
            for socket in self.roads.ends(road):
                flags = (zmq.POLLIN if listens else 0) | (zmq.POLLOUT if socket in outlets else 0)
                if flags:
                    poller.register(socket, flags)
        poller.poll(math.ceil(max(0.0, min(due) - now) * 1000))

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        return not self.roads.waiting or self._clock() >= self._stop_at
