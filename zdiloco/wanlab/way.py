"""One direction of a link in virtual time: what a packet meets on it, by the shape that the link has at that moment.

Rule: no clock and no socket; chance comes from a seed. A packet that is let in waits for those before it, takes its
bytes at the rate of the link, and then travels; so none overtakes another unless the delay is made shorter.
"""

import random
from collections import deque
from dataclasses import dataclass

LATE_S = 0.01
"""Whoever carries packets is late with one that comes out so long after its time."""


@dataclass(kw_only=True, slots=True)
class Shape:
    """A direction as it is now. `queue_s`: a packet that would wait longer is dropped; `loss`: part of all packets;
    `largest`: longer ones vanish, in bytes; `jitter_s`: the delay is drawn evenly from so much less to so much more,
    and none overtakes another by that."""

    mbit_s: float = 1000.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    queue_s: float = 0.1
    loss: float = 0.0
    largest: int = 65_536
    open: bool = True


@dataclass(kw_only=True, slots=True)
class Carried:
    """What has come out, and what never will; `late`: of those that came out, by `LATE_S` or more."""

    packets: int = 0
    nbytes: int = 0
    lost: int = 0
    full: int = 0
    late: int = 0
    latest_s: float = 0.0


class Way:
    """Packets on their way in one direction. All times are monotonic seconds."""

    def __init__(self, seed: int) -> None:
        self.shape, self.carried = Shape(), Carried()
        self._rng = random.Random(seed)
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0

    @property
    def waiting_bytes(self) -> int:
        """What is in the queue or travels."""
        return sum(len(packet) for _, packet in self._under_way)

    def queue_s(self, now: float) -> float:
        """What a packet that comes now waits for those before it."""
        return max(0.0, self._free_at - now)

    def take(self, packet: bytes, now: float) -> None:
        """A packet comes to this end: it will come out at the other, or is lost."""
        shape = self.shape
        if not shape.open or len(packet) > shape.largest or (shape.loss and self._rng.random() < shape.loss):
            self.carried.lost += 1
            return
        begins_at = max(self._free_at, now)
        if begins_at - now > shape.queue_s:
            self.carried.full += 1
            return
        self._free_at = begins_at + len(packet) * 8e-6 / shape.mbit_s
        due_at = self._free_at + shape.delay_s
        if shape.jitter_s:
            due_at += self._rng.uniform(-shape.jitter_s, shape.jitter_s)
            due_at = max(due_at, self._under_way[-1][0] if self._under_way else now)
        self._under_way.append((due_at, packet))

    def due_at(self) -> float:
        """When the next one comes out; infinity: none is under way."""
        return self._under_way[0][0] if self._under_way else float("inf")

    def out(self, now: float) -> list[bytes]:
        """What has come out by now, in order. What was under way when the link was cut is lost."""
        found: list[bytes] = []
        while self._under_way and self._under_way[0][0] <= now:
            due_at, packet = self._under_way.popleft()
            if not self.shape.open:
                self.carried.lost += 1
                continue
            late_s = now - due_at
            self.carried.packets += 1
            self.carried.nbytes += len(packet)
            self.carried.late += late_s >= LATE_S
            self.carried.latest_s = max(self.carried.latest_s, late_s)
            found.append(packet)
        return found
