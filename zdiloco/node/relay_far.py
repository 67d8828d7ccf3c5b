"""A relay's own far link: whether it takes the bulk broadcast, and roads of it that are half open.

Rule: a relay takes the bulk broadcast exactly while somebody in its region does. Learners leave a broadcast that does
not get through to them, and pull (`core/downlink.py`); when the last of them has, nothing is published onto a link that
does not carry it, and what they pull crosses once. What is asked for in vain on a road while words come is dialled
anew, as by a learner (`wire/vain.py`): the relay's own roads by what its cache asks for, a lane by what both ends ask.
"""

import logging
from functools import partial

from zdiloco.core.machine import SYNCER
from zdiloco.node.dialler import Dialler
from zdiloco.node.entrance import Entrance
from zdiloco.node.keys import Keys
from zdiloco.node.params import NetParams
from zdiloco.node.relay_lanes import Lane, Lanes
from zdiloco.node.relay_loop import RelayLoop
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Context, Road, Socket, subscribed, widen
from zdiloco.units import MemberKey
from zdiloco.wire.cache import UPSTREAM, Cache
from zdiloco.wire.transfer import Credit
from zdiloco.wire.vain import Vain

log = logging.getLogger("zdiloco.node.relay")

STATION = "upstream"
"""What the relay's own roads are called in its loop."""


class FarLink:
    """The relay's own roads upstream, `roads`: three of them at first, and the bulk broadcast while it is `taken`.

    `lanes_entrance`: by which the lanes of its learners are let in. `dialled_anew`: roads that were half open, lanes'
    too, since the start.
    """

    def __init__(
        self, context: Context, net: NetParams, key: MemberKey, cache: Cache, keys: Keys | None
    ) -> None:  # fmt: skip
        self.roads = Roads({}, server=False)
        self.taken, self.dialled_anew = False, 0
        self._context, self._net, self._cache = context, net, cache
        self.lanes_entrance = Entrance(net, keys)
        self._entrance = Entrance(net, keys, follows=True)
        self._dialler = Dialler(self.roads, context, self._entrance)
        self._vain = Vain(cache.inbox, net.give_up_s)
        self._mark = 0
        self._dialler.dial(key)

    @property
    def frames_down(self) -> int:
        """Frames that have come on its roads, words and chunks."""
        return self.roads.of(SYNCER).frames_down

    def why_refused(self) -> str:
        """Why upstream does not let this relay in, and will not; empty: it may."""
        return self._dialler.why_refused()

    def close(self, linger_ms: int) -> None:
        """Close its roads; what lies in them has so long to leave."""
        self._dialler.close(linger_ms)

    def credited(self, credit: Credit) -> None:
        """The syncer asks for chunks of what this relay sends itself."""
        self._vain.credited(credit)

    def widen(self, hwm: int) -> None:
        """Updates that are broadcast take so many chunks: have that much room for them, now and when dialled again."""
        self._mark = max(self._mark, hwm)
        if self.taken:
            widen(self.roads.sockets[Road.BULK_CAST], self._mark)

    def turn(self, loop: RelayLoop, cast: Socket, now: float) -> None:
        """Inputs are drained: take the broadcast or leave it, as those who listen to `cast` want it; dial anew what is
        half open."""
        wanted = subscribed(cast, self.taken)
        if wanted is not self.taken:
            self.taken = wanted
            loop.anew(STATION, self._listen)
            log.info("broadcast is %s", "taken" if wanted else "left why='nobody in the region takes it'")
        road = self._vain.judge(UPSTREAM, self.frames_down, now)
        if road not in self.roads.sockets:  # none is dead, or the one that is left anyway
            return
        self._warn("its own", road)
        if road == Road.BULK_CAST:
            loop.anew(STATION, self._listen)
        else:
            loop.anew(STATION, self._dialler.dial_bulk)
            self._cache.inbox.resume(UPSTREAM, now)

    def _listen(self) -> None:
        """Dial the bulk broadcast, anew if it is open, or leave it."""
        self._dialler.listen(self.taken)
        self.widen(0)
        self._cache.tuned(listening=self.taken)

    def look_at(self, lanes: Lanes, loop: RelayLoop, now: float) -> None:
        """Dial the bulk road of a learner's lane anew where it is half open; all roads where upstream has a new key."""
        if self._dialler.renewed():
            self.lanes_entrance.keys = self._entrance.keys
            log.info("relay dials anew why='upstream has another key'")
            loop.anew(STATION, self._dialler.dial_again)
            for lane in lanes:
                dialler = Dialler(lane.roads, self._context, self.lanes_entrance, key=lane.key)
                loop.anew(lane.key, dialler.dial_again)
        for lane in lanes:
            if lane.vain.judge(self.frames_down + lane.counts.frames_down, now):
                self._warn(lane.key.name, Road.BULK)
                loop.anew(lane.key, partial(self._redial, lane))

    def _redial(self, lane: Lane) -> None:
        Dialler(lane.roads, self._context, self.lanes_entrance, key=lane.key).dial_bulk()

    def _warn(self, whose: str, road: str) -> None:
        self.dialled_anew += 1
        why = "what is asked for on it does not come, though words do"
        log.warning("relay dials a road anew whose=%s road=%s why=%r", whose, road, why)
