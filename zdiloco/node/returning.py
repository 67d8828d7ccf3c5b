"""How long a syncer takes to come back: each phase with its seconds since the process began its work, imports apart.

Rule: it looks and decides nothing; each phase is told once, in the log and in the journal, in the order of its end.
"""

import logging
from collections.abc import Callable, Sequence

from zdiloco import trace
from zdiloco.core.machine import Broadcast, MergeDone, SyncerAction, SyncerEvent
from zdiloco.core.messages import Call
from zdiloco.core.start import SyncerPhase
from zdiloco.core.syncer import SyncerMachine

log = logging.getLogger("zdiloco.node.syncer")

PHASES = (
    "state read", "sockets bound", "fleet heard", "handbacks taken", "epoch durable", "first call", "first merge",
)  # fmt: skip


class ReturnPhases:
    """The phases of one process that goes on from a checkpoint; `write` takes each as a record."""

    def __init__(self, began_at: float, write: Callable[[trace.Record], None]) -> None:
        self._began_at, self._write = began_at, write
        self._left = list(PHASES)

    def ended(self, what: str, now: float) -> None:
        """A phase ends, and with it all before it."""
        while what in self._left:
            self._tell(self._left.pop(0), now)

    def _tell(self, what: str, now: float) -> None:
        seconds = max(0.0, now - self._began_at)
        log.info("syncer returns: %s seconds=%.3f", what, seconds)
        self._write(trace.Phase(t=now, what=what, seconds=seconds))

    def look(self, now: float, event: SyncerEvent, actions: Sequence[SyncerAction], machine: SyncerMachine) -> None:
        """After an event: which phases have ended by it."""
        if not self._left:
            return
        recovery = machine.reception.recovery
        if recovery is not None and recovery.heard_all:
            self.ended("fleet heard", now)
        if machine.phase is not SyncerPhase.RECOVERING:
            self.ended("handbacks taken", now)
        if machine.phase is SyncerPhase.RUNNING:
            self.ended("epoch durable", now)
        if any(isinstance(action, Broadcast) and isinstance(action.message, Call) for action in actions):
            self.ended("first call", now)
        if isinstance(event, MergeDone):
            self.ended("first merge", now)
