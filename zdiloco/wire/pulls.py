"""Whose pulls are answered now: whole states go to a few peers at a time, so that a crowd of joiners starves nobody.

Rule: what is bounded is what moves, not what waits. A peer has its turn until all it was offered is through; one that
gives no credit, or to which far less comes than to others, is served on but keeps nobody waiting. Small states wait
for nothing. Who trains goes before who joins, but while joiners wait one of them moves; else first come, first served.
A pull that waits needs no word: its learner repeats it (`learner.answer_timeout_s`), which changes nothing.
"""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from zdiloco.units import FragmentId

PeerT = TypeVar("PeerT", bound=Hashable)

AT_ONCE = 2
"""Peers that are always let move: the way there and back of one is another one's time."""
AT_ONCE_BYTES = 2**20
"""More are let in while so few bytes are still to come to those that move."""
UNHEARD_S = 0.5
"""Who gives no credit at all for so long is gone, served by a relay, or has it all (a pull that is repeated may cross
with its answer), and does not move."""
SILENT_S = 2.0
"""Nor does one of which nothing new came for so long."""
SLOW = 8
"""Nor one to which so many times less comes per second than to the fastest of the last ones."""
JUDGED_S = 2.0
"""Whether it is slow is judged after so long."""
STUCK_S = 10.0
"""When no turn has ended for so long one more is let in, after twice that another one: all may be slow ones."""
FORGET_S = 60.0
"""A pull that is not repeated for so long is nobody's any more; nor is a place in the queue."""
LOOK_S = 0.25
"""While somebody waits it is looked again so often, also if nothing comes."""
MOST_PULLS = 2**16
"""Pulls that wait at once; more are passed over: who lives asks again."""
RATES = 8


class Due(NamedTuple, Generic[PeerT]):
    """A pull that is answered now."""

    peer: PeerT
    fragment: FragmentId


@dataclass(slots=True)
class _Place:
    """One peer. `waiting`: bytes of each state that it has pulled; `left`: of each that it lacks of its turn.

    `unheard`: those among them for which it has given no credit yet. `heard_at`: infinity until something is offered.
    """

    since: float
    used_at: float
    trains: bool = False
    waiting: dict[FragmentId, int] = field(default_factory=dict)
    left: dict[FragmentId, int] = field(default_factory=dict)
    began_at: float = 0.0
    heard_at: float = 0.0
    unheard: set[FragmentId] = field(default_factory=set)
    came_bytes: int = 0

    def rate(self, now: float) -> float:
        """Bytes per second since its turn began; over the least time by which it is judged, at least."""
        return self.came_bytes / max(JUDGED_S, now - self.began_at)

    def moves(self, best: float, now: float) -> bool:
        """Whether it takes something of the uplink that others would notice."""
        quiet_s = now - self.heard_at
        if not self.left or quiet_s >= (UNHEARD_S if self.left.keys() <= self.unheard else SILENT_S):
            return False
        return self.heard_at == math.inf or now - self.began_at < JUDGED_S or self.rate(now) * SLOW >= best


