"""How a run ends: the target is reached, or the process is asked to leave.

Rule: what was merged is durable before anybody is told that the run is over; every wait here has an end.
"""

from typing import TYPE_CHECKING

from zdiloco.core.machine import Broadcast, LeaveRequested, Note, Send, Stop, SyncerAction
from zdiloco.core.membership import Member, MemberState
from zdiloco.core.messages import Farewell
from zdiloco.core.start import SyncerPhase, SyncerTurn

if TYPE_CHECKING:
    from zdiloco.core.syncer import SyncerMachine

_P = SyncerPhase


class Ending:
    """The last phases of one syncer machine."""

    def __init__(self, syncer: "SyncerMachine") -> None:
        self.syncer = syncer

    def judge_target(self, now: float) -> list[SyncerAction]:
        """End the run once its target is merged: open rounds close, no new ones open."""
        syncer, target = self.syncer, self.syncer.target_tokens
        if syncer.phase is not _P.RUNNING or not target or syncer.merged_tokens < target:
            return []
        self.syncer.move(SyncerTurn.TARGET)
        self.syncer.desk.draining, self.syncer.drain_ends = True, now + self.syncer.params.drain_s
        why = f"{self.syncer.merged_tokens:.0f} tokens are merged, {self.syncer.target_tokens} were asked for"
        return [
            Note(what="target reached, open rounds close", why=why),
            *self.syncer.close(self.syncer.desk.judge(now)),
        ]

    def leave(self, event: LeaveRequested, now: float) -> list[SyncerAction]:
        """The process is to end: save, and go; learners train on without it."""
        self.syncer.move(SyncerTurn.LEAVE)
        note = Note(what="leaving", why=event.reason)
        if self.syncer.phase is _P.STOPPED:
            return [note, Stop(reason=event.reason, exit_code=0)]
        self.syncer.drain_ends = now + self.syncer.params.drain_s
        self.syncer.desk.draining = True
        return [note, *self.last_save(event.reason)]

    def drain(self, now: float) -> list[SyncerAction]:
        """Follow the end of a run: rounds, last checkpoint, farewells, stop."""
        late = now >= self.syncer.drain_ends
        if self.syncer.phase is _P.DRAINING:
            self.syncer.desk.cancel_empty()
            if late or not any(desk.round for desk in self.syncer.desk):
                self.syncer.move(SyncerTurn.DRAINED)
                self.syncer.drain_ends = now + self.syncer.params.drain_s
                return [*self.syncer.haste.left_out(), *self.last_save("target reached")]
            return []
        present = [member for member in self.syncer.fleet if self._is_awaited(member, now)]
        if self.syncer.farewell and (late or not present):
            self.syncer.move(SyncerTurn.SAVED)
            left = ", ".join(m.key.name for m in present)
            why = self.syncer.farewell.reason + (f"; without a goodbye from {left}" if left else "; everybody has left")
            return [Stop(reason=why, exit_code=0)]
        if late:
            self.syncer.move(SyncerTurn.LEAVE)
            why = f"the last checkpoint was not durable within sync.drain_s ({self.syncer.params.drain_s:g} s)"
            return [Note(what="stops", why=why, level="error"), Stop(reason=why, exit_code=1)]
        return []

    def _is_awaited(self, member: Member, now: float) -> bool:
        """Whether a goodbye may still come; of who watches, while it is heard: it fetches the last values."""
        if member.state is MemberState.WATCHING:
            return now < member.heard_at + self.syncer.params.suspect_after_s
        return member.state not in (MemberState.FINISHED, MemberState.GONE)

    def last_save(self, why: str) -> list[SyncerAction]:
        """Write the last checkpoint."""
        if self.syncer.saving:
            self.syncer.dirty = True  # the one under way may be too early: `saved` asks for another
            return []
        self.syncer.dirty, self.syncer.saving = False, True
        return [self.syncer.save(why)]

    def saved(self, now: float) -> list[SyncerAction]:
        """The last checkpoint is durable: tell everybody, or go."""
        if self.syncer.dirty:
            return self.last_save("what was merged during the last checkpoint")
        if self.syncer.target_tokens and self.syncer.merged_tokens >= self.syncer.target_tokens:
            versions, reason = tuple(desk.stamp.version for desk in self.syncer.desk), "the target is reached"
            self.syncer.farewell = Farewell(epoch=self.syncer.epoch, finished=True, reason=reason, versions=versions)
            self.syncer.drain_ends = now + self.syncer.params.drain_s
            everybody = [Send(key=member.key, message=self.syncer.farewell) for member in self.syncer.fleet]
            return [Broadcast(message=self.syncer.farewell), *everybody]
        self.syncer.move(SyncerTurn.SAVED)
        return [Stop(reason="asked to leave; the state is saved", exit_code=0)]
