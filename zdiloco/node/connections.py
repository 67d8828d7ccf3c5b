"""How many connections a server has, and no more: those beyond `net.most_connections` are hung up as they come.

Rule: the library accepts whoever connects, and can close nobody. But it tells the descriptor of each connection that
comes and goes (a monitor for each server socket), and one that is shut down at the system's end is to the library a
peer that has hung up. Only the thread that owns the sockets calls `turn`.
"""

import itertools
import logging
import os
import resource
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

import zmq

from zdiloco.node.clock import Clock
from zdiloco.node.params import NetParams

log = logging.getLogger(__name__)

OWN = 256
"""Descriptors for everything that is no connection."""
EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
PRUNE_S = 1.0
CALM = 0.9
"""Below this share of what may be there, it is told again that there are too many."""
_numbers = itertools.count()


def room_for(most: int) -> int:
    """Make room for the descriptors of so many connections, and of as many more that come within one turn; returns how
    many there is room for, which may be fewer: then that is logged, with both figures."""
    wanted = 2 * most + OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most
    may = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (may, hard))
    room = max(4, (may - OWN) // 2)
    if room < most:
        log.warning(
            "too few descriptors net.most_connections=%d room_for=%d why='this process may have %d (ulimit -Hn)'",
            most, room, may,
        )  # fmt: skip
    return min(room, most)


@dataclass(slots=True, eq=False)
class _Followed:
    """One server socket, what tells of it, and the descriptors of its connections."""

    served: Any
    told: Any
    port: int = 0
    live: set[int] = field(default_factory=set)


class Connections:
    """Those of all server sockets that `follow` was told of. `most`: so many may be there."""

    def __init__(self, context: "zmq.Context[Any]", net: NetParams, clock: Clock) -> None:
        self.most = room_for(net.most_connections)
        self.hung_up = 0
        self._context, self._clock = context, clock
        self._all: list[_Followed] = []
        self._pruned_at = float("-inf")
        self._told = False

    @property
    def count(self) -> int:
        """How many there are, as far as has been told."""
        return sum(len(each.live) for each in self._all)

    def follow(self, served: Any) -> None:
        """Count those of a socket that is about to be bound, from now on."""
        place = f"inproc://zdiloco-connections-{next(_numbers)}"
        served.monitor(place, EVENTS)
        told = self._context.socket(zmq.PAIR)
        told.setsockopt(zmq.LINGER, 0)
        told.setsockopt(zmq.RCVHWM, 0)  # without a bound: the library's own thread would wait for room
        told.connect(place)
        self._all.append(_Followed(served, told))

    def turn(self) -> None:
        """Take in who came and went, and hang up those that are too many."""
        for each in list(self._all):
            if each.served.closed:
                each.told.close(0)
                self._all.remove(each)
            else:
                self._hear(each)
        if self._told and self.count < CALM * self.most:
            self._told = False

    def _hear(self, each: _Followed) -> None:
        while True:
            try:
                event, descriptor = struct.unpack("=HI", each.told.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                return
            if event == zmq.EVENT_DISCONNECTED:
                each.live.discard(descriptor)
                continue
            each.live.add(descriptor)
            if self.count > self.most and self._is_full():
                self._hang_up(each, descriptor)

    def end(self, descriptor: int) -> None:
        """Hang up one that is there, by its descriptor; nothing where it is gone by now."""
        for each in self._all:
            if descriptor in each.live and self._shut(each, descriptor):
                self.hung_up += 1

    def _is_full(self) -> bool:
        """Whether there are too many indeed: a single end that was not told would otherwise count for weeks."""
        now = self._clock()
        if now >= self._pruned_at + PRUNE_S:
            self._pruned_at = now
            for each in self._all:
                each.live = {descriptor for descriptor in each.live if self._shut(each, descriptor, really=False)}
        return self.count > self.most

    def _hang_up(self, each: _Followed, descriptor: int) -> None:
        each.live.discard(descriptor)
        self.hung_up += self._shut(each, descriptor)
        if not self._told:
            self._told = True
            log.warning("connections are hung up most=%d why='net.most_connections'", self.most)

    def _shut(self, each: _Followed, descriptor: int, *, really: bool = True) -> bool:
        """End a connection; `really` false: only see whether it is one of this socket. Returns whether it is."""
        each.port = each.port or int(each.served.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        try:
            copy = os.dup(descriptor)  # by another name of its own: the library may close it at any moment
        except OSError:
            return False
        try:
            made = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            return False
        with made:
            try:
                made.getpeername()
                is_tcp = made.family != socket.AF_UNIX  # its number may be another one's by now
                ours = is_tcp and bool(made.getsockname()[1] == each.port)
                if ours and really:
                    made.shutdown(socket.SHUT_RDWR)
            except OSError:
                return False
        return ours

    def close(self) -> None:
        """Hear no more; before the context ends. Harmless when repeated."""
        for each in self._all:
            each.told.close(0)
        self._all.clear()
