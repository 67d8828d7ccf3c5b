"""What nodes do with single actions: the whole state is offered once for all who ask, notes never hold `step` up."""

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.core.samples import contribution
from tests.node.test_syncer_body import with_values
from zdiloco.core import machine as m
from zdiloco.core.messages import Body, Update
from zdiloco.errors import MalformedFrame
from zdiloco.node.learner_acts import LearnerActs
from zdiloco.node.params import NetParams
from zdiloco.node.publishing import Published
from zdiloco.node.shelf import Shelf
from zdiloco.node.sockets import Road
from zdiloco.node.syncer_acts import SyncerActs
from zdiloco.units import Epoch, MemberKey, Stamp
from zdiloco.wire.inbox import Inbox, InboxParams
from zdiloco.wire.joined import Joined
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.pace import LEAST_CHUNK
from zdiloco.wire.transfer import Gone
from zdiloco.wire.vain import MOST_VAIN

KEYS = [MemberKey(name, 1) for name in "abcd"]
OLD, NEW = Stamp(Epoch(1, 1), 3), Stamp(Epoch(2, 1), 3)


class Bench:
    """The acts of a syncer, with a worker whose jobs are done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.sent: list[tuple[str, Stamp]] = []
        self.taken = 0
        self.stamp = OLD
        parts: Any = SimpleNamespace(
            worker=SimpleNamespace(submit=self.jobs.append),
            wake=SimpleNamespace(post=lambda job: job()),
            roads=SimpleNamespace(send=lambda key, update: self.sent.append((key.name, update.stamp))),
            body=SimpleNamespace(published=self.published, restamp=self.restamp, layout=None),
            shelf=SimpleNamespace(put=self.put),
            settings=SimpleNamespace(net=SimpleNamespace(chunk_bytes=1024, give_up_s=1.0, stall_s=0.1)),
            clock=lambda: 0.0,
        )
        self.acts = SyncerActs(parts)

    def published(self, fragment: int) -> Published:
        self.taken += 1
        value = torch.zeros(8, dtype=torch.uint8)
        return Published(fragment=fragment, stamp=self.stamp, full=True, codec="bf16", value=value, record=(), digest=7)

    def restamp(self, stamps: tuple[Stamp, ...], exact: bool = False) -> None:
        self.stamp = stamps[0]

    def put(self, slot: Any, name: str, body: Joined, now: float, **options: Any) -> Body:
        return Body(transfer=name, nbytes=body.nbytes, chunk_bytes=1024, digest=1)

    def ask(self, *keys: MemberKey) -> None:
        for key in keys:
            self.acts.do(m.Serve(key=key, fragment=0))

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


def test_the_state_is_offered_once_for_all_who_ask() -> None:
    bench = Bench()
    bench.acts.do(m.Restamp(stamps=(OLD,)))
    bench.ask(KEYS[0], KEYS[1], KEYS[0], KEYS[2])
    assert len(bench.jobs) == 2, "the restamp, and one for all"
    bench.work()
    assert bench.sent == [("a", OLD), ("b", OLD), ("c", OLD)]
    bench.ask(KEYS[3])
    assert bench.sent[3:] == [("d", OLD)], "it is still on the shelf"
    assert (bench.taken, bench.jobs, bench.acts.states._askers) == (1, [], {})


def test_who_asks_after_a_restamp_gets_the_new_stamp() -> None:
    bench = Bench()
    bench.acts.do(m.Restamp(stamps=(OLD,)))
    bench.ask(KEYS[0])
    bench.acts.do(m.Restamp(stamps=(NEW,)))
    bench.ask(KEYS[1], KEYS[2])
    bench.work()
    assert bench.sent == [("a", OLD), ("b", NEW), ("c", NEW)]
    assert bench.taken == 2


class LastValues:
    """The acts of a syncer with real values, shelf and outbox, one fragment; the worker's jobs are done at once."""

    def __init__(self) -> None:
        self.now, self.body, self.outbox = 0.0, with_values(momentum=0.9), Outbox()
        self.offers: list[Update] = []
        parts: Any = SimpleNamespace(
            worker=SimpleNamespace(submit=lambda job: job()),
            wake=SimpleNamespace(post=lambda job: job()),
            roads=SimpleNamespace(send=lambda key, update: self.offers.append(update)),
            body=self.body,
            shelf=Shelf(self.outbox),
            settings=SimpleNamespace(net=NetParams(chunk_bytes=1024)),
            clock=lambda: self.now,
        )
        self.acts, self.shelf = SyncerActs(parts), parts.shelf

    def ask(self, key: MemberKey) -> Update:
        self.acts.do(m.Serve(key=key, fragment=0))
        return self.offers[-1]


