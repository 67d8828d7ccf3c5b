"""A named thread that does heavy jobs one after the other, in the order in which they were given.

Rule: `submit` never blocks. The machines bound how many jobs can be under way, so a full queue is our own mistake and
raises. The first job that raises ends the thread; `failure` keeps why, and whoever is told passes it on.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

from zdiloco.errors import MachineError

log = logging.getLogger(__name__)

Job = Callable[[], None]
CAPACITY = 8192


class Worker:
    """Runs jobs on its own thread until `close`; `on_failure` is called on that thread, once, with the exception."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None], capacity: int = CAPACITY) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(capacity)
        self._on_failure = on_failure
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have `job` done after all that were submitted before it. Raises MachineError where the queue is full."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full as error:
            raise MachineError(f"{self._jobs.maxsize} jobs wait for thread {self._thread.name}") from error

    def close(self, timeout_s: float) -> bool:
        """Let what is queued end, for at most `timeout_s`; True: the thread is over. What is left is abandoned."""
        ends = time.monotonic() + timeout_s
        while self._thread.is_alive():
            try:
                self._jobs.put(None, timeout=min(0.1, max(0.001, ends - time.monotonic())))
                break
            except queue.Full:
                if time.monotonic() > ends:
                    return False
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
