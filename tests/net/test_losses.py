"""Losses that the transport hides, made to happen to a whole run: acks, pulls and beats make up for each of them.

`tests/net/test_libzmq.py` pins what libzmq does by itself. After each loss rounds go on with everybody's work, and at
the end the ledger balances to the token.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import zmq

from tests.node.conftest import LIMIT_S, Run, Trainer
from tests.node.test_loopback import assert_balanced, node_of
from zdiloco.chaos.proxy import Proxy
from zdiloco.core.duty import Duty
from zdiloco.core.machine import SYNCER
from zdiloco.core.membership import MemberState
from zdiloco.core.messages import Ack, Call
from zdiloco.node import roads, sockets
from zdiloco.node.sockets import MAX_CHUNK_FRAME, MAX_CONTROL_FRAME, Road

pytestmark = [pytest.mark.net, pytest.mark.slow]
MakeRun = Callable[..., Run]
MakeLink = Callable[[int], tuple[Proxy, int]]
BULK, CONTROL_CAST, BULK_CAST = 1, 2, 3
WITHIN_S = 3.0
"""How much later than its time a busy machine may notice something."""


class Far:
    """A run with a learner `near` beside its syncer, and one that is `far` behind a link."""

    def __init__(self, run: Run, link_to: MakeLink, **net: Any) -> None:
        self.run = run
        self.proxy, port = link_to(run.config.net.port)
        self.syncer = run.start_syncer()
        self.near = run.join("near")
        config = replace(run.config, net=replace(run.config.net, port=port, **net))
        self.far = Trainer(config, "far", seed=9)
        run.trainers.append(self.far)
        self.merged_again("far")
        self.merged_again("near")

    def merged(self, name: str) -> int:
        """Tokens of a learner, whatever its incarnation, in every fragment."""
        return sum(
            e.tokens for state in self.syncer.body.states.values() for e in state.map_.values() if e.name == name
        )

    def merged_again(self, name: str) -> None:
        """Wait for merged work that was trained from now on."""
        trained = 4 * next(trainer for trainer in self.run.trainers if trainer.name == name).steps
        self.run.until(lambda: self.least(name) > trained, f"merged work of {name}")

    def least(self, name: str) -> int:
        """Tokens of a learner in the fragment that has the fewest of them."""
        states = self.syncer.body.states.values()
        return min((sum(e.tokens for e in s.map_.values() if e.name == name) for s in states), default=0)

    def state(self, name: str) -> MemberState:
        return self.syncer.machine.fleet.members[name].state

    def duties(self) -> list[Duty]:
        return node_of(self.far).machine.duties

    def end(self) -> None:
        """Everybody leaves; every token has one fate."""
        for trainer in self.run.trainers:
            trainer.stop()
            assert trainer.error is None
        self.run.stop_syncer()
        assert_balanced(self.run.config.run.path, self.syncer)


@contextmanager
def held_up(node: Any) -> Iterator[None]:
    """The network thread of a node is busy meanwhile; on the way out it goes on."""
    go_on, is_busy = threading.Event(), threading.Event()

    def busy() -> None:
        is_busy.set()
        go_on.wait(LIMIT_S)

    node.wake.post(busy)
    assert is_busy.wait(LIMIT_S)
    try:
        yield
    finally:
        go_on.set()


def test_a_half_open_link_is_noticed_at_both_ends_and_recovers(run_of: MakeRun, link_to: MakeLink) -> None:
    """A-17: packets stop both ways and no FIN comes. A-2: rounds without the lost one do not each pay for it."""
    there = Far(run_of(), link_to)
    machine, params = node_of(there.far).machine, there.run.config
    there.proxy.stop()
    there.run.until(lambda: there.state("far") is MemberState.GONE, "the syncer misses it")
    silent = re.fullmatch(r"silent for ([\d.]+) s", there.syncer.machine.fleet.members["far"].why)
    assert silent
    assert params.sync.gone_after_s <= float(silent[1]) < params.sync.gone_after_s + WITHIN_S
    there.run.until(lambda: machine.phase == "adrift", "the learner misses the syncer")
    steps, rounds = there.far.steps, there.syncer.machine.rounds
    there.run.until(lambda: there.far.steps > steps + 20, "it trains on")
    there.run.until(lambda: there.syncer.machine.rounds > rounds + 4, "so does the other")
    assert all(not desk.round or there.far.node.key not in desk.round.fresh for desk in there.syncer.machine.desk)
    there.proxy.heal()
    there.run.until(lambda: machine.phase == "training", "the learner is back")
    there.merged_again("far")
    there.end()


def test_a_link_that_is_reset_goes_on_where_it_was(run_of: MakeRun, link_to: MakeLink) -> None:
    """Every connection is reset, again and again, with messages and chunks on their way."""
    there = Far(run_of(), link_to)
    for _ in range(3):
        there.proxy.cut()
        there.merged_again("far")
    there.end()


@pytest.mark.parametrize("roads", [(CONTROL_CAST, BULK_CAST), (BULK_CAST,)])
def test_broadcasts_that_were_missed_are_pulled(run_of: MakeRun, link_to: MakeLink, roads: tuple[int, ...]) -> None:
    """E-75: a subscription that comes late, here since it was cut: the gap is seen by its version and fetched."""
    there = Far(run_of(learner={"silent_after_s": 30.0, "answer_timeout_s": 0.5}), link_to)
    counts = node_of(there.far).machine.counts
    before = dict(counts)
    there.proxy.cut(roads, refuse=True)
    first = there.syncer.machine.rounds
    there.run.until(lambda: there.syncer.machine.rounds > first + 6, "rounds that it does not hear of")
    there.proxy.heal(roads)

    def caught_up() -> bool:
        tips = [duty.tip.version for duty in there.duties()]
        return all(tip > desk.stamp.version - 2 for tip, desk in zip(tips, there.syncer.machine.desk, strict=True))

    there.run.until(caught_up, "the newest of every fragment")
    there.merged_again("far")
    assert counts.get("pulled", 0) > before.get("pulled", 0)
    there.end()


def test_chunks_of_a_broadcast_that_do_not_come_come_another_way(run_of: MakeRun, link_to: MakeLink) -> None:
    """A slow subscriber: announcements come in time, the chunks themselves never; the reliable road brings them."""
    there = Far(run_of(), link_to)
    there.proxy.stop((BULK_CAST,))
    seen = [duty.progress.seen.version for duty in there.duties()]

    def moved_on() -> bool:
        return all(duty.progress.seen.version > v + 2 for duty, v in zip(there.duties(), seen, strict=True))

    there.run.until(moved_on, "newer versions of every fragment")
    there.proxy.heal()
    there.end()


@pytest.mark.parametrize(("road", "limit"), [(Road.CONTROL, MAX_CONTROL_FRAME), (Road.BULK, MAX_CHUNK_FRAME)])
def test_a_frame_over_the_limit_costs_a_connection_and_nothing_else(
    run_of: MakeRun, link_to: MakeLink, road: Road, limit: int
) -> None:
    """The frame, and what is behind it, are lost, and the connection is; what was lost is said or sent again."""
    there = Far(run_of(), link_to)
    node = node_of(there.far)
    for _ in range(3):
        sent = threading.Event()

        def send() -> None:
            node._roads.sockets[road].send(bytes(limit + 1))
            sent.set()  # noqa: B023 - waited for in this very turn

        node.wake.post(send)
        assert sent.wait(LIMIT_S)
        there.merged_again("far")
    there.merged_again("near")
    there.end()


def test_what_handover_discards_is_said_again(run_of: MakeRun, link_to: MakeLink) -> None:
    """E-73: the same identity connects anew while the syncer is busy and has read nothing of the old connection."""
    there = Far(run_of(), link_to)
    key = node_of(there.far).key
    for _ in range(3):
        with held_up(there.syncer):
            steps = there.far.steps
            there.run.until(lambda steps=steps: there.far.steps > steps + 20, "steps, and words about them")
            there.proxy.cut()
            steps = there.far.steps
            there.run.until(lambda steps=steps: there.far.steps > steps + 60, "a new connection")
        there.merged_again("far")
    assert node_of(there.far).key == key
    there.end()


def test_a_newer_process_of_the_name_is_accepted_by_a_busy_syncer(run_of: MakeRun, link_to: MakeLink) -> None:
    """E-73, A-1: it was killed, and the syncer learns of its end and of its successor at the same moment."""
    there = Far(run_of(), link_to)
    old = node_of(there.far).key
    with held_up(there.syncer):
        there.proxy.cut(refuse=True)  # nothing of its end reaches the syncer
        there.far.stop()
        newer = there.run.join("far")
    there.run.until(lambda: newer.steps > 5, "steps of the newer one")
    there.merged_again("far")
    member = there.syncer.machine.fleet.members["far"]
    assert member.key == node_of(newer).key != old
    assert old in there.syncer.machine.fleet.replaced
    there.end()


PATIENT = {"silent_after_s": 5.0, "answer_timeout_s": 0.5}
"""A lost beat or two are no reason to look for another syncer."""


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control roads that hold little: a few messages in each socket and in the kernel, and a few that wait here."""
    monkeypatch.setattr(sockets, "EVERY", {**sockets.EVERY, zmq.SNDBUF: 2048, zmq.RCVBUF: 2048})
    for road in (Road.CONTROL, Road.CONTROL_CAST):
        marks = {zmq.SNDHWM: 8, zmq.RCVHWM: 8}
        monkeypatch.setitem(sockets._ROAD, road, {**sockets._ROAD[road], **marks})
    monkeypatch.setattr(roads, "CONTROL_WAITING", 8)


