"""How fast a link takes what goes up: bytes per second while something is under way, by what receivers confirm.

Rule: the link works on a body from when the first confirmation of a byte of it could be here, which is a round trip
after its first credit, or from when the body before it was through, until all of it is confirmed. So neither the
distance nor pauses between bodies look like a slow link. Seconds per byte are averaged, not the speed: confirmations
that come late and then in a burst add up to the right time.
"""

from collections import deque

from zdiloco.core.grace import Average
from zdiloco.wire.transfer import Credit

SHARE = 0.2
RECENT = 8
MOST_OFFERED = 1024


class LinkMeter:
    """One peer's uplink, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._offered: dict[str, tuple[int, float]] = {}
        self._begun: dict[str, float] = {}
        self._trips: deque[float] = deque(maxlen=RECENT)
        self._through_at = float("-inf")
        self._byte_s = Average(SHARE)

    @property
    def bytes_s(self) -> float:
        """Bytes per second; 0: not known yet."""
        return 1.0 / self._byte_s.value if self._byte_s.value else 0.0

    def offered(self, transfer: str, nbytes: int, now: float) -> None:
        """A body is on offer from now on."""
        self._offered[transfer] = (nbytes, now)
        if len(self._offered) > MOST_OFFERED:
            self.forget(next(iter(self._offered)))

    def forget(self, transfer: str) -> None:
        """A body is on offer no more."""
        self._offered.pop(transfer, None)
        self._begun.pop(transfer, None)

    def credited(self, credit: Credit, now: float) -> None:
        """The receiver has given credit, and says how much is there."""
        found = self._offered.get(credit.transfer)
        if found is None:
            return
        nbytes, offered_at = found
        if credit.transfer not in self._begun:
            self._begun[credit.transfer] = now
            self._trips.append(now - offered_at)
        if credit.received < nbytes:
            return
        if nbytes:
            since = max(self._begun[credit.transfer] + min(self._trips), self._through_at)
            self._byte_s.add(max(now - since, 1e-6) / nbytes)
        self._through_at = now
        self.forget(credit.transfer)
