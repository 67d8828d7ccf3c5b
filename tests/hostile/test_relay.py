"""A relay among enemies, and among ends that do not read, do not answer, or are too many."""

from dataclasses import replace
from typing import Any

import pytest
import zmq

from tests.hostile.enemy import Enemy, malformed_headers
from tests.hostile.scene import OPEN
from tests.node.relay_stage import CHUNK, NET, MakeStage, pattern
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Goodbye, Hello, Pull, Unwelcome
from zdiloco.node.relay_status import relay_status
from zdiloco.node.roads import CONTROL_WAITING, Offered
from zdiloco.node.sockets import Road, cast_hwm
from zdiloco.units import MemberKey
from zdiloco.wire import lane_life
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit

pytestmark = pytest.mark.net


@pytest.mark.slow
def test_who_reads_nothing_holds_up_nobody_and_little_memory(stage_of: MakeStage) -> None:
    """E-77: one of two subscribers reads nothing while many updates pass: the other has each at once."""
    stage = stage_of(cache_bytes=2**17)
    fast, stuck = stage.client("fast"), stage.client("stuck", stall_s=0.2)
    stage.listening(fast, stuck)
    stage.ends.remove(stuck)
    for version in range(60):
        update = stage.upstream.update(version % 2, version, pattern(20, version))
        stage.upstream.publish(update)
        stage.until(lambda update=update: fast.has(update), "it is at the fast one")
        fast.inbox.release(SYNCER, update.body.transfer)
        stage.upstream.box.drop(update.body.transfer)
    assert fast.inbox.counters.asked_again == 0
    assert stage.relay.cache.nbytes <= 2**17
    assert stage.relay.waiting_bytes == 0
    stage.ends.append(stuck)
    last = stage.upstream.update(0, 1000, pattern(20, 1))
    stage.upstream.roads.send(stuck.key, last)
    stage.upstream.publish(last)
    stage.until(lambda: stuck.has(last), "it has the newest when it reads again")


