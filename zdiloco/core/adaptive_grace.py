"""Grace that follows the fleet (`sync.adaptive`): the share of the slack that every grace window has at least.

Rule: it is learned from when contributions come, those too that come after the close: the smallest tenth of the slack
by which all are in but a twentieth of those who usually take part. What comes later than the longest window that suits
is not waited for: it is in the next round anyway. A window is never shorter than without; it grows at once, and falls
by a tenth at a time.
"""

import math
from dataclasses import dataclass

from zdiloco.core.params import SyncParams

TENTHS = 10
LONGEST = 0.9
"""The highest share where `adaptive_grace_max` does not say otherwise: the outer step is made within a period, too."""
LEFT = 0.05
"""So many of those who usually take part may come after the window, but within reach."""
ROUNDS = 16
"""Rounds until it is judged, half of them new each time."""
PATIENCE = 3
"""Judgements in a row that want a lower share until it falls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What bounds the share at a look, and why it is no more; `usual`: how many take part in a round on average."""

    most: float
    why: str
    usual: float


class AdaptiveGrace:
    """The `share` of one syncer, 0 at first; `longest`: its bound by the settings."""

    def __init__(self, params: SyncParams) -> None:
        self.share = 0.0
        self.longest = params.adaptive_grace_max or max(params.gamma, LONGEST)
        self._off = params.grace == "off"
        self._came = [0.0] * (TENTHS + 2)
        self._rounds = 0.0
        self._vain = 0

    def came(self, share: float) -> None:
        """A contribution is here, so much of the slack after the quorum of the newest round of its fragment."""
        self._came[min(TENTHS + 1, max(0, math.ceil(TENTHS * share)))] += 1

    def closed(self) -> None:
        """A round closes."""
        self._rounds += 1

    def look(self, room: Room) -> list[tuple[str, str]]:
        """Follow what came; return what has changed, with its reason."""
        if self._off:
            return []
        if room.most < self.share:
            return self._change(room.most, room.why)
        if self._rounds < ROUNDS:
            return []
        wanted, why = self._wanted(room)
        self._came, self._rounds = [each / 2 for each in self._came], self._rounds / 2
        self._vain = self._vain + 1 if wanted < self.share else 0
        if wanted > self.share:
            return self._change(wanted, why)
        return self._change(max(wanted, self.share - 1 / TENTHS), why) if self._vain >= PATIENCE else []

    def _wanted(self, room: Room) -> tuple[float, str]:
        reach = math.floor(TENTHS * room.most + 1e-9)
        tenths, later, allowed = reach, 0.0, LEFT * room.usual * self._rounds
        while tenths and later + self._came[tenths] <= allowed:
            later += self._came[tenths]
            tenths -= 1
        inside, beyond = sum(self._came[1 : tenths + 1]), sum(self._came[reach + 1 :])
        counts = (f"{count / self._rounds:.2f} {when}" for count, when in ((later, "later"), (beyond, "too late")))
        why = f"{inside / self._rounds:.2f} a round come within so much of the slack, {', '.join(counts)}"
        return tenths / TENTHS, why

    def _change(self, share: float, why: str) -> list[tuple[str, str]]:
        before, self.share = self.share, math.floor(1000 * share + 1e-9) / 1000  # not above what was allowed
        self._vain = 0
        return [(f"grace is at least {self.share:.0%} of the slack, no longer {before:.0%}", why)]
