"""The one thread of a relay: it polls the roads of its region, its own upstream, and those of every learner behind it.

Rule: as in `loop.py`: control before bulk, all inputs before time, and nothing that a peer sends ends the loop. What
came in goes out in the same pass, so that a chunk never waits for those behind it.
"""

import logging
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import zmq

from zdiloco.errors import PeerError
from zdiloco.node.clock import Clock
from zdiloco.node.loop import BULK_AT_ONCE, CONTROL_AT_ONCE, DRAIN_MAX_S, IDLE_S, RETRY_S, USEFUL
from zdiloco.node.reading import Arrival
from zdiloco.node.roads import Roads
from zdiloco.node.service import NOBODY, Service
from zdiloco.node.sockets import Road
from zdiloco.node.wake import Wake

log = logging.getLogger(__name__)

Take = Callable[[Road, Arrival, float], None]
"""Called with each arrival of a station: on which road, what, and now."""
FIRST = (Road.CONTROL, Road.CONTROL_CAST)


@dataclass(frozen=True, slots=True, eq=False)
class Station:
    """Roads that the loop listens on, and who takes what arrives there."""

    roads: Roads
    take: Take

    def listens(self, road: Road) -> bool:
        """Whether anything comes in on a road: what is broadcast only goes out at the end that binds."""
        return not (self.roads.server and road in (Road.CONTROL_CAST, Road.BULK_CAST))


class _Source(NamedTuple):
    name: Hashable
    station: Station
    road: Road


class Timed(Protocol):
    """What happens when inputs are drained, and when that is due next."""

    def on_time(self, now: float) -> None: ...
    def deadline(self) -> float: ...


class RelayLoop:
    """Runs until `stop`. Stations come and go while it runs; all calls but `wake.post` come from its thread. `service`
    hears of every turn."""

    def __init__(self, wake: Wake, clock: Clock, service: Service = NOBODY) -> None:
        self._wake, self._clock, self._service = wake, clock, service
        self._stations: dict[Hashable, Station] = {}
        self._sources: dict[Any, _Source] = {}
        self._poller = zmq.Poller()
        self._poller.register(wake.fileno(), zmq.POLLIN)
        self._stop_at: float | None = None

    def add(self, name: Hashable, station: Station) -> None:
        """Listen to a station, too."""
        self._stations[name] = station
        for road in station.roads.sockets:
            for socket in station.roads.ends(road) if station.listens(road) else ():
                self._sources[socket] = _Source(name, station, road)
                self._poller.register(socket, zmq.POLLIN)

    def remove(self, name: Hashable) -> None:
        """Listen to a station no more; its sockets are the caller's to close."""
        station = self._stations.pop(name)
        for socket in [socket for road in station.roads.sockets for socket in station.roads.ends(road)]:
            if self._sources.pop(socket, None) is not None:
                self._poller.unregister(socket)

    def anew(self, name: Hashable, dial: Callable[[], None]) -> None:
        """Have `dial` put other sockets in the places of a station's, and listen to those from now on."""
        station = self._stations[name]
        self.remove(name)
        dial()
        self.add(name, station)

    def look_at(self, socket: Any) -> None:
        """Let time pass, too, when something comes in on a socket that no station reads; `on_time` takes it in."""
        self._poller.register(socket, zmq.POLLIN)

    def look_away(self, socket: Any) -> None:
        """No more, before it is closed."""
        self._poller.unregister(socket)

    def stop(self, drain_s: float) -> None:
        """End the loop when nothing waits to be sent, or after `drain_s`."""
        if self._stop_at is None:
            self._stop_at = self._clock() + drain_s

    def run(self, timed: Timed) -> None:
        """Turn until stopped. Raises what is our own mistake; a peer never makes it raise."""
        while not self._is_over():
            self._turn(self._ready(self._wait_s(timed)), timed)

    def _turn(self, ready: list[_Source], timed: Timed) -> None:
        began = self._clock()
        while True:
            for job in self._wake.drain():
                job()
            floods = [self._drain(source, CONTROL_AT_ONCE) for source in ready if source.road in FIRST]
            floods += [self._drain(source, BULK_AT_ONCE) for source in ready if source.road not in FIRST]
            self._flush()
            if not ready or any(floods) or self._clock() - began > DRAIN_MAX_S:
                break
            ready = self._ready(0.0)
        timed.on_time(self._clock())
        self._flush()
        self._service.turn(self._clock())

    def _drain(self, source: _Source, most: int) -> bool:
        """Take what is there at one source, `most` at once; True: nearly all was for nothing (as `Loop._drain`)."""
        name, station, road = source
        if self._stations.get(name) is not station:
            return False  # what came in at another one in this pass has ended it, and its sockets are closed
        taken = useful = 0
        for arrival in station.roads.receive(road, most):
            taken += 1
            if arrival is None:
                continue
            useful += 1
            try:
                station.take(road, arrival, self._clock())
            except PeerError as error:
                station.roads.offends(arrival.key, type(error).__name__)
                log.debug("peer %s: %s", arrival.key.name, error)
        return taken == most and useful < USEFUL * most

    def _flush(self) -> None:
        for station in list(self._stations.values()):
            if station.roads.waiting:
                station.roads.flush(BULK_AT_ONCE)

    def _wait_s(self, timed: Timed) -> float:
        now = self._clock()
        due = [now + IDLE_S, timed.deadline()]
        if any(station.roads.server and station.roads.waiting for station in self._stations.values()):
            due.append(now + RETRY_S)
        if self._stop_at is not None:
            due.append(self._stop_at)
        return max(0.0, min(due) - now)

    def _ready(self, wait_s: float) -> list[_Source]:
        """Wait until something comes in, or what waits may go out, at most so long; say where something came in."""
        full = [
            socket
            for station in self._stations.values()
            if not station.roads.server
            for road in station.roads.waiting_roads
            for socket in station.roads.outlets(road)
        ]
        for socket in full if wait_s else ():
            self._poller.modify(socket, zmq.POLLIN | zmq.POLLOUT)
        events = self._poller.poll(math.ceil(wait_s * 1000))
        for socket in full if wait_s else ():
            self._poller.modify(socket, zmq.POLLIN)
        came = [self._sources.get(socket) for socket, event in events if event & zmq.POLLIN]
        return [source for source in dict.fromkeys(came) if source is not None]

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        waiting = any(station.roads.waiting for station in self._stations.values())
        return not waiting or self._clock() >= self._stop_at
