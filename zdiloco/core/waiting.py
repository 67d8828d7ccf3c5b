"""What a syncer that calls nothing waits for, in words: said in the log whenever it changes, and shown in status.

Rule: derived from phase, fleet and quorum alone; nothing is decided here.
"""

from typing import TYPE_CHECKING

from zdiloco.core.machine import Note, SyncerAction
from zdiloco.core.membership import MemberState
from zdiloco.core.start import SyncerPhase

if TYPE_CHECKING:
    from zdiloco.core.syncer import SyncerMachine

_P = SyncerPhase


class Waiting:
    """Says once whom a syncer waits for, and once that they are there."""

    def __init__(self, syncer: "SyncerMachine") -> None:
        self._syncer = syncer
        self._said = ""

    def why(self) -> str:
        """What is missing; empty: nothing is, or the syncer is at something else."""
        syncer = self._syncer
        if syncer.phase is _P.EMPTY:
            return "" if syncer.reception.donation.donor else "no learner has come, whose values would begin the run"
        live, quorum = len(syncer.fleet.counted()), syncer.desk.quorum()
        joining = len(syncer.fleet.in_state[MemberState.JOINING])
        if syncer.phase is not _P.RUNNING or live + joining >= quorum:
            return ""
        here = f"{live} of the K = {quorum} learners that a round needs (sync.min_quorum)"
        return f"{here}: no round is called until more come" if live else f"nobody trains: {here}"

    def look(self) -> list[SyncerAction]:
        """A line for the log where that has changed."""
        why, said = self.why(), self._said
        self._said = why
        if why and why != said:
            level = "info" if self._syncer.phase is _P.EMPTY else "warning"
            return [Note(what="waits for learners", why=why, level=level)]
        if said and not why and self._syncer.phase is _P.RUNNING:
            return [Note(what="waits no longer", why=f"learners here: {len(self._syncer.fleet.counted())}")]
        return []
