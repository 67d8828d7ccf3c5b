"""What a learner takes of what is published: every update, or none, so that it pulls the newest states instead.

Rule: bodies that a link cannot carry are kept off it. A learner listens once its values are loaded, and as long as it
keeps up. Where one body, sent all at once, would hold its link for long, it asks for each by credit and leaves the bulk
broadcast: nothing bounds what of that waits before its link, words behind it. One that does not keep up leaves it, too,
with all that waits there for it, and pulls whole states, the fragment furthest behind first, few at once, so that its
link is full and nothing queues on it. It listens again when its link carries what is published, with room, or pulls
alone have long kept it up; each time it falls behind anew, it waits longer before it tries.
"""

from collections import deque
from typing import TYPE_CHECKING

from zdiloco.core.duty import Duty
from zdiloco.core.joining import LearnerPhase
from zdiloco.core.machine import Discard, LearnerAction, Listen, Note, Receive
from zdiloco.core.messages import Update
from zdiloco.units import Epoch, Stamp

if TYPE_CHECKING:
    from zdiloco.core.inflow import Inflow

_P = LearnerPhase
BEHIND = 2
"""Versions of a fragment without a body from which on a learner is behind; it may lack those announced within `SOON_S`,
however many: rounds may follow each other faster than anything comes by a link that is not slow."""
BEHIND_BEATS = 2
"""So many beats in a row must find it behind: a body that is on its way is no slow link. Those that waited while the
process stalled, and are read at once, are one beat."""
ROOM = 1.5
"""A link carries what is published if it brought so many times as much."""
SPAN_S = 30.0
"""Seconds over which both are measured; and who was behind at no beat for so long has kept up."""
REST_FIRST_S = 10.0
REST_MOST_S = 300.0
"""Who fell behind listens again after the first at the earliest; each time after twice as long, up to the last."""
FIRST_AT_ONCE = 4
LEAST_AT_ONCE = 2
"""Pulls under way at once: at first, and however slow the link is."""
BURST_S = 0.05
LEAST_BURST = 2**17
FAST_BYTES_S = 12.5e6
"""A body that would hold a link for longer, and has so many bytes at least, is asked for; fast links are soon free."""
TELLING_BYTES = 2**21
"""What less than that took says more of how soon everybody answers, at a start, than of the link."""
SOON_S = 1.0
"""A state that is here so soon after its pull shows that more could be under way; a later one that fewer should be."""