def test_the_last_values_are_served_from_where_theta_lies() -> None:
    bench = LastValues()
    published = bench.ask(KEYS[0])
    assert published.codec == "bf16"
    bench.acts.do(m.Restamp(stamps=(NEW,), exact=True))
    exact = [bench.ask(key) for key in KEYS]
    assert {(offer.codec, offer.stamp, offer.body.transfer) for offer in exact} == {
        ("fp32", NEW, exact[0].body.transfer)
    }
    payload = bench.outbox._held[exact[0].body.transfer].payload
    theta = bench.body.states[0].theta
    theta[3] = 77.0  # only a test may do that
    assert payload.piece(0, 4 * theta.numel()) == theta.numpy().tobytes(), "no copy of it is held"
    bench.now = NetParams().give_up_s + 1.0
    bench.shelf.sweep(bench.now)
    assert bench.outbox.held_bytes == exact[0].body.nbytes, "what was published before is nobody's any more"


class StatusBench:
    """The acts of a syncer with a real shelf, for queries; `states` counts how often the status was made."""

    def __init__(self) -> None:
        self.now, self.states = 0.0, 0
        self.outbox = Outbox()
        self.dropped: list[str] = []
        self.shelf = Shelf(self.outbox, self.dropped.append)
        self.bodies: list[Body] = []
        parts: Any = SimpleNamespace(
            shelf=self.shelf,
            roads=SimpleNamespace(
                send=lambda key, message: self.bodies.append(message.body),
            ),
            settings=SimpleNamespace(net=SimpleNamespace(chunk_bytes=1024)),
            clock=lambda: self.now,
            status=self.status,
        )
        self.acts = SyncerActs(parts)

    def status(self) -> dict[str, Any]:
        self.states += 1
        return {"states": self.states, "filler": "x" * 5000}

    def ask(self, key: MemberKey) -> Body:
        self.acts.do(m.ServeStatus(key=key))
        return self.bodies[-1]


def test_a_thousand_queries_of_one_peer_leave_one_payload() -> None:
    bench = StatusBench()
    for _ in range(1000):
        bench.ask(KEYS[0])
    assert bench.states == 1
    assert bench.outbox.held_bytes == bench.bodies[-1].nbytes
    assert len({body.digest for body in bench.bodies}) == 1
    for _ in range(1000):
        bench.now += 0.25
        bench.ask(KEYS[0])
    assert bench.states == 1001
    assert bench.outbox.held_bytes == bench.bodies[-1].nbytes
    assert bench.dropped == [body.transfer for body in bench.bodies[:-1]], "chunks that wait for the peer go too"


def test_all_who_ask_at_one_time_get_the_same_bytes_and_later_others() -> None:
    bench = StatusBench()
    first = [bench.ask(key) for key in KEYS]
    assert len({body.digest for body in first}) == 1
    assert len({body.transfer for body in first}) == len(KEYS)
    bench.now = 0.2
    assert bench.ask(KEYS[0]).digest != first[0].digest
    bench.now = 100.0
    bench.shelf.sweep(bench.now)
    bench.ask(KEYS[1])
    assert bench.outbox.held_bytes == bench.bodies[-1].nbytes
    assert list(bench.acts._answered) == [KEYS[1]], "nothing is remembered of who has gone"


def test_a_second_body_under_the_name_of_one_under_way_is_lost_and_the_same_one_asked_for_again_is_not() -> None:
    """Else it would be granted room, and never come."""
    fed: list[Any] = []
    fragments = [SimpleNamespace(numel=8)]
    layout = SimpleNamespace(fragments=fragments, numels=[8])
    parts: Any = SimpleNamespace(
        body=SimpleNamespace(layout=layout), transfers=SimpleNamespace(expect=lambda *_, last: None), feed=fed.append,
        clock=lambda: 0.0,
    )  # fmt: skip
    acts = SyncerActs(parts)
    body = Body(transfer="c/1", nbytes=16, chunk_bytes=1024, digest=1)
    first = contribution(1, codec="bf16", body=body)
    for message in (first, first):
        acts.do(m.Fetch(key=KEYS[0], message=message))
    assert fed == []
    second = contribution(2, codec="bf16", body=body)
    acts.do(m.Fetch(key=KEYS[0], message=second))
    reason = "the transfer 'c/1' carries something else already"
    assert fed == [m.FetchLost(key=KEYS[0], message=second, reason=reason)]


