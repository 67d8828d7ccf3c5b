"""One round of one fragment: the gathering that turns version v into v + 1, and the decision when it may close.

Rule: `decide` is a pure function of the round, the fleet and now, and always says why. States move only along TABLE.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum

from zdiloco.core.moves import moved
from zdiloco.units import FragmentId, MemberKey


class RoundState(StrEnum):
    """Where a round is."""

    OPEN = "open"
    """Called; fewer contributions than the quorum."""
    GRACE = "grace"
    """The quorum is in; more are welcome until the window ends."""
    PARKED = "parked"
    """Waited too long for a quorum; waits on without taking a slot."""
    MERGING = "merging"
    """Closed; the outer step is being made."""
    PUBLISHED = "published"
    """The new version is out; the round is over."""
    VOID = "void"
    """The outer step would have made the value infinite: nothing has changed; the round is over."""


class RoundEvent(StrEnum):
    """What can happen to a round."""

    QUORUM = "quorum reached"
    QUORUM_LOST = "quorum lost"
    TOO_LONG = "no quorum for too long"
    CLOSE = "close"
    MERGED = "outer step made"
    FAILED = "outer step impossible"


TABLE: dict[tuple[RoundState, RoundEvent], RoundState] = {
    (RoundState.OPEN, RoundEvent.QUORUM): RoundState.GRACE,
    (RoundState.OPEN, RoundEvent.TOO_LONG): RoundState.PARKED,
    (RoundState.OPEN, RoundEvent.CLOSE): RoundState.MERGING,
    (RoundState.GRACE, RoundEvent.QUORUM_LOST): RoundState.OPEN,
    (RoundState.GRACE, RoundEvent.CLOSE): RoundState.MERGING,
    (RoundState.PARKED, RoundEvent.QUORUM): RoundState.GRACE,
    (RoundState.PARKED, RoundEvent.CLOSE): RoundState.MERGING,
    (RoundState.MERGING, RoundEvent.MERGED): RoundState.PUBLISHED,
    (RoundState.MERGING, RoundEvent.FAILED): RoundState.VOID,
}


MOST_SORTED = 32
"""Among so many learners the first names are looked for."""


@dataclass(slots=True)
class Round:
    """A round under way. `fresh`: who answered this call (held ones from before do not start the grace window)."""

    fragment: FragmentId
    version: int
    called_at: float
    why: str
    state: RoundState = RoundState.OPEN
    fresh: set[MemberKey] = field(default_factory=set)
    declined: dict[MemberKey, str] = field(default_factory=dict)
    quorum_at: float | None = None
    closed_at: float | None = None

    def move(self, event: RoundEvent) -> None:
        """Go where TABLE says; anything else is our mistake."""
        self.state = moved(TABLE, self.state, event, f"round of fragment {self.fragment}")

    @property
    def gathering(self) -> bool:
        """Whether contributions still enter this round."""
        return self.state in (RoundState.OPEN, RoundState.GRACE, RoundState.PARKED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Not yet: look again at `until` (None: when something happens)."""

    until: float | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Close:
    """The round closes now."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Attendance:
    """Who is where, for one decision.

    `absent`: live learners that are not suspect, and neither in, held nor declined; `held`: all that is in hand;
    `fresh`: those of them that answered this call; `patience_ends`: when held contributions stop waiting for an answer
    to this call (somebody may beat and yet make no step for an hour).
    """

    absent: Set[MemberKey]
    live: int
    held: Set[MemberKey]
    fresh: Set[MemberKey]
    quorum: int
    patience_ends: float


def has_quorum(seen: Attendance) -> bool:
    """Whether enough answers to this call are in to start the grace window."""
    return len(seen.fresh) >= seen.quorum


def decide(seen: Attendance, ends: float | None, grace_why: str, now: float) -> Wait | Close:
    """Say whether a round may close at `now`, and why. `ends`: end of the grace window, None before the quorum."""
    absent = seen.absent
    if len(seen.held) < seen.quorum:
        have = f"{len(seen.held)} of {seen.quorum} contributions"
        if seen.live < seen.quorum:
            return Wait(until=None, why=f"{have}; quorum lost, {seen.live} live")
        return Wait(until=None, why=f"{have}; missing {names(absent)}")
    if not absent:
        return Close(why=f"every live learner is in, held or declined ({len(seen.held)} in)")
    if ends is None:
        why = f"{len(seen.held)} held from before, too few answers to this call; missing {names(absent)}"
        return Wait(until=seen.patience_ends, why=why) if now < seen.patience_ends else Close(why=why)
    if now < ends:
        return Wait(until=ends, why=f"{grace_why}; {len(seen.held)} in, missing {names(absent)}")
    return Close(why=f"grace window over ({len(seen.held)} in, without {names(absent)})")


def names(keys: Set[MemberKey]) -> str:
    """Up to four names, for people; of very many only how many, since this is said at every event."""
    if len(keys) > MOST_SORTED:
        return f"{len(keys)} learners"
    ordered = sorted(key.name for key in keys)
    more = f" and {len(ordered) - 4} more" if len(ordered) > 4 else ""
    return ", ".join(ordered[:4]) + more if ordered else "nobody"
