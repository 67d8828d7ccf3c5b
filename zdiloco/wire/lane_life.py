"""How long a relay keeps the lane of a learner, and whose lane goes when somebody else needs the place.

Rule: who has said hello keeps its lane while it is heard within `forget_after_s`, however many knock; only lanes that
nobody counts on are given up for one who comes. One lane more than there are places may be that of a newer process of a
name that has one: which of the two wins is for the syncer to say, and it tells the other on its own lane. Times are
monotonic seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from zdiloco.core.messages import Goodbye, Hello
from zdiloco.units import MemberKey

BRIEF_S = 5.0
"""Silence after which a lane is over where nobody counts on it: the learner took leave, a newer process of its name
is here, or it never said hello (a status query)."""
STRANGER_S = 1.0
"""The same for one that never said hello, where its place is needed."""


@dataclass(slots=True, eq=False)
class LaneLife:
    """What is known of the one whose lane it is. `greeted`: it has said hello; `left`: it has said goodbye."""

    key: MemberKey
    heard_at: float
    greeted: bool = False
    left: bool = False

    def hears(self, message: object) -> bool:
        """Take note of what it says; returns whether this is its first hello."""
        first = isinstance(message, Hello) and not self.greeted
        self.greeted = self.greeted or first
        self.left = self.left or isinstance(message, Goodbye)
        return first

    def why_over(self, now: float, newer: bool, forget_after_s: float) -> str:
        """Say why this lane is to be closed; empty: it is not. `newer`: a newer process of its name is here."""
        silent_s = now - self.heard_at
        brief = "it took leave" if self.left else "a newer process has its name" if newer else ""
        if silent_s > BRIEF_S and (brief or not self.greeted):
            return brief or "it has said no hello"
        return f"silent for {silent_s:.0f} s" if silent_s > forget_after_s else ""


LaneT = TypeVar("LaneT", bound=LaneLife)


def lanes_over(lanes: Iterable[LaneT], now: float, forget_after_s: float) -> list[tuple[LaneT, str]]:
    """Return the lanes that are to be closed, each with the reason."""
    known = list(lanes)
    newest = {lane.key.name: lane for lane in sorted(known, key=lambda lane: lane.heard_at)}
    judged = [(lane, lane.why_over(now, newest[lane.key.name] is not lane, forget_after_s)) for lane in known]
    return [(lane, why) for lane, why in judged if why]


def lane_to_give_up(lanes: Iterable[LaneT], now: float, forget_after_s: float) -> LaneT | None:
    """Return the lane that is missed least where all places are taken; None: each is counted on."""
    known = list(lanes)
    strange = [lane for lane, _ in lanes_over(known, now, forget_after_s)]
    strange += [lane for lane in known if not lane.greeted and now - lane.heard_at > STRANGER_S]
    return min(strange, key=lambda lane: (lane.greeted, lane.heard_at), default=None)


def may_come_beside(lanes: Iterable[LaneLife], key: MemberKey, most: int) -> bool:
    """Whether `key` may have one lane more than there are places, since another process of its name has one."""
    known = list(lanes)
    return len(known) == most and any(lane.greeted and lane.key.name == key.name for lane in known)