def no_link(port: int) -> tuple[None, int]:
    """Straight to the syncer: a proxy's buffers would hold what is to be lost."""
    return None, port


@pytest.mark.usefixtures("narrow")
def test_broadcasts_lost_at_the_high_water_mark_are_seen_by_beats_and_pulled(run_of: MakeRun) -> None:
    """A learner that reads nothing for twenty rounds: the publisher drops without a word, and says nothing again."""
    there = Far(run_of(learner=PATIENT, sync={"suspect_after_s": 20.0, "gone_after_s": 30.0}), no_link)
    counts = node_of(there.far).machine.counts
    heard: list[Any] = []
    node, listen = node_of(there.far), node_of(there.far).on_message
    node.on_message = lambda key, message, now: (heard.append(message), listen(key, message, now))[1]
    seen = [duty.progress.seen.version for duty in there.duties()]
    with held_up(node):
        crowd = [Call(epoch=there.syncer.machine.epoch, fragment=0, version=1)] * 20  # long over: it only takes room
        before, waves = dict(counts), iter(range(1000))

        def crowded() -> bool:  # wave after wave, for the socket hands what it holds to the kernel
            there.syncer.wake.post(lambda: [there.syncer.roads.cast(message) for message in crowd] and None)
            return next(waves) > 100

        there.run.until(crowded, "roads that are full")
        rounds = there.syncer.machine.rounds
        there.run.until(lambda: there.syncer.machine.rounds > rounds + 20, "rounds of the other")

    def moved_on() -> bool:
        return all(duty.progress.seen.version > v + 5 for duty, v in zip(there.duties(), seen, strict=True))

    there.run.until(moved_on, "newer versions of every fragment")
    assert sum(message in crowd[:1] for message in heard) < 100 * len(crowd), "nothing was lost, so nothing is shown"
    assert counts["pulled"] > before.get("pulled", 0)
    there.merged_again("far")
    there.end()


