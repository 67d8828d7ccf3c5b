"""The desk's own hand in `sync.adaptive`: what is measured there, and what a change means for fragments and rounds.

Rule: whoever leaves lowers K at once, since a round waits only for those who may still answer; a change of H holds for
every fragment that is not called yet.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from zdiloco.core.adaptive import Adaptive, Seen
from zdiloco.core.grace import slack_s
from zdiloco.core.machine import Note

if TYPE_CHECKING:
    from zdiloco.core.desk import Desk, FragmentDesk


def came(desk: "Desk", adaptive: Adaptive, fragment: "FragmentDesk", now: float) -> None:
    """A contribution is here: how long the newest round of its fragment had, or would have had, to wait for it."""
    slack = _slack_s(desk)
    if slack > 0.0 and fragment.calls:
        since = fragment.round.quorum_at if fragment.round else fragment.last_quorum_at
        adaptive.grace.came(0.0 if since is None else (now - since) / slack)


def _slack_s(desk: "Desk") -> float:
    return slack_s(desk.fleet.paces.least, desk.quorum_s.value, desk.sync_s.value, desk.params.sync_period)


def adapt(desk: "Desk", adaptive: Adaptive, now: float) -> list[Note]:
    """A round is over: look whether H, K and grace still suit, now and then."""
    fragments = [each for each in desk.fragments if each.share]
    if desk.draining or not adaptive.is_due(len(desk.fragments)):
        return []
    before = adaptive.sync_period
    usual = [each.turnout.usual.value or 0.0 for each in fragments]
    largest = 4 * max(each.numel for each in desk.fragments)
    seen = Seen(
        fragments=len(desk.fragments),
        open_rounds=min(desk.most_open, len(desk.fragments)),
        round_s=desk.round_s.value,
        step_s=desk.fleet.paces.least,
        slack_s=_slack_s(desk),
        usual=sum(usual) / max(1, len(usual)),
        live=len(desk.fleet.counted()),
        most_quorum=desk.params.budget_bytes // (largest * len(desk.fragments)),
    )
    changes = adaptive.look(seen)
    if adaptive.sync_period != before:
        desk.params = replace(desk.params, sync_period=adaptive.sync_period)
        for each in desk.fragments:
            each.standing = None
        desk.look_again(now)
    return [Note(what=what, why=why) for what, why in changes]
