"""When a fragment is due, and how many rounds may be open at once.

Rule: a fragment is due when K live learners have made H inner steps on it since their last cut that was sent or
merged, and K of them have made H steps since its last call, or, who came after it, since their first step; so a round
never comes sooner than H steps of the K-th fastest, on a LAN as on a WAN. In the first turn H is (p + 1) * H / P, so
that fragments start staggered.
"""

import heapq
import math
from collections.abc import Collection
from dataclasses import dataclass

from zdiloco.core.membership import Member
from zdiloco.core.ordered import Ordered
from zdiloco.core.params import SyncParams
from zdiloco.units import FragmentId, MemberKey

MIN_CHECK_S = 0.005
"""The shortest time after which a fragment is judged again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """The fragment may be called; the rule has held since `since`."""

    since: float
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NotDue:
    """Not yet; look again at `check_at` (estimated, never later than the rule may become true by reports)."""

    check_at: float
    why: str


def needed_steps(fragment: FragmentId, num_fragments: int, first_turn: bool, params: SyncParams) -> int:
    """Inner steps that make a fragment due: H, or in the first turn its part of H, at least one step."""
    if not first_turn:
        return params.sync_period
    return max(1, math.ceil((fragment + 1) * params.sync_period / num_fragments))


def cut_mark(member: Member, fragment: FragmentId) -> int:
    """The step from which a period counts by a member's cuts: never before its first step here, however old a cut."""
    return max(member.marks.get(fragment, 0), member.first_step or 0)


def call_mark(member: Member, fragment: FragmentId) -> float:
    """The step from which a period counts by the calls; of one that came after the last call, its first step."""
    return member.called.get(fragment, member.first_step or 0)


def crossing(member: Member, mark: float, needed: int, now: float, params: SyncParams) -> tuple[float, bool]:
    """When a member has made `needed` steps since `mark`, and whether that is sure.

    Between reports its steps are extrapolated at its average pace, for at most two report intervals; a moment beyond
    that is a guess, which only tells when to look again.
    """
    short = mark + needed - member.step
    if short <= 0:
        return member.step_at, True
    horizon_s = 2 * params.report_every_s
    if not member.pace.value:
        return now + max(params.report_every_s, MIN_CHECK_S), False
    at = member.step_at + short * member.pace.value
    if at <= member.step_at + horizon_s:
        return at, True
    return max(at, now + MIN_CHECK_S), False


def judge_due(
    fragment: FragmentId, needed: int, members: Collection[Member], quorum: int, now: float, params: SyncParams
) -> Due | NotDue:
    """Say whether K of the counted `members` have made `needed` steps on the fragment; else when to look again."""
    if len(members) < quorum:
        return NotDue(check_at=math.inf, why=why_not(len(members), quorum, needed))
    cuts, calls = [], []
    for member in members:
        cuts.append(crossing(member, cut_mark(member, fragment), needed, now, params))
        calls.append(crossing(member, call_mark(member, fragment), needed, now, params))
    both = heapq.nsmallest(quorum, cuts)[-1:] + heapq.nsmallest(quorum, calls)[-1:]
    since = max(at for at, _ in both)
    if since <= now and all(sure for _, sure in both):
        return Due(since=since, why=f"{quorum} learners have made {needed} steps on it")
    left = max(since - now, MIN_CHECK_S)
    # Far ahead, look again half-way: somebody may have become faster.
    check_at = now + (left if left <= 4 * params.report_every_s else left / 2)
    return NotDue(check_at=check_at, why=why_not(len(members), quorum, needed))


def why_not(live: int, quorum: int, needed: int) -> str:
    """Why a fragment is not due, for people."""
    if live < quorum:
        return f"{live} of {quorum} learners live"
    return f"fewer than {quorum} learners have made {needed} steps on it"


class Crossings:
    """When each of many members has, for sure, its steps: what is needed to tell the moment of the K-th.

    Those whose report says so are only counted, those extrapolated are kept in order, of the others nothing is known.
    """

    __slots__ = ("_ahead", "_at", "_over")

    def __init__(self) -> None:
        self._at: dict[MemberKey, float] = {}
        self._ahead = Ordered()
        self._over = 0

    def __len__(self) -> int:
        return len(self._at)

    def put(self, key: MemberKey, at: float | None) -> None:
        """A member has its steps at `at`: -infinity: it says so itself; infinity: not known; None: it is not here."""
        was = self._at.get(key)
        if was == at:
            return
        if was == -math.inf:
            self._over -= 1
        elif was is not None and was < math.inf:
            self._ahead.remove(was)
        if at is None:
            del self._at[key]
            return
        self._at[key] = at
        if at == -math.inf:
            self._over += 1
        elif at < math.inf:
            self._ahead.add(at)

    def kth(self, quorum: int) -> float:
        """The moment at which the K-th has its steps, as far as is known."""
        if self._over >= quorum:
            return -math.inf
        place = quorum - 1 - self._over
        return self._ahead.values[place] if place < len(self._ahead) else math.inf


class Standing:
    """Who has its steps on one fragment, followed report by report, so that nobody else is looked at for each.

    At every moment `judge_due` says Due exactly when `due_at` has come (tests/core/test_pace.py).
    """

    __slots__ = ("calls", "cuts", "fragment", "needed", "params")

    def __init__(self, fragment: FragmentId, needed: int, members: Collection[Member], params: SyncParams) -> None:
        self.fragment, self.needed, self.params = fragment, needed, params
        self.cuts, self.calls = Crossings(), Crossings()
        for member in members:
            self.follow(member, counts=True)

    def follow(self, member: Member, counts: bool) -> None:
        """Something about a member has changed: its steps, its last cut, or whether it counts."""
        cut = called = None
        if counts:
            cut = self._sure(member, cut_mark(member, self.fragment))
            called = self._sure(member, call_mark(member, self.fragment))
        self.cuts.put(member.key, cut)
        self.calls.put(member.key, called)

    def _sure(self, member: Member, mark: float) -> float:
        """The same as `crossing`, with infinity for a guess and -infinity for what has been reported."""
        short = mark + self.needed - member.step
        if short <= 0:
            return -math.inf
        pace = member.pace.value
        if not pace:
            return math.inf
        at = member.step_at + short * pace
        return at if at <= member.step_at + 2 * self.params.report_every_s else math.inf

    def due_at(self, quorum: int) -> float:
        """From when on the rule holds by what is known now; infinity: not before another report."""
        if len(self.cuts) < quorum:
            return math.inf
        return max(self.cuts.kth(quorum), self.calls.kth(quorum))


def max_open_rounds(num_fragments: int, round_s: float | None, step_s: float | None, params: SyncParams) -> int:
    """min(P, max(1, ceil(P * round_time / (H * step)))): as many as the period needs, by Little's law.

    Before the first averages exist every fragment may be open: the stagger of the first turn spreads them.
    """
    if not round_s or not step_s:
        return num_fragments
    return min(num_fragments, max(1, math.ceil(num_fragments * round_s / (params.sync_period * step_s))))
