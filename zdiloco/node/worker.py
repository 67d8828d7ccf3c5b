"""A named thread that does heavy jobs one after the other, in the order in which they were given.

Rule: `submit` never blocks, nor waits for the interpreter lock: the queue is the one written in C, since both sides of
a `queue.Queue` hold a lock of its own while they want that one. The machines bound how many jobs can be under way, so a
full queue is our own mistake and raises. The first job that raises ends the thread; `failure` keeps why, and whoever is
told passes it on.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zdiloco.errors import MachineError

log = logging.getLogger(__name__)

Job = Callable[[], None]
CAPACITY = 8192


class Worker:
    """Runs jobs on its own thread until `close`; `on_failure` is called on that thread, once, with the exception."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None], capacity: int = CAPACITY) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._capacity = capacity
        self._held: list[Job] | None = None
        self._on_failure = on_failure
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have `job` done after all that were submitted before it. Raises MachineError where the queue is full."""
        if self._held is not None:
            self._held.append(job)
            return
        if self._jobs.qsize() >= self._capacity:
            raise MachineError(f"{self._capacity} jobs wait for thread {self._thread.name}")
        self._jobs.put(job)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it jobs are kept back, and submitted in their order at its end: a woken worker wants the interpreter
        lock at once. Whoever submits meanwhile, on any thread, must hold the same lock as who calls this."""
        held: list[Job] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
            for job in held:
                self.submit(job)

    def close(self, timeout_s: float) -> bool:
        """Let what is queued end, for at most `timeout_s`; True: the thread is over. What is left is abandoned."""
        ends = time.monotonic() + timeout_s
        self._jobs.put(None)
        self._thread.join(max(0.0, ends - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # the thread's end is told to its owner, who ends the node
                self.failure = error
                log.exception("thread %s ends", self._thread.name)
                self._on_failure(error)
                return
