"""Half-open roads, as a learner sees them: what it sends or asks for is lost on one road while the others live.

Rule: a road is dead when requests on it were in vain `MOST_VAIN` times in a row, and the peer was heard meanwhile.
Nothing else would end such a connection for many minutes: TCP waits for acknowledgements, ZeroMQ for TCP.
"""

from zdiloco.wire.inbox import Inbox
from zdiloco.wire.transfer import Credit

MOST_VAIN = 3


class Repeats:
    """The credits of one receiver. `count`: how often in a row it has asked for the same, and nothing came of it."""

    def __init__(self) -> None:
        self.count = 0
        self._received: dict[str, int] = {}

    def credited(self, credit: Credit) -> None:
        """It asks for chunks, and says how much is there."""
        before = self._received.get(credit.transfer)
        if before is not None and credit.received > before:
            self.count = 0
        elif before == credit.received and credit.missing:
            self.count += 1
        self._received = {credit.transfer: credit.received} | {
            name: count for name, count in list(self._received.items())[:64] if name != credit.transfer
        }


class Vain:
    """Counts what was in vain between this process and one peer."""

    def __init__(self, inbox: Inbox, give_up_s: float) -> None:
        self._inbox = inbox
        self._rest_s = give_up_s / 3
        self._sent = Repeats()
        self._heard = 0
        self._judged_at: dict[str, float] = {}

    def credited(self, credit: Credit) -> None:
        """The peer asks for chunks of ours."""
        self._sent.credited(credit)

    def judge(self, peer: object, heard: int, now: float) -> str:
        """Say which road is dead: 'bulk', 'bulk_cast' or none (''). `heard`: frames of the peer, on any road, so far.

        The caller dials that road anew; it is not judged again before a third of `give_up_s` has passed.
        """
        if heard == self._heard:
            return ""
        vain = {"bulk": max(self._sent.count, self._inbox.asked_in_vain(peer)), "bulk_cast": self._inbox.unheard}
        for road, count in vain.items():
            if count >= MOST_VAIN and now >= self._judged_at.get(road, -1e9) + self._rest_s:
                self._heard, self._judged_at[road], self._sent.count = heard, now, 0
                self._inbox.forgive(peer)
                return road
        if not any(vain.values()):
            self._heard = heard
        return ""


class PassedInVain:
    """The same for who passes on between two ends, which ask each other: `up`, what the far end asks for and is sent up
    this way; `down`, what the near end asks for."""

    def __init__(self, give_up_s: float) -> None:
        self.up, self.down = Repeats(), Repeats()
        self._rest_s = give_up_s / 3
        self._heard = 0
        self._judged_at = -1e9

    def judge(self, heard: int, now: float) -> bool:
        """Say whether the bulk road that both go by is dead. `heard`: frames of the far end, on any road, so far.

        The caller dials it anew; it is not judged again before a third of `give_up_s` has passed.
        """
        if heard == self._heard:
            return False
        vain = max(self.up.count, self.down.count)
        if vain >= MOST_VAIN and now >= self._judged_at + self._rest_s:
            self._heard, self._judged_at, self.up.count, self.down.count = heard, now, 0, 0
            return True
        if not vain:
            self._heard = heard
        return False
