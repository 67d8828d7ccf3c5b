"""Carries the deeds of a script out, one after the other, and notes when each began and when its victims were back.

Rule: a deed ends healed: what it stopped goes on, what it cut is mended, whom it killed is started again.
"""

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from zdiloco.chaos.fleet import Fleet
from zdiloco.chaos.inside import Orders
from zdiloco.chaos.script import STORM, STORM_GAP_S, Deed, Kind

AT_PLACE_S = 1.5
"""A process that is to die at a place that it does not pass is killed after so long."""


@dataclass(slots=True)
class Done:
    """A deed that was done. Times are monotonic seconds: `healed_at`, after it `settled_at` (0.0: was not waited for).

    `died_at` is 0.0 where nobody died.
    """

    deed: Deed
    began_at: float
    died_at: float = 0.0
    healed_at: float = 0.0
    settled_at: float = 0.0
    back: dict[str, float] = field(default_factory=dict)
    """Victim -> when it was started again."""

    @property
    def ended_at(self) -> float:
        """When it was over."""
        return max(self.healed_at, self.settled_at)


class Director:
    """Plays deeds with a fleet. `tell` hears of each, as it begins."""

    def __init__(self, fleet: Fleet, tell: Callable[[str], None] = lambda line: None) -> None:
        self._fleet, self._tell = fleet, tell
        self.done: list[Done] = []

    def play(self, script: Iterable[Deed], *, until: Callable[[], bool] = lambda: False) -> None:
        """Play until the script ends, `until` says so, or something is wrong."""
        for deed in script:
            self._fleet.rest(deed.pause_s)
            if until() or self._fleet.faults:
                return
            self.do(deed)

    def do(self, deed: Deed) -> None:
        """Do it and undo it; where the deed says so, wait until all are merged again."""
        self._tell(str(deed))
        done = Done(deed, time.monotonic())
        self.done.append(done)
        self._DEEDS[deed.kind](self, deed, done)
        done.healed_at = time.monotonic()
        if deed.settles and self._fleet.settle(done.healed_at):
            done.settled_at = time.monotonic()
            self._tell(f"  all are merged again after {done.settled_at - done.healed_at:.1f} s")

    # ---- deaths and returns

    def _kill(self, deed: Deed, done: Done) -> None:
        first, *others = deed.whom
        if deed.place and not deed.joining:
            self._die_at_place(first, deed)
        else:
            self._fleet.kill(first)
        for name in others:
            self._fleet.kill(name)
        done.died_at = time.monotonic()
        if deed.joining:
            self._die_at_place(first, deed)
        self._return(deed, done)

    def _die_at_place(self, name: str, deed: Deed) -> None:
        """Have it die at the place of this deed, started again for that where the place is one of its next start."""
        self._fleet.order(name, Orders(die_at=deed.place, passes=deed.passes))
        if deed.joining:
            self._fleet.start(name)
        if not self._fleet.dies(name, AT_PLACE_S):
            self._fleet.kill(name)
        self._fleet.order(name, Orders())

    def _return(self, deed: Deed, done: Done) -> None:
        """Start the victims again, after the time that they are to be away."""
        self._fleet.rest(deed.for_s)
        for name in deed.whom:
            self._fleet.start(name, cold=deed.kind is Kind.COLD)
            done.back[name] = self._fleet.children[name].started_at

    def _ask(self, deed: Deed, done: Done) -> None:
        self._fleet.ask(deed.whom[0])
        done.died_at = time.monotonic()
        self._return(deed, done)

    def _storm(self, deed: Deed, done: Done) -> None:
        done.died_at = time.monotonic()
        for _ in range(STORM):
            self._fleet.kill(deed.whom[0])
            self._fleet.start(deed.whom[0])
            self._fleet.rest(STORM_GAP_S)

    # ---- standing still, links, disks, clocks

    def _hold(self, deed: Deed, done: Done) -> None:
        (name,) = deed.whom
        self._fleet.children[name].send(signal.SIGSTOP)
        try:
            self._fleet.rest(deed.for_s)
        finally:
            self._fleet.children[name].send(signal.SIGCONT)

    def _cut(self, deed: Deed, done: Done) -> None:
        proxy = self._fleet.proxies[deed.whom[0]]
        if deed.kind is Kind.HOLE:
            proxy.stop()
        else:
            proxy.cut(refuse=deed.kind is Kind.REFUSE)
        self._fleet.rest(deed.for_s)
        proxy.heal()

    def _spoil(self, deed: Deed, done: Done) -> None:
        disks = {Kind.FULL: "full", Kind.SLOW: "slow"}
        self._fleet.order(deed.whom[0], Orders(disk=disks.get(deed.kind, ""), ahead_s=deed.ahead_s))
        self._fleet.rest(deed.for_s)
        self._fleet.order(deed.whom[0], Orders())

    _DEEDS: ClassVar[dict[Kind, Callable[["Director", Deed, Done], None]]] = {
        Kind.KILL_SYNCER: _kill,
        Kind.KILL_LEARNER: _kill,
        Kind.KILL_BOTH: _kill,
        Kind.COLD: _kill,
        Kind.ASK: _ask,
        Kind.STORM: _storm,
        Kind.HOLD: _hold,
        Kind.STOP: _hold,
        Kind.REFUSE: _cut,
        Kind.HOLE: _cut,
        Kind.RESET: _cut,
        Kind.FULL: _spoil,
        Kind.SLOW: _spoil,
        Kind.CLOCK: _spoil,
    }
