"""One fragment at a learner: what is called, under way, arriving, being adopted, and the work that is merged nowhere.

Rule: at most one contribution of a fragment is under way or held, and at most one adoption in preparation; while an
adoption is prepared nothing is cut, since it may change what a cut would have to follow. States move only along TABLE.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from zdiloco.core.messages import Contribution, Update
from zdiloco.core.moves import moved
from zdiloco.core.progress import Adoption, LearnerProgress, add_record
from zdiloco.units import NO_STAMP, Epoch, FragmentId, MemberKey, Merged, Stamp


class DutyState(StrEnum):
    """Where a fragment's contribution is."""

    IDLE = "idle"
    """Nothing of it is asked for or under way."""
    CALLED = "called"
    """Asked for, not yet cut."""
    SENT = "sent"
    """Cut: being encoded, offered or transferred."""
    HELD = "held"
    """At the syncer, waiting for a close."""


class DutyEvent(StrEnum):
    """What can happen to it."""

    CALLED = "called"
    CUT = "cut"
    HELD = "acknowledged as held"
    SETTLED = "merged, refused or given up"


_D, _E = DutyState, DutyEvent
TABLE: dict[tuple[DutyState, DutyEvent], DutyState] = {
    (_D.IDLE, _E.CALLED): _D.CALLED,
    (_D.CALLED, _E.CALLED): _D.CALLED,
    (_D.IDLE, _E.CUT): _D.SENT,
    (_D.CALLED, _E.CUT): _D.SENT,
    (_D.SENT, _E.CALLED): _D.SENT,
    (_D.HELD, _E.CALLED): _D.HELD,
    (_D.SENT, _E.HELD): _D.HELD,
    (_D.HELD, _E.HELD): _D.HELD,
    (_D.SENT, _E.SETTLED): _D.IDLE,
    (_D.HELD, _E.SETTLED): _D.IDLE,
}


@dataclass(slots=True)
class Duty:
    """One fragment's affairs. `way`: seq under way or held (0: none); `offer`: its message, once encoded.

    `refused_on`: the `after` and epoch on which a cut was refused; every other cut on them would be refused too.
    """

    index: FragmentId
    progress: LearnerProgress = field(default_factory=lambda: LearnerProgress(seen=NO_STAMP))
    state: DutyState = DutyState.IDLE
    version: int = 0
    declined: int = 0
    way: int = 0
    offer: Contribution | None = None
    offered_at: float = 0.0
    cut_step: int = 0
    refused_on: tuple[int, Epoch] | None = None
    receiving: dict[Stamp, Update] = field(default_factory=dict)
    ready: dict[Stamp, tuple[Update, tuple[Merged, ...]]] = field(default_factory=dict)
    adoption: Adoption | None = None
    reset: bool = False
    prepared: bool = False
    serial: int = 0
    adopted: Update | None = None
    map: dict[MemberKey, Merged] = field(default_factory=dict)
    pulled_at: float | None = None
    behind: int = -1

    def move(self, event: DutyEvent) -> None:
        """Go where TABLE says; anything else is our mistake."""
        self.state = moved(TABLE, self.state, event, f"fragment {self.index}")

    @property
    def tip(self) -> Stamp:
        """The newest state that is adopted or on its way in."""
        adopting = [self.adoption.stamp] if self.adoption else []
        return max([self.progress.seen, *adopting, *self.ready, *self.receiving])

    @property
    def arriving(self) -> bool:
        """Whether a newer state is on its way in."""
        return bool(self.receiving or self.ready)

    @property
    def must_follow(self) -> bool:
        """Whether a newer state has to be adopted before anything is cut again."""
        return self.refused_on == (self.progress.after, self.progress.seen.epoch)

    def settle(self) -> int:
        """The contribution under way is settled: the fragment is idle. Returns its seq (0: there was none)."""
        seq, self.way, self.offer = self.way, 0, None
        if self.state in (DutyState.SENT, DutyState.HELD):
            self.move(DutyEvent.SETTLED)
        return seq

    def follows(self, update: Update) -> bool:
        """Whether an update can be adopted: it is full and newer, or the very next version of the tip's epoch."""
        tip, stamp = self.tip, update.stamp
        if update.full:
            adopting = self.adoption.stamp if self.adoption else NO_STAMP
            known = self.receiving.get(stamp)
            if stamp <= max(self.progress.seen, adopting) or (known and known.full):
                return False
            return stamp not in self.ready or self.is_stranded(stamp)
        return stamp.epoch == tip.epoch and stamp.version == tip.version + 1

    def is_stranded(self, stamp: Stamp) -> bool:
        """Whether an update that is here cannot be adopted, for want of one before it: the whole state is needed."""
        update, at = self.ready[stamp][0], self.adoption.stamp if self.adoption else self.progress.seen
        while not update.full and at.epoch == stamp.epoch and at < stamp:
            at = Stamp(at.epoch, at.version + 1)
            if at not in self.ready and at not in self.receiving:
                return True
        return not update.full and at != stamp

    def mine(self, key: MemberKey, update: Update, records: tuple[Merged, ...]) -> tuple[int, int]:
        """My newest seq in this state, and the sum of my tokens in it."""
        entry = next((r for r in records if r.key == key), None)
        if update.full:
            return (entry.seq, entry.tokens) if entry else (0, 0)
        if entry:
            return entry.seq, self.progress.tally.merged + entry.tokens
        return self.progress.after, self.progress.tally.merged

    def take_map(self, update: Update, records: tuple[Merged, ...]) -> None:
        """Follow an adopted update in the map, which a syncer that starts again may ask for."""
        self.map = {r.key: r for r in records} if update.full else add_record(self.map, records)