@pytest.mark.usefixtures("narrow")
def test_words_that_a_full_syncer_did_not_take_are_said_again(
    run_of: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The syncer reads nothing: what a learner says is dropped here, counted, and its work is merged all the same."""
    there = Far(run_of(learner=PATIENT), no_link)
    monkeypatch.setattr(roads, "CONTROL_WAITING", 1)  # of most kinds only the newest waits, so few ever do
    counts = node_of(there.far)._roads.of(SYNCER)
    for _ in range(3):
        dropped = counts.dropped
        with held_up(there.syncer):
            there.run.until(lambda dropped=dropped: counts.dropped > dropped + 3, "words that go over board")
        there.merged_again("far")
        there.merged_again("near")
    there.end()


@pytest.mark.usefixtures("narrow")
def test_words_that_a_full_learner_did_not_take_are_said_again(run_of: MakeRun) -> None:
    """Acks and credits to a learner that reads nothing are pushed over board by others, and come again when asked."""
    there = Far(run_of(learner=PATIENT), no_link)
    node, key = node_of(there.far), node_of(there.far).key
    counts = there.syncer.roads.of(key)
    crowd = [Ack(fragment=0, held=0, merged=0)] * 400  # says nothing, but takes the room
    for _ in range(3):
        with held_up(node):
            dropped = counts.dropped
            there.syncer.wake.post(lambda: [there.syncer.roads.send(key, message) for message in crowd] and None)
            there.run.until(lambda dropped=dropped: counts.dropped > dropped + 100, "words that go over board")
        there.merged_again("far")
    there.end()


def test_a_learner_that_reads_nothing_for_a_while_goes_on_where_it_was(run_of: MakeRun, link_to: MakeLink) -> None:
    """With room for everything: what has come meanwhile is taken in order."""
    there = Far(run_of(), link_to)
    with held_up(node_of(there.far)):
        rounds = there.syncer.machine.rounds
        there.run.until(lambda: there.syncer.machine.rounds > rounds + 20, "rounds of the other")
    there.merged_again("far")
    there.end()


def test_a_slow_uplink_is_no_dead_one(run_of: MakeRun, link_to: MakeLink) -> None:
    """Chunks that take half a second each: no heartbeat cuts the bulk road, and the work is merged, late."""
    there = Far(run_of(net={"stall_s": 2.0, "chunk_bytes": 1024, "window_bytes": 4096}), link_to)
    there.proxy.slow(BULK, 2048)
    there.merged_again("far")
    assert there.state("far") is MemberState.LIVE
    there.proxy.slow(BULK, 1e9)
    there.end()


def test_inputs_come_before_deadlines(run_of: MakeRun, link_to: MakeLink) -> None:
    """A-23, A-3: a syncer that was itself held up for longer than the limit declares nobody dead for it."""
    there = Far(run_of(), link_to)
    welcomes = {name: member.order for name, member in there.syncer.machine.fleet.members.items()}
    with held_up(there.syncer):
        ends = threading.Event()
        assert not ends.wait(there.run.config.sync.gone_after_s + 0.5)
    there.merged_again("far")
    there.merged_again("near")
    members = there.syncer.machine.fleet.members
    assert {name: member.order for name, member in members.items()} == welcomes, "somebody was welcomed anew"
    there.end()
