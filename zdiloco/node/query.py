"""Asks a syncer how its run is: what `zdiloco status` shows.

Rule: a query belongs to no run and needs no file; it dials control and bulk, and ends in an answer or in LinkError.
"""

from typing import Any

import zmq

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Status, StatusQuery
from zdiloco.errors import ConfigError, LinkError
from zdiloco.node.clock import Clock, monotonic
from zdiloco.node.dialler import Dialler
from zdiloco.node.entrance import entrance_of
from zdiloco.node.loop import Loop
from zdiloco.node.params import NetParams
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import check_library, new_incarnation
from zdiloco.node.transfers import Transfers
from zdiloco.node.wake import Wake
from zdiloco.units import MemberKey
from zdiloco.wire.bodies import decode_map

MAX_STATUS_BYTES = 2**26
ASK_AGAIN_S = 1.0


class Query:
    """One question to one syncer. `ask` may be called again and again over the same connection. `name`: whose key in
    `net.keys` is ours, where that is not said there."""

    def __init__(self, net: NetParams, *, name: str = "", clock: Clock = monotonic) -> None:
        check_library()
        self._net, self._clock = net, clock
        self._wake = Wake()
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._open(net, name)
        except BaseException:
            self.close()
            raise
        self._answer: dict[str, Any] | None = None
        self._question = StatusQuery()
        self._coming = ""
        self._asked_at = float("-inf")
        self._ends = float("inf")

    def _open(self, net: NetParams, name: str) -> None:
        key = MemberKey("status", new_incarnation())
        self._roads = Roads({}, server=False)
        self._dialler = Dialler(self._roads, self._context, entrance_of(net, name))
        self._dialler.dial_lane(key)
        self._loop = Loop(self._roads, self._wake, self._clock)
        params = net.inbox(MAX_STATUS_BYTES)
        self._transfers = Transfers(self._roads, params, self._arrived, self._lost, keeps_early=False)

    def ask(self, timeout_s: float, *, layout: bool = False, relay: bool = False) -> dict[str, Any]:
        """Return the syncer's status, or with `layout` that of its run; with `relay` that of a relay, if it is one.

        Raises LinkError where no answer comes within `timeout_s`, ConfigError where it has another protocol version or
        does not let us in.
        """
        self._question = StatusQuery(layout=layout, relay=relay)
        self._let_go()  # what the question before this one was still waiting for
        self._answer, self._asked_at, self._ends = None, float("-inf"), self._clock() + timeout_s
        while self._clock() < self._ends:
            self._loop.step(self)
            self._roads.check_version()
            if why := self._dialler.why_refused():
                raise ConfigError(why)
            found = self._found()
            if found is not None:
                return found
        place = f"{self._net.connect}:{self._net.port}"
        raise LinkError(f"no syncer answers at {place} within {timeout_s:g} s: does it run, is the port right?")

    def _let_go(self) -> None:
        """Nothing is on its way any more."""
        if self._coming:
            self._transfers.release(SYNCER, self._coming, self._clock())
            self._coming = ""

    def _found(self) -> dict[str, Any] | None:
        return self._answer

    def close(self) -> None:
        """Hang up; harmless when repeated."""
        self._context.destroy(0)  # with every socket of it, and what follows the handshakes
        self._wake.close()

    def __enter__(self) -> "Query":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what the loop brings

    def on_message(self, key: MemberKey, message: Any, now: float) -> None:
        """A control message came in."""
        if not self._transfers.on_message(key, message, now) and isinstance(message, Status):
            self._let_go()  # the question was heard twice: of its answers the syncer keeps the last one
            self._coming = message.body.transfer
            self._transfers.expect(key, message.body, now)

    def on_chunk(self, key: MemberKey, chunk: Any, payload: memoryview, now: float) -> None:
        """A chunk came in."""
        self._transfers.on_chunk(key, chunk, payload, now)

    def on_time(self, now: float) -> None:
        """Ask again where no answer has come, nor is on its way."""
        if now >= self._asked_at + ASK_AGAIN_S and not self._coming:
            self._asked_at = now
            self._roads.send(SYNCER, self._question)
        self._transfers.turn(now)

    def deadline(self) -> float | None:
        """When to look again at the latest."""
        due = self._transfers.deadline()
        ask_at = self._ends if self._coming else self._asked_at + ASK_AGAIN_S
        return min(self._ends, ask_at, due if due is not None else self._ends)

    def _arrived(self, key: MemberKey, transfer: str, now: float) -> None:
        data, self._coming = self._transfers.inbox.take(key, transfer), ""
        try:
            self._answer = decode_map(data, MAX_STATUS_BYTES)
        finally:
            self._transfers.release(key, transfer, now)

    def _lost(self, key: MemberKey, transfer: str, reason: str, now: float) -> None:
        if transfer == self._coming:
            self._coming, self._asked_at = "", float("-inf")
