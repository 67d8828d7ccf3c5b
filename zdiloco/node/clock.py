"""The one clock of a process: monotonic seconds, handed in wherever time is needed, so that tests can replace it."""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Answers with monotonic seconds; only differences mean anything, and only within one process."""

monotonic: Clock = time.monotonic
