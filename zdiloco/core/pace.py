"""When a fragment is due, and how many rounds may be open at once.

Rule: a fragment is due when K live learners have made H inner steps on it since their last cut that was sent or
merged, and K of them have made H steps since its last call; so a round never comes sooner than H steps of the K-th
fastest, on a LAN as on a WAN. In the first turn H is (p + 1) * H / P, so that fragments start staggered.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from zdiloco.core.membership import Member
from zdiloco.core.params import SyncParams
from zdiloco.units import FragmentId

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
    fragment: FragmentId, needed: int, members: Sequence[Member], quorum: int, now: float, params: SyncParams
) -> Due | NotDue:
    """Say whether K of the counted `members` have made `needed` steps on the fragment; else when to look again."""
    if len(members) < quorum:
        return NotDue(check_at=math.inf, why=f"{len(members)} of {quorum} learners live")
    cuts, calls = [], []
    for member in members:
        mark = member.marks.get(fragment, member.first_step or 0)
        cuts.append(crossing(member, mark, needed, now, params))
        if fragment in member.called:
            calls.append(crossing(member, member.called[fragment], needed, now, params))
    both = heapq.nsmallest(quorum, cuts)[-1:] + (heapq.nsmallest(quorum, calls)[-1:] if len(calls) >= quorum else [])
    since = max(at for at, _ in both)
    if since <= now and all(sure for _, sure in both):
        return Due(since=since, why=f"{quorum} learners have made {needed} steps on it")
    left = max(since - now, MIN_CHECK_S)
    # Far ahead, look again half-way: somebody may have become faster.
    check_at = now + (left if left <= 4 * params.report_every_s else left / 2)
    return NotDue(check_at=check_at, why=f"fewer than {quorum} learners have made {needed} steps on it")


def max_open_rounds(num_fragments: int, round_s: float | None, step_s: float | None, params: SyncParams) -> int:
    """min(P, max(1, ceil(P * round_time / (H * step)))): as many as the period needs, by Little's law.

    Before the first averages exist every fragment may be open: the stagger of the first turn spreads them.
    """
    if not round_s or not step_s:
        return num_fragments
    return min(num_fragments, max(1, math.ceil(num_fragments * round_s / (params.sync_period * step_s))))
