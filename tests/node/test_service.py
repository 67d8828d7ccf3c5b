"""What a manager hears: every word at once or not at all, beats of the loop alone, and nothing where nobody listens."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.systemd.ear import LIMIT_S, WATCHDOG_S, Ear
from zdiloco.config import from_tree
from zdiloco.node.hooks import Hooks
from zdiloco.node.service import NOBODY, TELL_S, Service, service_of
from zdiloco.node.syncer import SyncerNode

pytestmark = pytest.mark.net


@pytest.fixture
def ear() -> Iterator[Ear]:
    made = Ear()
    yield made
    made.close()


def line() -> str:
    return "all is\nwell"


def test_a_life_in_its_words(ear: Ear) -> None:
    service = Service(ear.name, watchdog_s=3.0)
    assert service
    service.starts("loads", 2.5)
    service.turn(0.0)  # a learner's loop turns before it has joined
    service.ready(line)
    for now in (0.1, 0.2, 1.0, 1.2):  # three beats in the watchdog's time
        service.turn(now)
    service.reloads()
    service.turn(1.3)
    service.stops("it is over")
    service.stops("twice")
    service.turn(100.0)
    first, waits, ready, beat, reloading, again, stopping = ear.drain()
    assert first == {"STATUS": "loads", "EXTEND_TIMEOUT_USEC": "2500000"}
    assert waits == {"EXTEND_TIMEOUT_USEC": "60000000"}
    assert ready == again == {"READY": "1", "WATCHDOG": "1", "STATUS": "all is well"}
    assert beat == {"WATCHDOG": "1", "STATUS": "all is well"}
    assert {*reloading} == {"RELOADING", "MONOTONIC_USEC"}
    assert stopping == {"STOPPING": "1", "STATUS": "it is over"}


def test_without_a_watchdog_it_only_tells(ear: Ear) -> None:
    service = Service(ear.name)
    service.ready(line)
    for now in (0.0, 0.9 * TELL_S, 1.1 * TELL_S):
        service.turn(now)
    assert [{*said} for said in ear.drain()] == [{"READY", "STATUS"}, {"STATUS"}]


def test_ready_is_said_until_it_is_heard() -> None:
    """By a path, too; where it does not get through nobody is disturbed."""
    place = f"/tmp/zdiloco-{os.getpid()}.socket"  # at most 107 bytes, which a folder of pytest may exceed
    service = Service(place)
    service.ready(line)
    service.turn(0.0)
    ear = Ear(place)
    try:
        service.turn(10.0)
        service.turn(20.0)
        assert ["READY" in said for said in ear.drain()] == [True, False]
    finally:
        ear.close()
        os.unlink(place)


def test_nobody_is_told_nothing(ear: Ear) -> None:
    """No address, one of another kind, or a watchdog that is meant for somebody else."""
    for service in (NOBODY, service_of({}, 7), Service("vsock:2:1234"), Service("relative")):
        assert not service
        service.starts("loads", 1.0)
        service.ready(lambda: pytest.fail("nobody asks"))
        service.turn(0.0)
        service.reloads()
        service.stops("over")
    for environment, beats in (
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, True),
        ({"WATCHDOG_USEC": "3000000"}, True),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
    ):
        service = service_of({"NOTIFY_SOCKET": ear.name, **environment}, 7)
        service.ready(line)
        service.turn(0.0)
        assert ["WATCHDOG" in said for said in ear.drain()] == [beats], environment


@pytest.fixture
def syncer(ear: Ear, tmp_path: Path, free_ports: Callable[[int], int]) -> Iterator[SyncerNode]:
    """One that runs on a thread, and reports."""
    config = from_tree({"run": {"dir": str(tmp_path / "run")}, "net": {"port": free_ports(4)}})
    service = Service(ear.name, WATCHDOG_S)
    node = SyncerNode(config, hooks=Hooks(service=service))
    service.ready(line)
    thread = node.start()
    ear.until("READY")
    yield node
    node.stop("the test is over")
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_it_beats_while_a_merge_and_a_save_take_their_time(syncer: SyncerNode, ear: Ear) -> None:
    """Both threads that work for the loop are busy while it beats more often than the watchdog asks."""
    gate = threading.Event()
    for worker in syncer._workers:
        worker.submit(lambda: gate.wait(LIMIT_S) and None)
    ear.drain()
    beats = [ear.until("WATCHDOG") for _ in range(6)]
    assert not gate.is_set()
    assert len(beats) == 6
    gate.set()


def test_a_loop_that_hangs_does_not_beat(syncer: SyncerNode, ear: Ear) -> None:
    """Other threads live on; they do not speak for it."""
    held, gate = threading.Event(), threading.Event()

    def hang() -> None:
        held.set()
        gate.wait(LIMIT_S)

    syncer.wake.post(hang)
    assert held.wait(LIMIT_S)
    assert ear.is_silent()
    gate.set()
    ear.until("WATCHDOG")
