"""Relays in the process of a test, each on a thread of its own."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.premerge import Terms
from zdiloco.node.relay import RelayNode

LIMIT_S = 30.0


class Region:
    """A relay that dials `net`, on its own thread; who is behind it dials `behind`. `honest`: all of them keep the
    protocol."""

    honest = True

    def __init__(self, net: NetParams, port: int, terms: Terms | None = None, **relay: Any) -> None:
        self.net, self.params, self.terms = net, RelayParams(port=port, **relay), terms
        self.behind = replace(net, port=port)
        self.node: RelayNode | None = None
        self.start()

    def start(self) -> RelayNode:
        """Begin, or begin again."""
        self.node = RelayNode(self.net, self.params, terms=self.terms)
        self._thread = self.node.start()
        return self.node

    @property
    def relay(self) -> RelayNode:
        assert self.node is not None
        return self.node

    def stop(self, *, crash: bool = False) -> None:
        """End the relay, in order, or as a SIGKILL would: nothing that is on its way leaves any more."""
        if self.node is None:
            return
        node, self.node = self.node, None
        if crash:
            node.failure = RuntimeError("killed by the test")
            node.wake.post(lambda: node._loop.stop(0.0))
        node.stop("the test stops it")
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        limits = node.region.gate.status() if node.region.gate else {"dropped": {}}
        assert not self.honest or limits["dropped"] == {}, f"who keeps the protocol met a limit: {limits}"


Regions = Callable[..., Region]


@pytest.fixture
def region_of(free_ports: Callable[[int], int]) -> Iterator[Regions]:
    """region_of(net, **relay) -> a relay that dials `net`, and its region; all are ended with the test."""
    made: list[Region] = []

    def make(net: NetParams, **relay: Any) -> Region:
        made.append(Region(net, free_ports(4), **relay))
        return made[-1]

    yield make
    for region in reversed(made):
        region.stop()
