"""Links in virtual time: latency, jitter, bandwidth, loss, and roads that are cut or hold back what they carry.

Rule: each way of a link is one serial road of bytes for bodies; words go beside them on a connection of their own
(their bytes are counted), and nothing overtakes another on the same connection. A region shares one trunk.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from zdiloco.units import MemberKey
from zdiloco.wire.stripes import Stripes

Place = tuple[str, int, MemberKey | None]
"""A chunk that waits: its transfer, its number, and for whom it goes by a relay's link (None: broadcast)."""
MOST_HELD = 1_000
"""Words and chunks that a road holds back; beyond that they are lost, as at a full queue."""
SWALLOWS = 8
"""Chunks that a dead stripe takes before it is full."""


class Passage(StrEnum):
    """What becomes of what goes by a road."""

    OPEN = "open"
    """It arrives, unless chance has it lost."""
    CUT = "cut"
    """It is lost."""
    HELD = "held"
    """It arrives when the road is open again, all at once: half-open, the sender notices nothing."""


@dataclass(slots=True)
class Trunk:
    """The uplink that a region shares, both ways; where it is `cut`, nobody of the region reaches anybody."""

    name: str
    up_bytes_s: float = math.inf
    down_bytes_s: float = math.inf
    up_free: float = 0.0
    down_free: float = 0.0
    cut: bool = False


@dataclass(slots=True)
class Road:
    """One way of a link. `loss`: share of words and chunks that are lost (`extra_loss`: by a fault); `nbytes`: of all
    that was sent; `deaf_to`: the next word of this kind is lost; `waiting`: chunks that wait for the road to be free;
    `stripes`: the connections that share it, `dead`: the one of them that delivers nothing, which `swallowed` so many.
    """

    latency_s: float
    jitter_s: float
    bytes_s: float
    loss: float = 0.0
    passage: Passage = Passage.OPEN
    extra_loss: float = 0.0
    slow: float = 1.0
    deaf_to: type | None = None
    free_at: float = 0.0
    words_at: float = 0.0
    nbytes: int = 0
    held: list[Callable[[], None]] = field(default_factory=list)
    waiting: "OrderedDict[Place, tuple[int, Callable[[], None]]]" = field(default_factory=OrderedDict)
    busy: bool = False
    stripes: Stripes = field(default_factory=lambda: Stripes(1))
    dead: int | None = None
    swallowed: int = 0
    bodies_at: dict[int, float] = field(default_factory=dict)

    def crosses_s(self, rng: random.Random) -> float:
        """Seconds from one end to the other, this time."""
        return self.latency_s * self.slow + (rng.random() * self.jitter_s * self.slow if self.jitter_s else 0.0)

    def word(self, nbytes: int, now: float, rng: random.Random) -> float:
        """A word goes out now: when it arrives."""
        self.nbytes += nbytes
        self.words_at = max(self.words_at, now + self.crosses_s(rng) + nbytes * self.slow / self.bytes_s)
        return self.words_at

    def body(self, nbytes: int, now: float, rng: random.Random, stripe: int = 0) -> float:
        """Bytes of a body go out now, behind those that are still going: when the last one arrives. Those of different
        stripes may overtake each other."""
        self.nbytes += nbytes
        self.free_at = max(self.free_at, now) + nbytes * self.slow / self.bytes_s
        at = self.bodies_at[stripe] = max(self.bodies_at.get(stripe, 0.0), self.free_at + self.crosses_s(rng))
        return at

    def takes(self, transfer: str, index: int) -> int | None:
        """The stripe that carries this chunk from now on; None: those that may are full."""
        for stripe in self.stripes.turns():
            if stripe != self.dead or self.swallowed < SWALLOWS:
                self.swallowed += stripe == self.dead
                self.stripes.carries(stripe, transfer, index)
                return stripe
        return None

    def revive(self) -> None:
        """The stripe that was dead has been dialled anew."""
        self.dead, self.swallowed = None, 0

    def is_lost(self, rng: random.Random) -> bool:
        """Whether chance has it lost, this time."""
        loss = self.loss + self.extra_loss
        return loss > 0 and rng.random() < loss

    def drop(self, transfer: str, whose: MemberKey | None = None) -> None:
        """The chunks of a transfer that wait are not sent any more; `whose`: only those that are for this one."""
        for place in [place for place in self.waiting if place[0] == transfer and whose in (None, place[2])]:
            del self.waiting[place]
        self.stripes.forget(transfer)

    def waiting_bytes(self, whose: MemberKey) -> int:
        """Bytes of the chunks that wait and are for or from this one."""
        return sum(nbytes for (_, _, owner), (nbytes, _) in self.waiting.items() if owner == whose)

    def is_missed(self, word: object) -> bool:
        """Whether this is the one word that is to be lost."""
        if self.deaf_to is None or type(word) is not self.deaf_to:
            return False
        self.deaf_to = None
        return True


class Link:
    """Two roads towards the syncer; one-way latency and jitter in seconds, bandwidth in bytes per second. `behind`: the
    name of the relay that they lead to; empty: to the syncer itself.
    """

    def __init__(
        self, latency_s: float = 0.001, jitter_s: float = 0.0, *, up_bytes_s: float = 2e7, down_bytes_s: float = 2e7,
        loss: float = 0.0, trunk: Trunk | None = None,
    ) -> None:  # fmt: skip
        self.up = Road(latency_s, jitter_s, up_bytes_s, loss)
        self.down = Road(latency_s, jitter_s, down_bytes_s, loss)
        self.trunk = trunk
        self.behind = ""

    @property
    def is_cut(self) -> bool:
        """Whether the region's trunk is cut."""
        return self.trunk is not None and self.trunk.cut

    def free_at(self, road: Road) -> float:
        """When this road of ours takes the next chunk: what it has sent has left the trunk, so that all share that."""
        trunk = self.trunk
        if trunk is None:
            return road.free_at
        return max(road.free_at, trunk.up_free if road is self.up else trunk.down_free)

    def body_up(self, nbytes: int, now: float, rng: random.Random, stripe: int = 0) -> float:
        """Bytes go up: when the last one arrives, with the region's trunk on the way."""
        at, trunk = self.up.body(nbytes, now, rng, stripe), self.trunk
        if trunk is not None:
            trunk.up_free = max(trunk.up_free, now) + nbytes / trunk.up_bytes_s
            at = max(at, trunk.up_free + self.up.latency_s)
        return at

    def body_down(self, nbytes: int, now: float, rng: random.Random, stripe: int = 0) -> float:
        """The same, down."""
        at, trunk = self.down.body(nbytes, now, rng, stripe), self.trunk
        if trunk is not None:
            trunk.down_free = max(trunk.down_free, now) + nbytes / trunk.down_bytes_s
            at = max(at, trunk.down_free + self.down.latency_s)
        return at
