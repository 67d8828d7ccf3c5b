"""How other threads meet the one network thread: a bounded queue of callables, and a pipe that wakes the poll at once.

Rule: `post` never blocks. When the queue is full the network thread has been stuck for thousands of posts; that is a
state the rules exclude, so the poster gets MachineError rather than a silent loss. Signal handlers may post.
"""

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

from zdiloco.errors import MachineError

Job = Callable[[], None]

CAPACITY = 8192
"""Most jobs that may wait for the network thread."""


class Wake:
    """A many-to-one queue whose read end (`fileno`) goes into the poller of the network thread."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._jobs: deque[Job] = deque()
        self._capacity = capacity
        self._closed = False
        self._read, write = os.pipe()
        self._write = FileIO(write, "w")  # knows itself that it is closed: a bare number may be somebody else's by then
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)

    def fileno(self) -> int:
        """The descriptor that becomes readable when something was posted."""
        return self._read

    def post(self, job: Job) -> None:
        """Have the network thread run `job` soon, in order of posting. Posts after `close` are dropped."""
        if self._closed:
            return
        if len(self._jobs) >= self._capacity:
            raise MachineError(f"{self._capacity} jobs wait for the network thread; it does not run any more")
        self._jobs.append(job)  # deque.append is atomic
        with suppress(OSError, ValueError):  # a closed pipe needs none; a full one has woken the reader already
            self._write.write(b"\0")

    def drain(self) -> list[Job]:
        """Take what was posted so far; called by the network thread only."""
        with suppress(BlockingIOError, OSError):
            while len(os.read(self._read, 65536)) == 65536:
                continue
        jobs: list[Job] = []
        while self._jobs:
            jobs.append(self._jobs.popleft())
        return jobs

    def close(self) -> None:
        """Let go of the pipe; harmless when repeated."""
        if not self._closed:
            self._closed = True
            os.close(self._read)
            self._write.close()
