"""The ends of the four roads at who dials: a learner's or a relay's own, opened at its start, each anew if need be.

Rule: the network thread's alone, once it runs. Whoever closes an end loses what lies in it; transfers repair that.
"""

from zdiloco.node.params import NetParams
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Context, Road, cast_hwm, dialling
from zdiloco.units import MemberKey


class Dialler:
    """Opens the sockets of `roads` in this context. `largest`: bytes of the largest fragment in fp32, where that is
    known; `key`: the identity, where the roads are dialled already."""

    def __init__(
        self, roads: Roads, context: Context, net: NetParams, largest: int = 0, key: MemberKey | None = None
    ) -> None:
        self._roads, self._context, self._net, self._largest, self._key = roads, context, net, largest, key

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
            self._roads.more.append(dialling(self._context, Road.BULK, self._net, self._named, stripe=number))

    def listen(self, on: bool) -> None:
        """Dial the bulk cast, anew if it is open; or (not `on`) leave it, with all that waits there for us."""
        if on:
            self._open(Road.BULK_CAST, cast_hwm(self._largest, self._net.chunk_bytes))
        elif Road.BULK_CAST in self._roads.sockets:
            self._roads.sockets.pop(Road.BULK_CAST).close(0)

    @property
    def _named(self) -> MemberKey:
        assert self._key is not None
        return self._key

    def _open(self, road: Road, hwm: int = 0) -> None:
        sockets = self._roads.sockets
        if road in sockets:
            sockets.pop(road).close(0)
        sockets[road] = dialling(self._context, road, self._net, self._named, hwm)
