"""A relay between ends that the test plays: what goes through it, what it answers itself, and what it withstands."""

from collections.abc import Callable
from typing import Any

import pytest
import zmq

from tests.node.relay_stage import CHUNK, EPOCH, NET, MakeStage, pattern
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Ack, Contribution, Pull, Status, StatusQuery
from zdiloco.errors import ConfigError, LinkError
from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.query import Query
from zdiloco.node.relay import RelayNode
from zdiloco.node.sockets import Road
from zdiloco.units import Stamp
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Chunk, Credit, Gone

pytestmark = pytest.mark.net


def contribution(box: Outbox, payload: bytes) -> Contribution:
    return Contribution(
        fragment=0, seq=1, after=0, stamp=Stamp(EPOCH, 3), steps=1, tokens=1, cut_step=1, version=4, codec="bf16",
        body=box.add("c/0/1", payload, CHUNK),
    )  # fmt: skip


def test_each_learner_is_itself_upstream_and_everything_goes_through_unchanged(stage_of: MakeStage) -> None:
    stage = stage_of()
    a, b = stage.client("a", 5), stage.client("b", 6)
    stage.listening(a, b)
    stage.upstream.silent = True
    box = Outbox()
    words = [a.hello, contribution(box, pattern(3)), Pull(fragment=1), Credit(transfer="loan/1", upto=9, received=0)]
    for word in words:
        a.say(word)
    b.say(b.hello)
    stage.until(lambda: len(stage.upstream.heard) == 5, "all words")
    assert [word for key, word in stage.upstream.heard if key == a.key] == words
    assert [word for key, word in stage.upstream.heard if key == b.key] == [b.hello]
    stage.upstream.roads.send(a.key, Ack(fragment=0, held=1, merged=0))
    stage.upstream.roads.send(b.key, Gone(transfer="x", by_sender=True, reason=""))
    stage.upstream.roads.send(a.key, Credit(transfer="c/0/1", upto=2 * CHUNK, received=0))
    stage.until(lambda: (len(a.heard), len(b.heard)) == (2, 1), "the answers")
    chunks = box.on_credit(SYNCER, a.heard[1][1])
    assert isinstance(chunks, list)
    a.roads.send_chunks(SYNCER, chunks)
    stage.until(lambda: len(stage.upstream.chunks) == 2, "chunks that were granted, and no others")
    assert [(road, key, chunk.index) for road, key, chunk in stage.upstream.chunks] == [
        (Road.BULK, a.key, 0), (Road.BULK, a.key, 1)
    ]  # fmt: skip


def test_a_gap_is_repaired_from_the_cache_and_nothing_is_asked_upstream(stage_of: MakeStage) -> None:
    """E-75: one subscriber loses every chunk, another none: the far link carries the update once."""
    stage = stage_of()
    well, deaf = stage.client("well"), stage.client("deaf", stall_s=0.2)
    stage.listening(well, deaf)
    deaf.deaf = True
    updates = [stage.upstream.update(fragment, 4, pattern(20, fragment)) for fragment in range(3)]
    for update in updates:
        stage.upstream.publish(update)
    stage.until(lambda: all(end.has(update) for update in updates for end in (well, deaf)), "all updates at both")
    assert stage.upstream.sent == []
    assert stage.upstream.heard_of(Credit) == []
    assert well.inbox.counters.asked_again == 0
    assert {key for road, key, _ in deaf.chunks if road is Road.BULK} == {SYNCER}
    assert stage.relay.cache.counters.handed_out_bytes >= 60 * CHUNK, "the deaf one is impatient, and may ask twice"


def test_a_gap_of_the_far_link_is_filled_once_for_the_region(stage_of: MakeStage) -> None:
    stage = stage_of()
    ends = [stage.client(name) for name in "abc"]
    stage.listening(*ends)
    update = stage.upstream.update(0, 4, pattern(20))
    stage.upstream.publish(update, lost=lambda index: index in (3, 4, 11))
    stage.until(lambda: all(end.has(update) for end in ends), "the update at all three")
    assert sorted(chunk.index for _, chunk in stage.upstream.sent) == [3, 4, 11]
    assert {key.name for key, _ in stage.upstream.sent} == {"relay"}


