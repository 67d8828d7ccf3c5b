"""What events cost a syncer machine: those of a crowd are recorded, and played to a new machine while CPU time is read.

Rule: the machine is the same function of the same events, so that what is measured is it alone, without the crowd. CPU
time of this thread only, so that a busy computer changes little; what reading the clock costs is taken off.
"""

import cProfile
import gc
import pstats
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from zdiloco.core import machine as m
from zdiloco.core.params import SyncParams
from zdiloco.core.syncer import SyncerMachine
from zdiloco.sim.crowd import Crowd, CrowdParams, new_machine

Tape = list[tuple[float, m.SyncerEvent]]
"""Events with their moments, in virtual seconds."""


@dataclass(slots=True)
class Cost:
    """What events of one kind have cost: how many, CPU seconds in all, and the dearest single one."""

    count: int = 0
    cpu_s: float = 0.0
    most_s: float = 0.0

    @property
    def mean_us(self) -> float:
        """CPU microseconds per event."""
        return 1e6 * self.cpu_s / max(1, self.count)


def record(params: CrowdParams, sync: SyncParams, until: float) -> tuple[Tape, Crowd]:
    """Let a crowd live until a moment. Returns what its syncer was told, and the crowd as it is then."""
    tape: Tape = []
    crowd = Crowd(params, sync, lambda now, event: tape.append((now, event)))
    crowd.run(until)
    return tape, crowd


def play(tape: Tape, sync: SyncParams) -> SyncerMachine:
    """A new machine that has been told everything on a tape, and asked for its deadline each time."""
    machine = new_machine(sync)
    for now, event in tape:
        machine.handle(event, now)
        machine.deadline()
    return machine


def per_event_us(tape: Tape, sync: SyncParams, times: int = 3) -> float:
    """CPU microseconds per event, the best of several times."""
    best = float("inf")
    for _ in range(times):
        with _tape_apart():
            began = time.thread_time()
            play(tape, sync)
            best = min(best, time.thread_time() - began)
    return 1e6 * best / len(tape)


@contextmanager
def _tape_apart() -> Iterator[None]:
    """The garbage collector leaves alone what is there already: a syncer has no tape of millions of values."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def by_kind(tape: Tape, sync: SyncParams) -> dict[str, Cost]:
    """CPU time per kind of event, messages by their own names."""
    machine, costs, reading_s = new_machine(sync), dict[str, Cost](), _reading_s()
    with _tape_apart():
        for now, event in tape:
            began = time.thread_time()
            machine.handle(event, now)
            machine.deadline()
            spent = max(0.0, time.thread_time() - began - reading_s)
            cost = costs.setdefault(type(event.message if isinstance(event, m.Received) else event).__name__, Cost())
            cost.count, cost.cpu_s, cost.most_s = cost.count + 1, cost.cpu_s + spent, max(cost.most_s, spent)
    return costs


def _reading_s(times: int = 2000) -> float:
    began = time.thread_time()
    for _ in range(times):
        time.thread_time()
    return (time.thread_time() - began) / times


def by_function(tape: Tape, sync: SyncParams, most: int = 12) -> list[tuple[str, float]]:
    """Where the time goes: functions with their own share of it, the dearest first."""
    profile = cProfile.Profile()
    profile.runcall(play, tape, sync)
    # Typed nowhere; what is typed, get_stats_profile(), knows functions by their bare names and mixes them up.
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    own = {key: row[2] for key, row in stats.items()}
    total = sum(own.values())
    dearest = sorted(own, key=lambda key: -own[key])[:most]
    return [(f"{key[0].rpartition('/')[2]}:{key[2]}", own[key] / total) for key in dearest]


def bytes_held(tape: Tape, sync: SyncParams) -> int:
    """Bytes that a machine holds after everything on a tape, beyond the tape itself."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        machine = play(tape, sync)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        assert machine.fleet
        return held
    finally:
        tracemalloc.stop()