class Pulls(Generic[PeerT]):
    """The pulls that one syncer has been asked. All times are monotonic seconds."""

    def __init__(self, at_once_bytes: int = AT_ONCE_BYTES) -> None:
        self._at_once_bytes = at_once_bytes
        self._places: dict[PeerT, _Place] = {}
        self._rates: deque[float] = deque(maxlen=RATES)
        self._count = 0
        self._look_at = self._forget_at = self._ended_at = -math.inf
        self._open = False

    @property
    def waiting(self) -> int:
        """How many peers wait for their turn."""
        return sum(bool(place.waiting) for place in self._places.values())

    def moving(self, now: float) -> int:
        """How many peers are being served and take something of the uplink."""
        return len(self._moving(now))

    def deadline(self) -> float | None:
        """When to ask `due` again, if nothing is heard before; None: nobody waits."""
        return self._look_at if self._count else None

    def open(self) -> None:
        """From now on nobody waits: the run ends, and everybody is to have the last values."""
        self._open, self._look_at = True, -math.inf

    def ask(self, peer: PeerT, fragment: FragmentId, nbytes: int, now: float, *, trains: bool = False) -> None:
        """A peer pulls a state of about so many bytes; a pull that waits already is the same one."""
        place = self._places.setdefault(peer, _Place(now, now))
        place.used_at, place.trains = now, trains
        if fragment not in place.waiting and self._count < MOST_PULLS:
            place.waiting[fragment] = nbytes
            self._count += 1

    def offered(self, peer: PeerT, now: float) -> None:
        """A state that was due is on offer now: from here on it is judged whether anything moves."""
        place = self._places.get(peer)
        if place is not None and place.heard_at == math.inf:
            place.began_at = place.heard_at = now

    def credited(self, peer: PeerT, fragment: FragmentId, left_bytes: int, now: float) -> None:
        """A peer gives credit for a state of which it lacks so many bytes; a relay does so unasked."""
        place = self._places.setdefault(peer, _Place(now, now))
        if not place.left:
            if not left_bytes:
                return
            self._begin(place, now)
            place.heard_at = now
        came_bytes = place.left.get(fragment, left_bytes) - left_bytes
        if came_bytes > 0 or fragment in place.unheard:
            place.heard_at = now
        place.unheard.discard(fragment)
        place.came_bytes += max(0, came_bytes)
        place.used_at, place.left[fragment] = now, left_bytes
        if not left_bytes:
            del place.left[fragment]
            if not place.left:
                self._rates.append(place.rate(now))
                self._ended_at, self._look_at = now, -math.inf

    def due(self, now: float) -> list[Due[PeerT]]:
        """Return the pulls to answer now: those of who has its turn, and of who gets one. Costs nothing while it is too
        early to look again."""
        if now >= self._forget_at:
            self._forget(now)
        if not self._count or now < self._look_at:
            return []
        moving = self._moving(now)
        answered = [due for peer in moving for due in self._answer(peer)]
        for peer in self._in_line():
            if self._is_full(moving, now):
                self._look_at = now + LOOK_S
                break
            place = self._places[peer]
            if place.trains and self._owes_a_joiner(moving):
                continue
            self._begin(place, now)
            answered += self._answer(peer)
            moving[peer] = place
        return answered

    def _moving(self, now: float) -> dict[PeerT, _Place]:
        known = [place.rate(now) for place in self._places.values() if place.left]
        best = max([*self._rates, *known], default=0.0)
        return {peer: place for peer, place in self._places.items() if place.moves(best, now)}

    def _in_line(self) -> list[PeerT]:
        waiting = [(peer, place) for peer, place in self._places.items() if place.waiting]
        return [peer for peer, place in sorted(waiting, key=lambda item: (not item[1].trains, item[1].since))]

    def _owes_a_joiner(self, moving: dict[PeerT, _Place]) -> bool:
        """Whether it is a joiner's turn: one waits, and all that move train."""
        waits = not self._open and any(place.waiting and not place.trains for place in self._places.values())
        return waits and bool(moving) and all(place.trains for place in moving.values())

    def _is_full(self, moving: dict[PeerT, _Place], now: float) -> bool:
        if self._open or not moving:
            return False
        stuck_s = now - max(self._ended_at, min(place.began_at for place in moving.values()))
        most = AT_ONCE + int(math.log2(1 + stuck_s / STUCK_S))
        left_bytes = sum(sum(place.left.values()) for place in moving.values())
        return len(moving) >= most and left_bytes >= self._at_once_bytes

    def _begin(self, place: _Place, now: float) -> None:
        place.began_at, place.heard_at = now, math.inf
        place.came_bytes = 0
        place.unheard.clear()
        place.left.clear()  # what it did not take of an earlier turn, it has no use for any more

    def _answer(self, peer: PeerT) -> list[Due[PeerT]]:
        place = self._places[peer]
        answered = [Due(peer, fragment) for fragment in place.waiting]
        place.unheard |= place.waiting.keys() - place.left.keys()
        place.left = place.waiting | place.left  # what is under way already goes on from where it is
        self._count -= len(place.waiting)
        place.waiting = {}
        return answered

    def _forget(self, now: float) -> None:
        """Let go of who has asked nothing and taken nothing for long."""
        self._forget_at = now + LOOK_S
        for peer in [peer for peer, place in self._places.items() if now - place.used_at > FORGET_S]:
            self._count -= len(self._places.pop(peer).waiting)
