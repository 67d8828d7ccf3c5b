"""A relay's own far link: the broadcast is taken while somebody wants it, and roads on which nothing comes are dialled
anew."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.node.relay_stage import CHUNK, EPOCH, Client, MakeStage, Stage, pattern
from zdiloco.chaos.proxy import Proxy
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Heartbeat
from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit
from zdiloco.wire.vain import MOST_VAIN

pytestmark = pytest.mark.net
BULK, BULK_CAST = 1, 3
QUICK: dict[str, Any] = {"stall_s": 0.1, "give_up_s": 3.0}
"""The relay is impatient; a busy machine then asks once more than it needs to."""

ALIVE = Heartbeat(epoch=EPOCH)
"""A word of the syncer."""


@dataclass
class Far:
    """A stage with a link between the relay and its upstream, and one client that listens."""

    stage: Stage
    proxy: Proxy
    client: Client


@pytest.fixture
def far(stage_of: MakeStage, link_to: Callable[[int], tuple[Proxy, int]]) -> Far:
    proxies: list[Proxy] = []

    def between(net: NetParams) -> NetParams:
        proxy, port = link_to(net.port)
        proxies.append(proxy)
        return replace(net, port=port, **QUICK)

    stage = stage_of(between)
    client = stage.client("a")
    stage.listening(client)
    return Far(stage, proxies[0], client)


def test_the_broadcast_is_taken_exactly_while_somebody_takes_it(stage_of: MakeStage) -> None:
    """What is published meanwhile is announced, and nothing of it crosses."""
    stage = stage_of()
    relay, upstream = stage.relay, stage.upstream
    assert not relay.far.taken
    first, second = stage.client("first"), stage.client("second")
    stage.listening(first, second)
    assert relay.far.taken
    first.roads.sockets.pop(Road.BULK_CAST).close(0)
    update = upstream.update(0, 4, pattern(4))
    upstream.publish(update)
    stage.until(lambda: second.has(update), "one listens still")
    second.roads.sockets.pop(Road.BULK_CAST).close(0)
    stage.until(lambda: not relay.far.taken, "nobody listens")
    missed = upstream.update(0, 5, pattern(4))
    upstream.publish(missed)
    stage.until(lambda: (SYNCER, missed) in first.heard, "its announcement")
    assert missed.body.transfer not in relay.cache
    assert Road.BULK_CAST not in relay.up.sockets
    third = stage.client("third")
    stage.listening(third)
    later = upstream.update(0, 6, pattern(4))
    upstream.publish(later)
    stage.until(lambda: third.has(later), "it listens")
    assert [chunk.transfer for _, chunk in upstream.sent if chunk.transfer == missed.body.transfer] == []


def test_a_broadcast_of_which_nothing_comes_is_dialled_anew(far: Far) -> None:
    """A-17: announcements come; the cache fetches what they announce, for all; then it comes by itself again."""
    stage, before = far.stage, far.proxy.dialled(BULK_CAST)
    far.proxy.swallow(BULK_CAST, up=False)
    for version in range(MOST_VAIN + 1):
        update = stage.upstream.update(0, version, pattern(2, version))
        stage.upstream.publish(update)
        stage.until(lambda name=update.body.transfer: whole(stage, name), "it is fetched")
    stage.until(lambda: far.proxy.dialled(BULK_CAST) > before, "the broadcast is dialled anew")
    stage.listening(stage.client("b"))
    assert stage.relay.far.dialled_anew >= 1


def whole(stage: Stage, transfer: str) -> bool:
    """Whether the relay has all of a body."""
    assembly = stage.relay.cache.inbox.assembly("upstream", transfer)
    return assembly is not None and assembly.complete


def test_a_road_on_which_nothing_that_the_cache_asks_for_comes_is_dialled_anew(far: Far) -> None:
    """A-17: a whole state that the relay fetches for a learner comes on the new connection."""
    stage, before = far.stage, far.proxy.dialled(BULK)
    far.proxy.swallow(BULK, up=False)
    update = stage.upstream.update(0, 4, pattern(20), full=True)
    stage.upstream.roads.send(far.client.key, update)

    def has_it() -> bool:
        stage.upstream.roads.cast(ALIVE)
        return far.client.has(update)

    stage.until(has_it, "the state")
    assert far.proxy.dialled(BULK) > before
    assert {key.name for key, _ in stage.upstream.sent} == {"relay"}


@pytest.mark.parametrize("up", [True, False])
def test_a_lane_on_which_either_end_asks_in_vain_is_dialled_anew(far: Far, up: bool) -> None:
    """A-17: chunks of a contribution that the syncer does not get, or of something that goes through to one learner."""
    stage, client, before = far.stage, far.client, far.proxy.dialled(BULK)
    client.say(client.hello)
    far.proxy.swallow(BULK, up=up)
    box = Outbox()
    box.add("x/1", pattern(2), CHUNK)
    asked = Credit(transfer="x/1", upto=2 * CHUNK, received=0, missing=((0, 2),))
    stage.upstream.silent = True

    def dialled_anew() -> bool:
        if up:
            stage.upstream.roads.send(client.key, asked)
        else:
            client.say(asked)
            stage.upstream.roads.cast(ALIVE)
        return far.proxy.dialled(BULK) > before

    stage.until(dialled_anew, "the lane is dialled anew")
    chunks = box.on_credit(SYNCER, asked)
    assert isinstance(chunks, list)
    sender, receiver, to = (client, stage.upstream, SYNCER) if up else (stage.upstream, client, client.key)

    def arrived() -> bool:
        sender.roads.send_chunks(to, chunks)
        return {chunk.index for _, _, chunk in receiver.chunks if chunk.transfer == "x/1"} == {0, 1}

    stage.until(arrived, "chunks on the new connection")
