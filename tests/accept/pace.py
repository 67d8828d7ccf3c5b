"""Promises in seconds, judged on a machine that may be busy: by how much longer everything takes there just now."""

import time

WORK_S = 0.2
"""So much work tells how slow the machine is; it is more than a scheduler gives in advance to who has slept."""


def slowness() -> float:
    """How many times longer work takes now than on a machine that has nothing else to do; 1 on such a one."""
    began, worked = time.monotonic(), time.thread_time()
    while time.thread_time() - worked < WORK_S:
        pass
    return max(1.0, (time.monotonic() - began) / WORK_S)


def assert_within(promised_s: float, began: float) -> None:
    """No more has passed since `began` (monotonic seconds) than was promised, or than that takes on a busy machine."""
    took = time.monotonic() - began
    assert took <= promised_s or took <= promised_s * slowness(), f"{took:.2f} s, promised are {promised_s:g}"
