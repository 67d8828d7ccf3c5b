"""The worker and the wake: order, bounds, and a loud end."""

import os
import select
import threading

import pytest

from zdiloco.errors import MachineError
from zdiloco.node.wake import Wake
from zdiloco.node.worker import Worker


def fail(error: BaseException) -> None:
    raise AssertionError(error)


def test_jobs_are_done_in_order() -> None:
    done: list[int] = []
    worker = Worker("w", fail)
    for number in range(100):
        worker.submit(lambda number=number: done.append(number))
    assert worker.close(30.0)
    assert done == list(range(100))


def test_held_jobs_come_after_the_hold_in_their_order() -> None:
    done: list[str] = []
    ran = threading.Event()
    worker = Worker("w", fail)
    with worker.held():
        worker.submit(lambda: done.append("first"))
        worker.submit(lambda: done.append("second"))
        assert worker._jobs.empty()
    worker.submit(ran.set)
    assert ran.wait(30.0)
    assert done == ["first", "second"]
    assert worker.close(30.0)


def test_a_failure_is_told_once_and_ends_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []
    later: list[int] = []
    worker = Worker("w", told.append)

    def explode() -> None:
        raise ValueError("bad")

    worker.submit(explode)
    worker.submit(lambda: later.append(1))
    assert worker.close(30.0)
    assert [str(error) for error in told] == ["bad"]
    assert worker.failure is told[0]
    assert not later
    assert "thread w ends" in caplog.text


def test_a_full_queue_raises_and_never_blocks() -> None:
    gate = threading.Event()
    started = threading.Event()
    worker = Worker("w", fail, capacity=2)

    def wait() -> None:
        started.set()
        gate.wait(60.0)

    worker.submit(wait)
    assert started.wait(30.0)
    worker.submit(lambda: None)
    worker.submit(lambda: None)
    with pytest.raises(MachineError, match="2 jobs wait for thread w"):
        worker.submit(lambda: None)
    assert not worker.close(0.01)
    gate.set()
    assert worker.close(30.0)


def test_a_post_wakes_and_keeps_order() -> None:
    wake = Wake()
    done: list[int] = []
    posters = [threading.Thread(target=lambda n=n: wake.post(lambda: done.append(n))) for n in range(8)]
    for poster in posters:
        poster.start()
        poster.join()
    assert select.select([wake], [], [], 5.0)[0]
    for job in wake.drain():
        job()
    assert done == list(range(8))
    assert not select.select([wake], [], [], 0.0)[0]
    assert wake.drain() == []
    wake.close()
    wake.close()
    wake.post(lambda: done.append(9))


def test_more_posts_than_the_pipe_holds() -> None:
    wake = Wake(capacity=100_000)
    for _ in range(80_000):
        wake.post(lambda: None)
    assert len(wake.drain()) == 80_000
    assert not select.select([wake], [], [], 0.0)[0]
    wake.close()


def test_a_full_wake_says_that_the_network_thread_is_dead() -> None:
    wake = Wake(capacity=3)
    for _ in range(3):
        wake.post(lambda: None)
    with pytest.raises(MachineError, match="network thread"):
        wake.post(lambda: None)
    wake.close()


def test_a_post_that_meets_the_close_writes_into_nobody_elses_file() -> None:
    """The number of a closed pipe is given to the next file, a socket's perhaps, at once."""
    wake = Wake()
    number = wake._write.fileno()
    wake.close()
    reading, writing = os.pipe()
    os.dup2(writing, number)
    wake._closed = False  # what a poster saw that looked just before the close
    wake.post(lambda: None)
    assert not select.select([reading], [], [], 0.0)[0]
    for each in {reading, writing, number}:
        os.close(each)
