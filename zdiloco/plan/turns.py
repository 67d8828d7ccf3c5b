"""How soon a learner contributes again, by the rule of its uplink (`core/uplink.py`).

Rule: as many contributions as its window allows are under way, and the next one is cut at the step boundary at which
the oldest is as good as through. The window grows while the link has room. Where more is called than the link carries,
it is given up at a size at which even one answer is late, since such a size is not tried again for long: with one more
on its way, as there is when the oldest is nearly through, answers take as long as all of them do on the link, and where
packets are lost, one in so many waits for a packet that is sent again. A link is full at the bodies' own rate only
where a window fits in between.
"""

from dataclasses import dataclass

from zdiloco.core.uplink import HARMLESS, NEARLY, QUEUE
from zdiloco.plan.params import Region, Settings
from zdiloco.plan.traffic import boundary_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """A learner that always has a contribution to send: `each_s`: from one cut to the next, of whatever fragment;
    `queue_s`: what one waits on the link for those cut before it."""

    each_s: float
    queue_s: float


def turns_of(region: Region, body_s: float, every_s: float, settings: Settings) -> Turns:
    """The turns of each learner of a region.

    `body_s`: what one takes on the link, with those that go beside it; `every_s`: from one call to the next, of
    whatever fragment, while no link is full. From the cut of one to its receipt: two round trips and the body.
    """
    alone_s = 2 * region.rtt_s + body_s
    many = _window(region, body_s, every_s, settings)
    cut_s = boundary_s(NEARLY * alone_s, region.step_s) / many
    queued = body_s > max(cut_s, every_s)
    return Turns(each_s=max(body_s, cut_s), queue_s=max(0.0, (many + 1) * body_s - alone_s) if queued else 0.0)


def _window(region: Region, body_s: float, every_s: float, settings: Settings) -> int:
    """How many are under way: at least as many as keep the last one waiting for less than a step."""
    most, period, alone_s = settings.learner.max_uplink, settings.sync.sync_period, 2 * region.rtt_s + body_s
    many = min(most, 1 + int(region.step_s / alone_s))
    late_s = max(QUEUE * alone_s, alone_s + region.step_s * max(1.0, HARMLESS * period))
    again_s = region.rtt_s if region.loss > 0 else 0.0
    while many < most and many * body_s < NEARLY * alone_s:
        queued_s = max(alone_s, (many + 2) * body_s) + again_s
        if body_s > every_s and queued_s > late_s:
            break
        many += 1
    return many
