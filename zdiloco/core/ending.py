"""How a run ends: the target is reached, or the process is asked to leave.

Rule: what was merged is durable before anybody is told that the run is over; every wait here has an end. The last
version of each fragment is the exact Theta in fp32. Whoever fetches it is waited for while it is heard and bytes move.
"""

import math
from typing import TYPE_CHECKING

from zdiloco.core.bounds import MAX_TEXT
from zdiloco.core.machine import Broadcast, LeaveRequested, Note, Restamp, Send, Stop, SyncerAction
from zdiloco.core.membership import Member, MemberState
from zdiloco.core.messages import Farewell
from zdiloco.core.start import HERE, SyncerPhase, SyncerTurn
from zdiloco.units import Epoch, MemberKey, Stamp

if TYPE_CHECKING:
    from zdiloco.core.syncer import SyncerMachine

_P = SyncerPhase
AWAY = (MemberState.FINISHED, MemberState.GONE)
MOST_END_S = 6 * 3600.0
"""Nobody is waited for longer after the farewell, whatever moves: the checkpoint holds the last values, too."""


class Ending:
    """The last phases of one syncer machine."""

    def __init__(self, syncer: "SyncerMachine") -> None:
        self.syncer = syncer
        self.exact = False
        """The last versions are stamped."""
        self.asked = False
        self.reason, self.alone_at = "asked to leave; the state is saved", math.inf
        self.told_at = self.judge_at = math.inf
        self.moved_at: dict[MemberKey, float] = {}

    def judge_target(self, now: float) -> list[SyncerAction]:
        """End the run once its target is merged, or nobody is left: open rounds close, no new ones open."""
        syncer, target = self.syncer, self.syncer.target_tokens
        if syncer.phase is not _P.RUNNING:
            return []
        if target and syncer.merged_tokens >= target:
            why = f"{syncer.merged_tokens:.0f} tokens are merged, {target} were asked for"
            return self._drain(SyncerTurn.TARGET, "target reached, open rounds close", why, now)
        if self._is_alone(now):
            self.reason = 'every learner has left, sync.when_alone is "stop"; the state is saved'
            return self._drain(SyncerTurn.ALONE, "every learner has left, open rounds close", self.reason, now)
        return []

    def _is_alone(self, now: float) -> bool:
        """Whether everybody who came has taken leave, or is gone and has had the time to return."""
        states, params = self.syncer.fleet.in_state, self.syncer.params
        came = any(states[state] for state in AWAY)
        if params.when_alone == "wait" or not came or any(states[state] for state in HERE):
            self.alone_at = math.inf
            return False
        self.alone_at = min(self.alone_at, now)
        return now >= self.alone_at + (params.drain_s if states[MemberState.GONE] else 0.0)

    def _drain(self, turn: SyncerTurn, what: str, why: str, now: float) -> list[SyncerAction]:
        self.syncer.move(turn)
        self.syncer.desk.draining, self.syncer.drain_ends = True, now + self.syncer.params.drain_s
        return [Note(what=what, why=why), *self.syncer.close(self.syncer.desk.judge(now))]

    def leave(self, event: LeaveRequested, now: float) -> list[SyncerAction]:
        """The process is to end: save, and go; learners train on without it."""
        note = Note(what="leaving", why=event.reason)
        first, self.asked = not self.asked, True
        if first and self.syncer.phase is _P.SAVING and self.syncer.saving:
            return [note]  # the last checkpoint is being written: the process ends with it
        self.syncer.move(SyncerTurn.LEAVE)
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
            rounds = [desk.round for desk in self.syncer.desk if desk.round]
            if not rounds or (late and all(rnd.gathering for rnd in rounds)):
                self.syncer.move(SyncerTurn.DRAINED)
                self.syncer.drain_ends = now + self.syncer.params.drain_s
                if not self.syncer.target_tokens or self.syncer.merged_tokens < self.syncer.target_tokens:
                    return self.last_save("every learner has left")
                return [*self.syncer.haste.left_out(), self._stamp_last(), *self.last_save("target reached")]
            return []
        if self.syncer.farewell:
            return self._judge_goodbyes(now, self.syncer.farewell)
        if late:
            self.syncer.move(SyncerTurn.LEAVE)
            why = f"the last checkpoint was not durable within sync.drain_s ({self.syncer.params.drain_s:g} s)"
            return [Note(what="stops", why=why, level="error"), Stop(reason=why, exit_code=1)]
        return []

    def _stamp_last(self) -> SyncerAction:
        """Of each fragment one more version: Theta as it is, in fp32. Rounds that still gather are over."""
        self.exact = True
        for desk in self.syncer.desk:
            desk.round, desk.stamp = None, Stamp(self.syncer.epoch, desk.stamp.version + 1)
        self.syncer.desk.ends.clear()
        return Restamp(stamps=tuple(desk.stamp for desk in self.syncer.desk), exact=True)

    def _judge_goodbyes(self, now: float, farewell: Farewell) -> list[SyncerAction]:
        """Everybody may be looked at, so only now and then, and when nobody is left."""
        states = self.syncer.fleet.in_state
        left = any(members for state, members in states.items() if state not in AWAY)
        if left and now < self.judge_at:
            return []
        self.judge_at = now + self.syncer.params.beat_every_s
        if any(self._is_awaited(member, now) for member in self.syncer.fleet):
            return []
        self.syncer.move(SyncerTurn.SAVED)
        names = ", ".join(member.key.name for member in self.syncer.fleet if member.state not in AWAY)
        why = farewell.reason + (f"; without a goodbye from {names}" if names else "; everybody has left")
        return [Stop(reason=why[:MAX_TEXT], exit_code=0)]

    def _is_awaited(self, member: Member, now: float) -> bool:
        """Whether a goodbye may still come: it is heard, and has got bytes not long ago."""
        params = self.syncer.params
        silent_s = params.suspect_after_s if member.watching else params.gone_after_s
        moved_at = max(self.told_at, self.moved_at.get(member.key, self.told_at))
        ends = min(member.heard_at + silent_s, moved_at + params.drain_s, self.told_at + MOST_END_S)
        return member.state not in AWAY and now < ends

    def moved(self, key: MemberKey, now: float) -> list[SyncerAction]:
        """A member has got bytes, of the last values or of what was published before: its link is alive."""
        self.moved_at[key] = now
        return []

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
        if self.exact and not self.asked:
            versions, reason = tuple(desk.stamp.version for desk in self.syncer.desk), "the target is reached"
            self.syncer.farewell = Farewell(epoch=self.syncer.epoch, finished=True, reason=reason, versions=versions)
            self.syncer.drain_ends, self.told_at = math.inf, now
            self.judge_at = now + self.syncer.params.beat_every_s
            everybody = [Send(key=member.key, message=self.syncer.farewell) for member in self.syncer.fleet]
            return [Broadcast(message=self.syncer.farewell), *everybody]
        self.syncer.move(SyncerTurn.SAVED)
        return [Stop(reason=self.reason, exit_code=0)]

    def fence(self, epoch: Epoch, why: str = "") -> list[SyncerAction]:
        """Another syncer has this run, by the word of a member or by what lies on the disk: stop."""
        self.syncer.move(SyncerTurn.FENCED)
        ours = self.syncer.epoch.counter
        why = why or f"epoch {epoch.counter} exists and ours is {ours}: a newer syncer runs this run"
        return [Note(what="fenced", why=why, level="error"), Stop(reason=why, exit_code=3)]
