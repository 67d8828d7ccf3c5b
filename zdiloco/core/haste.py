"""Which learners cannot keep the pace of a run: said once of each, and shown in status for as long as it holds.

Rule: judged by averages that the syncer keeps anyway, and nothing is decided by it. A period is H steps of the K-th
fastest live learner, the soonest at which a fragment is called again. Whoever needs longer for one step, or from a call
to its answer, answers a round that is over by then: all its work is merged, but a round late or more.
"""

import math
from typing import TYPE_CHECKING

from zdiloco.core.machine import Note
from zdiloco.core.membership import Member, MemberState
from zdiloco.units import MemberKey

if TYPE_CHECKING:
    from zdiloco.core.syncer import SyncerMachine

LOOK_EVERY_S = 5.0
LOOKS = 3
"""It must hold at so many looks in a row: one slow answer, or a machine that is busy for a moment, is no reason."""


class Haste:
    """Says of whom a run is too fast. `behind`: why, for each of whom it holds now."""

    def __init__(self, syncer: "SyncerMachine") -> None:
        self._syncer = syncer
        self._look_at = -math.inf
        self._seen: dict[MemberKey, int] = {}
        self._said: set[str] = set()
        self.behind: dict[MemberKey, str] = {}

    def look(self, now: float) -> list[Note]:
        """Judge everybody, now and then; a line for the log of each name of whom it was not said before."""
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_EVERY_S
        members = [member for member in self._syncer.fleet.counted() if member.state is MemberState.LIVE]
        step_s = self._step_s(members)
        whys = {member.key: why for member in members if (why := self._why(member, step_s))}
        self._seen = {key: self._seen.get(key, 0) + 1 for key in whys}
        self.behind = {key: whys[key] for key, looks in self._seen.items() if looks >= LOOKS}
        fresh = [key for key in sorted(self.behind) if key.name not in self._said]
        self._said |= {key.name for key in fresh}
        return [Note(what=f"{key.name} cannot keep the pace", why=self.behind[key], level="warning") for key in fresh]

    def left_out(self) -> list[Note]:
        """At the end: of whom nothing was merged since this syncer started, though they trained."""
        out = [member for member in self._syncer.fleet.counted() if not member.rounds and member.step]
        why = "the target was reached before its first contribution was here; what it has trained counts for nothing"
        return [Note(what=f"nothing of {m.key.name} was merged", why=why, level="warning") for m in out]

    def _step_s(self, members: list[Member]) -> float | None:
        """Seconds a step of the K-th fastest; None: not known yet."""
        paces = sorted(member.pace.value for member in members if member.pace.value)
        return paces[min(self._syncer.desk.quorum(), len(paces)) - 1] if paces else None

    def _why(self, member: Member, step_s: float | None) -> str:
        """Why a member cannot keep the pace; empty: it can, or nobody knows yet."""
        if step_s is None or not member.pace.value:
            return ""
        period = self._syncer.desk.params.sync_period
        answer_s = member.answer.value or 0.0
        needs_s = max(member.pace.value, answer_s)
        if needs_s <= period * step_s:
            return ""
        what = "an answer" if answer_s >= member.pace.value else "a step"
        every_s = period * step_s
        return (
            f"{what} of it takes {needs_s:.3g} s, and rounds of a fragment come every {every_s:.3g} s: its work is "
            f"merged late; sync.sync_period = {math.ceil(needs_s / step_s)} would leave it the time"
        )