class Downlink:
    """The downlink of one learner machine. `known`: the newest version that was heard of, per fragment.

    `listening`: every update is taken; `asks`: by credit instead of by broadcast.
    """

    def __init__(self, inflow: "Inflow") -> None:
        self.inflow, self.machine = inflow, inflow.machine
        self.listening = self.asks = False
        self.known = [-1] * len(inflow.machine.duties)
        self.at_once = FIRST_AT_ONCE
        self._pulled: dict[int, float] = {}
        self._behind: dict[int, tuple[int, float]] = {}
        self._published: deque[tuple[float, int]] = deque()
        self._lately: tuple[deque[float], ...] = tuple(deque() for _ in inflow.machine.duties)
        self._since = self._kept_up_since = 0.0
        self._came_bytes = self._busy_s = self._bytes_s = 0.0
        self._looked_at: float | None = None
        self._rest_s, self._again_at, self._listened_at = REST_FIRST_S, float("-inf"), float("-inf")

    # ---- what is heard

    def welcomed(self, duty: Duty, version: int, now: float) -> list[LearnerAction]:
        """A syncer publishes this version of a fragment, which is not here: who does not listen pulls in its turn."""
        self.known[duty.index] = version
        if not self._since:
            self._since = self._kept_up_since = now
        return self.inflow.pull(duty, now) if self.listening else []

    def announced(self, update: Update, now: float) -> bool:
        """An update is broadcast. Returns whether it is taken."""
        self._published.append((now, update.body.nbytes))
        while self._published[0][0] < now - SPAN_S:
            self._published.popleft()
        self._lately[update.fragment].append(now)
        self.known[update.fragment] = max(self.known[update.fragment], update.stamp.version)
        return self.listening

    def bursts(self, update: Update) -> list[LearnerAction]:
        """An announced update is taken: leave the broadcast if such bodies hold the link; from now on they are asked
        for, and so are those that were on their way by broadcast."""
        if self.asks or not self._holds(update.body.nbytes):
            return []
        self.asks = True
        actions: list[LearnerAction] = [self._asking(update.body.nbytes), Listen(on=False)]
        for duty in self.machine.duties:
            for coming in [coming for coming in duty.receiving.values() if not coming.full]:
                actions += [Discard(update=coming), Receive(update=coming, broadcast=False)]
        return actions

    def _holds(self, nbytes: int) -> bool:
        """Whether a body of so many bytes, all at once, would hold the link for long, by what pulls brought of it."""
        return 0 < self._bytes_s < FAST_BYTES_S and nbytes > max(LEAST_BURST, BURST_S * self._bytes_s)

    def _asking(self, nbytes: int) -> Note:
        why = f"all at once {nbytes:,} bytes would hold its link, of {self._bytes_s:,.0f} bytes/s, for long"
        return Note(what="asks for the updates instead of taking the broadcast", why=why)

    def beaten(self, duty: Duty, version: int, now: float) -> list[LearnerAction]:
        """A beat says which version there is: who listens and is behind for some beats stops listening."""
        self.known[duty.index] = max(self.known[duty.index], version)
        here = max([duty.progress.seen, *duty.ready, *([duty.adoption.stamp] if duty.adoption else [])])
        missing, ours = self.known[duty.index] - here.version, here.epoch == self.machine.epoch
        late = missing >= self._bound(duty, now)
        if late or not ours:
            self._kept_up_since = now
        if not (late and ours and self.listening):
            self._behind.pop(duty.index, None)
            return []
        beats, counted_at = self._behind.get(duty.index, (0, float("-inf")))
        if now - counted_at < self.machine.sync.beat_every_s / 2:
            return []
        self._behind[duty.index] = (beats + 1, now)
        if beats < BEHIND_BEATS:
            return []
        if now - self._listened_at > REST_MOST_S:
            self._rest_s = REST_FIRST_S
        self._again_at, self._rest_s = now + self._rest_s, min(2 * self._rest_s, REST_MOST_S)
        return self.leave(f"{missing} versions of fragment {duty.index} are published that have not come", now)

    def _bound(self, duty: Duty, now: float) -> int:
        """How many versions of a fragment without a body are too many."""
        lately = self._lately[duty.index]
        while lately and lately[0] < now - SOON_S:
            lately.popleft()
        return max(BEHIND, len(lately))

    def arrived(self, update: Update, now: float) -> None:
        """The body of an update is here."""
        asked_at = self._pulled.pop(update.fragment, None)
        if not update.full or asked_at is None:
            return
        self._came_bytes += update.body.nbytes
        soon = now - asked_at <= SOON_S
        self.at_once = self.at_once + 1 if soon else max(LEAST_AT_ONCE, self.at_once // 2)

    # ---- what is done about it

    def leave(self, why: str, now: float) -> list[LearnerAction]:
        """Stop listening; what was on its way by broadcast is not waited for any more."""
        if not self.listening:
            return []
        self.listening, self.asks, self.at_once = False, False, LEAST_AT_ONCE
        self._behind.clear()
        self._came_bytes, self._busy_s, self._looked_at, self._kept_up_since = 0.0, 0.0, None, now
        actions: list[LearnerAction] = [Note(what="leaves the broadcast and pulls", why=why), Listen(on=False)]
        for duty in self.machine.duties:
            for stamp in [stamp for stamp, update in duty.receiving.items() if not update.full]:
                actions.append(Discard(update=duty.receiving.pop(stamp)))
        return actions

    def turn(self, now: float) -> list[LearnerAction]:
        """Pull what is furthest behind, or listen again."""
        if self.listening or self.machine.phase not in (_P.RESTORING, _P.TRAINING):
            self._looked_at = None
            return []
        duties = self.machine.duties
        if self._looked_at is not None:
            self._busy_s += now - self._looked_at
        wanted = [duty for duty in duties if duty.tip < Stamp(self.machine.epoch, self.known[duty.index])]
        coming = sum(_comes(duty, self.machine.epoch) for duty in duties)
        self._looked_at = now if coming else None
        if self._may_listen(now):
            return self._listen(wanted, now)
        actions: list[LearnerAction] = []
        wanted.sort(key=lambda duty: duty.tip.version - self.known[duty.index] if duty.tip.version >= 0 else -(2**60))
        for duty in [duty for duty in wanted if not _comes(duty, self.machine.epoch)][: max(0, self.at_once - coming)]:
            self._pulled[duty.index] = now
            actions += self.inflow.pull(duty, now)
        if actions:
            self._looked_at = now
        return actions

    def _may_listen(self, now: float) -> bool:
        """Whether all values are loaded, nothing is far behind, and the link has shown what it carries."""
        if self.machine.phase is not _P.TRAINING or now < self._again_at:
            return False
        known = zip(self.machine.duties, self.known, strict=True)
        near = all(version - duty.tip.version < self._bound(duty, now) for duty, version in known)
        return near and (self._carries(now) or now - self._kept_up_since >= SPAN_S)

    def _carries(self, now: float) -> bool:
        """Whether pulls have brought more than what is published, with room."""
        published = sum(nbytes for at, nbytes in self._published if at >= now - SPAN_S)
        published_bytes_s = published / max(1.0, min(SPAN_S, now - self._since))
        if self._busy_s > SPAN_S:
            self._busy_s, self._came_bytes = self._busy_s / 2, self._came_bytes / 2
        return self._came_bytes >= ROOM * published_bytes_s * self._busy_s

    def _listen(self, wanted: list[Duty], now: float) -> list[LearnerAction]:
        self.listening, self._listened_at, self._looked_at = True, now, None
        rate = f"{self._came_bytes / self._busy_s:,.0f} bytes/s came by pulls" if self._busy_s else "nothing is behind"
        why = f"its link carries what is published: {rate}" if self._carries(now) else "pulls alone have kept it up"
        if self._busy_s and self._came_bytes >= TELLING_BYTES:
            self._bytes_s = self._came_bytes / self._busy_s
        largest = max((nbytes for _, nbytes in self._published), default=0)
        self.asks = self._holds(largest)
        note = self._asking(largest) if self.asks else Note(what="listens to the broadcast", why=why)
        actions: list[LearnerAction] = [note, *([] if self.asks else [Listen(on=True)])]
        for duty in wanted:
            actions += self.inflow.pull(duty, now)
        return actions


def _comes(duty: Duty, epoch: Epoch) -> bool:
    """Whether a whole state of this epoch is asked for or on its way."""
    whole = any(update.full and update.stamp.epoch == epoch for update in duty.receiving.values())
    return whole or duty.pulled_at is not None
