"""The ends of the four roads at who dials: a learner's or a relay's own, opened at its start, each anew if need be.

Rule: the network thread's alone, once it runs. Whoever closes an end loses what lies in it; transfers repair that.
"""

from zdiloco.node.entrance import Entrance
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Context, Road, cast_hwm, dialling, identity_of
from zdiloco.units import MemberKey


class Dialler:
    """Opens the sockets of `roads` in this context, through an entrance. `largest`: bytes of the largest fragment in
    fp32, where that is known; `key`: the identity, where the roads are dialled already."""

    def __init__(
        self, roads: Roads, context: Context, entrance: Entrance, largest: int = 0, key: MemberKey | None = None
    ) -> None:
        self._roads, self._context, self._entrance, self._largest, self._key = roads, context, entrance, largest, key
        self._net = entrance.net

    def dial(self, key: MemberKey) -> None:
        """Dial control and bulk under this identity, anew if they are open; the control cast if it is not open yet."""
        self.dial_lane(key)
        if Road.CONTROL_CAST not in self._roads.sockets:
            self._open(Road.CONTROL_CAST)

    def dial_lane(self, key: MemberKey) -> None:
        """Dial control and bulk alone under this identity, anew if they are open."""
        self._key = key
        self._open(Road.CONTROL)
        self.dial_bulk()

    def dial_bulk(self) -> None:
        """Dial all stripes of the bulk road, anew if they are open."""
        for stripe in self._roads.more:
            stripe.close(0)
        self._roads.more.clear()
        self._open(Road.BULK)
        for number in range(1, self._net.stripes):
            identity = identity_of(self._named, number, self._entrance.token)
            self._roads.more.append(dialling(self._context, Road.BULK, self._net, identity, entrance=self._entrance))

    def listen(self, on: bool) -> None:
        """Dial the bulk cast, anew if it is open; or (not `on`) leave it, with all that waits there for us."""
        if on:
            self._open(Road.BULK_CAST, cast_hwm(self._largest, self._net.chunk_bytes))
        elif Road.BULK_CAST in self._roads.sockets:
            self._roads.sockets.pop(Road.BULK_CAST).close(0)

    def renewed(self) -> bool:
        """Whether whoever is dialled has got another key; then `dial_again` is due."""
        return self._entrance.renewed()

    def dial_again(self) -> None:
        """Dial anew whatever is open, by the keys of now."""
        casts = [road for road in (Road.CONTROL_CAST, Road.BULK_CAST) if road in self._roads.sockets]
        self.dial_lane(self._named)
        for road in casts:
            self.listen(True) if road is Road.BULK_CAST else self._open(road)

    def why_refused(self) -> str:
        """Why whoever is dialled does not let us in, and will not; empty: it may."""
        return self._entrance.why_refused()

    def close(self, linger_ms: int) -> None:
        """Close every socket of the roads; what lies in them has so long to leave. Harmless when repeated."""
        self._entrance.forget()
        self._roads.close(linger_ms)

    @property
    def _named(self) -> MemberKey:
        assert self._key is not None
        return self._key

    def _open(self, road: Road, hwm: int = 0) -> None:
        sockets = self._roads.sockets
        if road is Road.CONTROL:
            self._entrance.forget()
        if road in sockets:
            sockets.pop(road).close(0)
        identity = identity_of(self._named, token=self._entrance.token)
        sockets[road] = dialling(self._context, road, self._net, identity, hwm, self._entrance)
