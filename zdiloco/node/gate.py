"""Whose a frame is, and whether it is read: what stands between the sockets of a server and its parsers.

Rule: who has a key is judged by that key, whatever name its frames bear; a relay's key by the name of each learner that
it speaks for, so that one of them cannot have the others banned. Without keys there is only the routing identity.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import zmq

from zdiloco.node.allowed import ASKS, Right
from zdiloco.node.clock import Clock
from zdiloco.node.connections import Connections
from zdiloco.node.guard import Guard
from zdiloco.node.limits import Limits
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Address, Road
from zdiloco.units import MemberKey

STRANGER = "a stranger"
"""The account of all whose identity no process of ours has, where there are no keys."""
MOST_KNOWN = 4096


class Sender(NamedTuple):
    """Whose account a frame is on (`who`), and as whom it is counted if it is no message (`key`). `proven`: it may bear
    the name that it bears."""

    who: str
    key: MemberKey
    proven: bool


class Gate:
    """The gate of one server's roads. `limits`: the accounts behind it; `connections`: those of its sockets."""

    def __init__(
        self, net: NetParams, guard: Guard | None, clock: Clock, connections: Connections | None = None
    ) -> None:  # fmt: skip
        self.limits, self.connections = Limits(net, clock()), connections
        self._guard, self._clock = guard, clock
        self._who: dict[MemberKey, str] = {}

    def sender(self, frame: Any, address: Address | None) -> Sender:
        """Whose this frame is, of a message under this routing identity (None: one that no process of ours has)."""
        if self._guard is None:
            if address is None:
                return Sender(STRANGER, MemberKey(STRANGER, 0), False)
            return Sender(f"{address.key.name}:{address.key.incarnation:016x}", address.key, True)
        owner = self._guard.owner_of(frame) or STRANGER
        if address is None:
            return Sender(owner, MemberKey(owner, 0), False)
        key = address.key
        if key.name == owner:
            return Sender(owner, key, True)
        entry = self._guard.allowed.entries.get(owner)
        relays = entry is not None and Right.RELAY in entry.rights
        if relays and key.name == Right.RELAY:
            return Sender(owner, key, self._who.get(key, owner) == owner)  # its number is another relay's, or nobody's
        who = f"{owner}/{key.name}" if relays else owner
        proven = key.name == ASKS or (entry is not None and entry.relays(key.name))
        return Sender(who, key if proven else MemberKey(owner, key.incarnation), proven)

    def admits(self, sender: Sender, road: Road, frames: Sequence[Any]) -> bool:
        """Whether these frames may be parsed; if not they are counted, and nothing more is done with them."""
        now, limits = self._clock(), self.limits
        if limits.is_banned(sender.who):
            if self.connections and limits.is_loud(sender.who):
                self.connections.end(frames[0].get(zmq.SRCFD))
            return False
        if road is Road.CONTROL:
            return limits.takes_word(sender.who, now)
        return limits.takes_chunk(sender.who, sum(len(frame) for frame in frames[1:]), now)

    def believed(self, sender: Sender) -> None:
        """It is who it says: what it is sent and asked for from now on is on this account."""
        if self._who.get(sender.key) == sender.who:
            return
        if len(self._who) >= MOST_KNOWN:
            del self._who[next(iter(self._who))]
        self._who[sender.key] = sender.who

    def offends(self, who: str, why: str) -> None:
        """Whoever has this account broke a rule."""
        self.limits.offends(who, why, self._clock())

    def offends_as(self, key: MemberKey, why: str) -> None:
        """As `offends`, where only the process is known, by what was believed of it."""
        if who := self._who.get(key):
            self.offends(who, why)

    def was_sent(self, key: MemberKey) -> None:
        """One chunk went to this process."""
        if who := self._who.get(key):
            self.limits.was_sent(who)

    def was_asked(self, key: MemberKey, nbytes: int) -> None:
        """This process was asked for so many bytes."""
        if who := self._who.get(key):
            self.limits.was_asked(who, max(0, nbytes))

    def turn(self) -> None:
        """Time has passed: release whose ban is over, and hang up those that are too many."""
        self.limits.sweep(self._clock())
        if self.connections:
            self.connections.turn()

    def close(self) -> None:
        """Before the context ends."""
        if self.connections:
            self.connections.close()

    def to_tell(self, who: str) -> str:
        """What this account is to be told of its ban, once; empty: nothing."""
        return self.limits.to_tell(who, self._clock())

    def release_all(self) -> None:
        """Read everybody again."""
        self.limits.release_all(self._clock())

    def status(self) -> dict[str, Any]:
        """What was dropped, who is banned, and how many connections there are."""
        made = self.connections
        there = {"there": made.count, "most": made.most, "hung_up": made.hung_up} if made else {}
        return {**self.limits.status(self._clock()), "connections": there}
