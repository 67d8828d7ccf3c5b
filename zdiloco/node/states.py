"""The whole states that a syncer serves: made once for all who pull, offered to each in its turn (`wire/pulls.py`).

Rule: by stamp, so who asks after a restamp gets nothing from before; who waits gets the newest when its turn comes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from zdiloco.core import machine as m
from zdiloco.core.messages import Update
from zdiloco.node.publishing import Published
from zdiloco.units import FragmentId, MemberKey, Stamp
from zdiloco.wire.pulls import Pulls
from zdiloco.wire.transfer import Credit

NAME = "full"
"""What the names of whole states begin with."""
VALUE_BYTES = 2
"""A value is taken for so many bytes before its state is made."""
Place = tuple[FragmentId, Stamp | None]


class WholeStates:
    """The newest state of each fragment, where somebody has pulled it.

    `parts`: what the acts work with (clock, roads, worker, wake, body, transfers); `stamps`: the newest ones; `offer`
    puts what the worker has made on the shelf. All calls come from the network thread.
    """

    def __init__(self, parts: Any, stamps: Mapping[int, Stamp], offer: Callable[[Published], Update]) -> None:
        self.pulls = Pulls[MemberKey]()
        self._parts = parts
        self._stamps = stamps
        self._offer = offer
        self._ready: dict[FragmentId, Update] = {}
        self._askers: dict[Place, dict[MemberKey, None]] = {}

    def pulled(self, action: m.Serve) -> None:
        """A peer asks for a state: it is answered at once, or in its turn."""
        layout, now = self._parts.body.layout, self._parts.clock()
        nbytes = VALUE_BYTES * layout.numels[action.fragment] if layout else 0
        self.pulls.ask(action.key, action.fragment, nbytes, now, trains=action.trains)
        self.turn(now)

    def credited(self, key: MemberKey, credit: Credit, now: float) -> None:
        """A peer gives credit for a body: of a whole state that tells how far it is."""
        kind, _, rest = credit.transfer.partition("/")
        body = self._parts.transfers.outbox.body(credit.transfer) if kind == NAME else None
        if body is not None:
            fragment = int(rest.partition("/")[0])
            self.pulls.credited(key, fragment, max(0, body.nbytes - credit.received), now)
            self.turn(now)

    def turn(self, now: float) -> None:
        """Offer states to those whose turn it is."""
        for key, fragment in self.pulls.due(now):
            self._serve(key, fragment)

    def outdated(self, fragment: FragmentId) -> None:
        """There is a newer state of this fragment."""
        self._ready.pop(fragment, None)

    def _serve(self, key: MemberKey, fragment: FragmentId) -> None:
        place = (fragment, self._stamps.get(fragment))
        ready = self._ready.get(fragment)
        if ready is not None and ready.stamp == place[1]:
            self._send(key, ready)
        elif place in self._askers:
            self._askers[place][key] = None
        else:
            self._askers[place] = {key: None}
            self._parts.worker.submit(partial(self._make, place))

    def _make(self, place: Place) -> None:
        """On the worker: take the state as it is now."""
        published = self._parts.body.published(place[0])
        self._parts.wake.post(partial(self._made, place, published))

    def _made(self, place: Place, published: Published) -> None:
        ready = self._ready.get(published.fragment)
        if ready is None or ready.stamp != published.stamp:
            ready = self._ready[published.fragment] = self._offer(published)
        for key in self._askers.pop(place):
            self._send(key, ready)

    def _send(self, key: MemberKey, update: Update) -> None:
        self.pulls.offered(key, self._parts.clock())
        self._parts.roads.send(key, update)