def test_a_whole_state_crosses_once_however_many_pull_it(stage_of: MakeStage) -> None:
    stage = stage_of()
    ends = [stage.client(name) for name in "abc"]
    stage.listening(*ends)
    update = stage.upstream.update(0, 4, pattern(50), full=True)
    for end in ends:
        end.say(Pull(fragment=0))
    stage.until(lambda: len(stage.upstream.heard_of(Pull)) == 3, "each pull")
    for key, _ in stage.upstream.heard_of(Pull):
        stage.upstream.roads.send(key, update)
    stage.until(lambda: all(end.has(update) for end in ends), "the state at all three")
    assert len(stage.upstream.sent) == 50
    late = stage.client("late")
    stage.listening(late)
    stage.upstream.roads.send(late.key, update)
    stage.until(lambda: late.has(update), "the state at a fourth")
    assert len(stage.upstream.sent) == 50


def test_marks_of_the_broadcast_do_not_grow_for_what_is_not_broadcast(stage_of: MakeStage) -> None:
    """A whole state comes in many more and smaller chunks: who reads nothing would have so much more kept for it."""
    stage = stage_of()
    a = stage.client("a")
    stage.listening(a)
    casts = [roads.sockets[Road.BULK_CAST] for roads in (stage.relay.region, stage.relay.up)]
    options = [(cast, option) for cast in casts for option in (zmq.SNDHWM, zmq.RCVHWM)]
    before = [cast.getsockopt(option) for cast, option in options]
    update = stage.upstream.update(0, 4, pattern(1000), full=True)
    stage.upstream.roads.send(a.key, update)
    stage.until(lambda: a.has(update), "the state")
    assert [cast.getsockopt(option) for cast, option in options] == before


def test_who_has_no_lane_is_served_nothing_and_leaves_nothing(stage_of: MakeStage) -> None:
    """Anybody may ask for what is kept, under ever new names: what is kept of that is bounded by the lanes."""
    stage = stage_of(most_learners=1)
    a = stage.client("a")
    stage.listening(a)
    a.say(a.hello)
    update = stage.upstream.update(0, 4, pattern(4))
    stage.upstream.publish(update)
    stage.until(lambda: a.has(update), "the update")
    strangers = [stage.client("stranger", number) for number in range(1, 4)]
    asked = Credit(transfer=update.body.transfer, upto=update.body.nbytes, received=0)
    for stranger in strangers:
        stranger.say(asked)
        stranger.say(Gone(transfer=update.body.transfer, by_sender=False, reason=""))
        stranger.say(asked)
        stranger.say(StatusQuery(relay=True))
    stage.until(lambda: all(stranger.heard_of(Status) for stranger in strangers), "the relay's own answers")
    assert stage.relay.cache.counters.handed_out == 0
    assert len(stage.relay.lanes) == 1
    [name] = {status.body.transfer for _, status in strangers[0].heard_of(Status)}
    strangers[0].say(Gone(transfer=name, by_sender=True, reason=""))
    strangers[0].say(Credit(transfer=name, upto=2**20, received=0))
    stage.until(lambda: strangers[0].chunks, "the body of an answer, which needs no lane")


def test_what_the_cache_has_no_room_for_goes_through_for_each(stage_of: MakeStage) -> None:
    stage = stage_of(cache_bytes=2**16)
    ends = [stage.client(name) for name in "ab"]
    stage.listening(*ends)
    update = stage.upstream.update(0, 4, pattern(80), full=True)
    for end in ends:
        stage.upstream.roads.send(end.key, update)
    stage.until(lambda: all(end.has(update) for end in ends), "the state at both")
    assert {key.name for key, _ in stage.upstream.sent} == {"a", "b"}
    assert stage.relay.cache.counters.passed == 2
    assert stage.relay.cache.nbytes == 0