def test_what_the_upstream_does_not_take_waits_within_bounds_and_others_are_served(
    stage_of: MakeStage
) -> None:
    """The far link takes nothing of one learner: its chunks wait up to two windows, the rest is dropped and counted."""
    stage = stage_of(budget_bytes=2**16)
    a, b = stage.client("a"), stage.client("b")
    stage.listening(a, b)
    lane = stage.relay.lanes.get(a.key)
    assert lane is not None
    offer = lane.roads._offer
    lane.roads._offer = lambda road, *frames: Offered.FULL if road is Road.BULK else offer(road, *frames)
    box = Outbox()
    body = box.add("c/0/1", pattern(200), CHUNK)
    chunks = box.on_credit(SYNCER, Credit(transfer="c/0/1", upto=body.nbytes, received=0))
    assert isinstance(chunks, list)
    for end in (a, b):
        end.roads.send_chunks(SYNCER, chunks)
    stage.until(lambda: sum(key == b.key for _, key, _ in stage.upstream.chunks) == 200, "all chunks of the other")
    stage.until(lambda: lane.dropped + lane.waiting_bytes // CHUNK == 200, "all of the first, held or dropped")
    assert lane.waiting_bytes <= 2 * NET["window_bytes"] + CHUNK
    lane.roads._offer = offer
    held = 200 - lane.dropped
    stage.until(lambda: sum(key == a.key for _, key, _ in stage.upstream.chunks) == held, "what was held")


@pytest.mark.slow
def test_nobody_can_end_a_relay_or_speak_for_another(stage_of: MakeStage, zctx: Any) -> None:
    """W-16: malformed, of another version, too large, from nobody, in another's name: counted, and nothing upstream."""
    stage = stage_of(lambda net: replace(net, **OPEN))
    honest = stage.client("honest")
    stage.listening(honest)
    stage.upstream.heard.clear()
    enemy = Enemy(zctx, stage.region.params.port, MemberKey("eve", 666))
    nobody = Enemy(zctx, stage.region.params.port, b"who am I")
    try:
        for road in (Road.CONTROL, Road.BULK):
            for header in malformed_headers():
                enemy.frames(road, header)
            enemy.frames(road, b"a", b"b", b"c")
            nobody.frames(road, b"x")
        enemy.say(Hello(name="honest", incarnation=1))
        enemy.frames(Road.CONTROL, b"\x82\xa1v\x63\xa1t\xa5hello")
        region = stage.relay.region
        stage.until(lambda: region.of(MemberKey("eve", 666)).malformed["version"] >= 1, "the other version, counted")
        assert enemy.hear(Unwelcome).reason == "version"
        stage.until(lambda: region.strangers["identity"] >= 2, "who is nobody, counted")
        assert region.strangers["hello"] == 1
        for road in (Road.CONTROL, Road.BULK):  # over the limit: the connection ends
            enemy.frames(road, bytes(2**23 + 2**17))
        update = stage.upstream.update(0, 4, pattern(20))
        stage.upstream.publish(update)
        stage.until(lambda: honest.has(update), "an update at the honest one")
        assert all(key == honest.key for key, _ in stage.upstream.heard)
    finally:
        enemy.close()
        nobody.close()


def test_whoever_babbles_at_a_relay_is_banned_there_and_the_region_goes_on(stage_of: MakeStage, zctx: Any) -> None:
    """Its status says so; what the banned one says afterwards does not even open a lane."""
    stage = stage_of(lambda net: replace(net, most_offences=30, ban_s=3600.0))
    stage.region.honest = False
    honest = stage.client("honest")
    stage.listening(honest)
    enemy = Enemy(zctx, stage.region.params.port, MemberKey("eve", 666))
    try:
        for _ in range(40):
            enemy.frames(Road.CONTROL, b"garbage")
        limits = stage.relay.region.gate.limits
        stage.until(lambda: limits.dropped["banned"] >= 9, "it is banned")
        assert enemy.hear(Unwelcome).reason == "banned"
        assert relay_status(stage.relay)["region"]["limits"]["banned"][0]["why"] == "frame"
        enemy.say(Hello(name="eve", incarnation=666))
        stage.until(lambda: limits.dropped["banned"] >= 10, "its hello is dropped")
        update = stage.upstream.update(0, 1, pattern(20))
        stage.upstream.publish(update)
        stage.until(lambda: honest.has(update), "an update at the honest one")
        assert [lane.key for lane in stage.relay.lanes] == [honest.key]
    finally:
        enemy.close()


@pytest.mark.slow
def test_so_many_learners_and_no_more(stage_of: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is one too many is told so; a place is free when somebody has left."""
    monkeypatch.setattr(lane_life, "BRIEF_S", 1.0)  # however busy the machine is, the others speak more often
    stage = stage_of(most_learners=2)
    a, b = stage.client("a"), stage.client("b")
    stage.listening(a, b)
    for end in (a, b):
        end.say(end.hello)
    stage.until(lambda: len(stage.upstream.heard_of(Hello)) == 2, "both hellos")
    late = stage.client("late")

    def told() -> bool:
        for end in (a, b, late):
            end.say(end.hello)
        return bool(late.heard_of(Unwelcome))

    stage.until(told, "word that there is no room")
    assert late.heard_of(Unwelcome)[0][1].reason == "room"
    assert len(stage.relay.lanes) == 2
    a.say(Goodbye(reason="", trained_tokens=0, left_tokens=0, dropped_tokens=0))
    stage.until(lambda: stage.upstream.heard_of(Goodbye), "its goodbye")

    def let_in() -> bool:
        for end in (b, late):
            end.say(end.hello)
        return any(key == late.key for key, _ in stage.upstream.heard_of(Hello))

    stage.until(let_in, "its hello upstream")


@pytest.mark.slow
def test_the_lanes_of_those_that_are_gone_are_closed(
    stage_of: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent, replaced, or never more than a question: descriptors are given back, and sums stay."""
    monkeypatch.setattr(lane_life, "BRIEF_S", 0.2)
    stage = stage_of(forget_after_s=1.0)
    old, new, other = stage.client("a", 1), stage.client("a", 2), stage.client("b", 3)
    stage.listening(old, new, other)
    for end in (old, new, other):
        end.say(end.hello)
    stage.until(lambda: len(stage.upstream.heard_of(Hello)) == 3, "the hellos")
    sockets = [socket for lane in stage.relay.lanes for socket in lane.roads.sockets.values()]
    sent = sum(lane.counts.bytes_up for lane in stage.relay.lanes)
    stage.until(lambda: len(stage.relay.lanes) == 0, "nobody is there any more")
    assert all(socket.closed for socket in sockets)
    assert stage.relay.lanes.passed.bytes_up >= sent
    stage.listening(other)  # and is at once, when it speaks again


@pytest.mark.slow
def test_marks_grow_with_what_is_published(stage_of: MakeStage) -> None:
    """Two updates of the largest fragment fit in the pipe to each subscriber, as at a syncer."""
    stage = stage_of()
    a = stage.client("a")
    stage.listening(a)
    update = stage.upstream.update(0, 1, pattern(1000))
    stage.upstream.publish(update)
    stage.until(lambda: stage.relay.cache.inbox.counters.received_bytes == update.body.nbytes, "all of it")
    mark = cast_hwm(update.body.nbytes, CHUNK)
    assert mark > 2000
    assert stage.relay.region.sockets[Road.BULK_CAST].getsockopt(zmq.SNDHWM) == mark
    assert stage.relay.up.sockets[Road.BULK_CAST].getsockopt(zmq.RCVHWM) == mark


def test_what_waits_for_an_upstream_that_is_away_is_bounded(stage_of: MakeStage) -> None:
    """Words wait for it, the newest of each kind or so many, and go when it returns."""
    stage = stage_of()
    a = stage.client("a")
    stage.listening(a)
    upstream, box = stage.upstream, stage.upstream.box
    stage.until(lambda: stage.relay.connected, "the relay has its upstream")
    stage.end(upstream)
    stage.until(lambda: not stage.relay.connected, "the relay misses it")
    assert stage.relay.lost == 1
    for fragment in range(CONTROL_WAITING + 50):
        a.say(Pull(fragment=fragment))
    lane = stage.relay.lanes.get(a.key)
    assert lane is not None
    stage.until(lambda: lane.counts.dropped >= 50, "the oldest go over board")
    stage.upstream = type(upstream)(stage.context, stage.net)
    stage.upstream.box = box
    stage.ends.append(stage.upstream)
    stage.until(lambda: stage.relay.connected, "it is found again")
    stage.until(lambda: len(stage.upstream.heard_of(Pull)) >= CONTROL_WAITING, "the others arrive")