def test_a_merge_that_is_not_finite_is_told_to_the_machine() -> None:
    jobs: list[Callable[[], None]] = []
    events: list[Any] = []

    def refuse(action: m.Merge, payloads: list[Any]) -> Published:
        raise MalformedFrame("the values of fragment 2 are not finite")

    parts: Any = SimpleNamespace(
        worker=SimpleNamespace(submit=jobs.append),
        wake=SimpleNamespace(post=lambda job: job()),
        body=SimpleNamespace(merge=refuse),
        settings=SimpleNamespace(net=SimpleNamespace(chunk_bytes=1024)),
        feed=events.append,
    )
    SyncerActs(parts).do(m.Merge(fragment=2, stamp=NEW, parts=(), merged=()))
    jobs.pop()()
    assert events == [m.MergeFailed(fragment=2, reason="the values of fragment 2 are not finite")]


class Threads(logging.Handler):
    """Keeps, of each record, its text and the thread that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str | None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.getMessage(), record.threadName))


@pytest.mark.net
def test_a_learner_says_its_notes_on_the_network_thread(run_of: Callable[..., Any]) -> None:
    run, handler = run_of(), Threads()
    logger = logging.getLogger("zdiloco.node.learner")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        run.start_syncer()
        trainer = run.join("a")
        run.until(lambda: trainer.joined.is_set(), "the join")
        with trainer.node._lock:
            trainer.node._deal(m.Note(what="something", why="for the test"), True)
            here = threading.current_thread().name
            assert here not in {thread for _, thread in handler.seen}
        run.until(lambda: any("a: something" in text for text, _ in handler.seen), "the note")
        trainer.stop()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    notes = {thread for text, thread in handler.seen if " why=" in text}
    assert notes == {"zdiloco-network"}


class LearnerBench:
    """The acts of a learner over an inbox, with the roads it has open; `dialled`: what it has opened and left."""

    def __init__(self, chunk_bytes: int = 2**20) -> None:
        self.dialled: list[Any] = []
        self.heard = 0
        self.inbox, self.outbox = Inbox(InboxParams()), Outbox()
        sockets = dict.fromkeys(Road)
        parts: Any = SimpleNamespace(
            name="a",
            clock=lambda: 0.0,
            settings=SimpleNamespace(net=NetParams(chunk_bytes=chunk_bytes)),
            roads=SimpleNamespace(sockets=sockets, of=self.counts, send=lambda key, message: None),
            transfers=SimpleNamespace(
                inbox=self.inbox, outbox=self.outbox, turn=self.inbox.turn, forget_early=lambda: None
            ),
            dialler=SimpleNamespace(
                listen=self.listen, dial_bulk=lambda: self.dialled.append("bulk"), why_refused=lambda: "",
                renewed=lambda: False,
            ),
        )
        self.sockets = sockets
        self.acts = LearnerActs(parts)

    def counts(self, key: MemberKey) -> Any:
        self.heard += 1
        return SimpleNamespace(frames_down=self.heard)

    def listen(self, on: bool) -> None:
        self.dialled.append(on)
        self.sockets.pop(Road.BULK_CAST, None)
        if on:
            self.sockets[Road.BULK_CAST] = None


def test_a_broadcast_that_the_machine_has_left_is_not_dialled_anew() -> None:
    """Its last bodies came by credit alone: a reason to dial it anew while it is wanted, and none afterwards."""
    bench = LearnerBench()
    bench.inbox.unheard = MOST_VAIN
    bench.acts.turn(1.0)
    assert bench.dialled == [True]
    bench.inbox.unheard = MOST_VAIN
    bench.acts.do(m.Listen(on=False))
    bench.acts.turn(100.0)
    bench.inbox.unheard = MOST_VAIN  # whatever says so
    bench.acts.turn(200.0)
    assert bench.dialled == [True, False]
    bench.acts.do(m.Listen(on=True))
    assert bench.inbox.unheard == 0, "what was before is no sign"


def test_after_the_syncer_gave_up_chunks_are_of_the_least_size_or_that_of_the_settings() -> None:
    for most, least in ((2**20, LEAST_CHUNK), (2**12, 2**12)):
        bench = LearnerBench(most)
        bench.acts.refused(m.SYNCER, Gone(transfer="c/0/1", by_sender=False, reason=""), 0.0)
        assert bench.acts._put("layout", memoryview(bytes(2**15))).chunk_bytes == least