def test_it_says_how_it_is_also_without_its_upstream(zctx: Any, free_ports: Callable[[int], int]) -> None:
    net = NetParams(port=free_ports(4), **NET)
    node = RelayNode(net, RelayParams(port=free_ports(4)))
    thread = node.start()
    try:
        with Query(NetParams(port=node.params.port)) as query:
            found = query.ask(30.0, relay=True)
            assert found["upstream"] == {
                "at": f"127.0.0.1:{net.port}", "connected": False, "listening": False, "dialled_anew": 0, "lost": 0,
                "bytes_up": 0, "bytes_down": 0,
            }  # fmt: skip
            assert (found["learners"], found["cache"]["bodies"]) == ([], 0)
            with pytest.raises(LinkError, match="no syncer answers"):
                query.ask(0.2)
    finally:
        node.stop("the test stops it")
        thread.join(30.0)
    assert not thread.is_alive()


def test_status_goes_up_and_the_relay_counts_what_passed(stage_of: MakeStage) -> None:
    stage = stage_of()
    a = stage.client("a", 5)
    stage.listening(a)
    a.say(a.hello)
    a.say(contribution(Outbox(), pattern(1)))
    update = stage.upstream.update(0, 5, pattern(4))
    stage.upstream.publish(update)
    stage.until(lambda: a.has(update), "the update has passed")
    a.say(StatusQuery())
    stage.until(lambda: stage.upstream.heard_of(StatusQuery), "the question about the run")
    a.say(StatusQuery(relay=True))
    stage.until(lambda: a.heard_of(Status), "the relay's own answer")
    assert len(stage.upstream.heard_of(StatusQuery)) == 1
    with Query(stage.region.behind) as query:
        found = query.ask(30.0, relay=True)
    [learner] = [each for each in found["learners"] if each["name"] == "a"]
    assert (learner["incarnation"], learner["lag"], learner["left"]) == (f"{5:016x}", 2, False)
    assert found["upstream"]["connected"]
    assert found["upstream"]["bytes_down"] >= 4 * CHUNK
    assert found["region"]["bytes_down"] >= 4 * CHUNK
    assert found["cache"]["bodies"] == 1


def test_an_upstream_of_another_version_ends_it_with_the_reason(stage_of: MakeStage) -> None:
    stage = stage_of()
    a = stage.client("a")
    cast = stage.upstream.roads.sockets[Road.CONTROL_CAST]

    def ended() -> bool:
        cast.send(b"\x82\xa1v\x63\xa1t\xa4beat")
        return stage.relay.failure is not None

    stage.until(ended, "its end")
    assert isinstance(stage.relay.failure, ConfigError)
    assert "protocol 99" in str(stage.relay.failure)
    assert a.heard == []


@pytest.mark.parametrize(
    ("net", "relay", "words"),
    [
        ({}, {"listen": "0.0.0.0"}, ["relay.listen is '0.0.0.0'", "net.insecure"]),
        ({"port": 6000}, {"port": 6003}, ["relay.port is 6003", "net.port 6000", "dial itself"]),
    ],
)
def test_what_it_may_not_bind_is_said(net: dict[str, Any], relay: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        RelayNode(NetParams(**net), RelayParams(**relay))
    assert all(word in str(caught.value) for word in words)


def test_a_taken_port_is_said_and_nothing_is_left_open(stage_of: MakeStage) -> None:
    stage = stage_of()
    with pytest.raises(ConfigError, match="is taken by another process"):
        RelayNode(stage.net, stage.region.params)


def test_a_chunk_reaches_the_region_though_its_update_is_not_whole(stage_of: MakeStage) -> None:
    """Cut through: each chunk goes on as it comes."""
    stage = stage_of()
    a = stage.client("a")
    stage.listening(a)
    update = stage.upstream.update(0, 4, pattern(3))
    first, *rest = stage.upstream.box.broadcast(update.body.transfer)
    stage.upstream.roads.cast(update)
    stage.upstream.roads.cast_chunks([first])
    stage.until(lambda: a.chunks, "the first chunk")
    assert [(road, chunk) for road, _, chunk in a.chunks] == [
        (Road.BULK_CAST, Chunk(transfer=update.body.transfer, index=0, checksum=first.checksum))
    ]
    stage.upstream.roads.cast_chunks(rest)
    stage.until(lambda: a.has(update), "all of it")
