"""What passed between this process and its peers.

Rule: of very many peers, those that came last are remembered: incarnations come and go.
"""

from collections import Counter
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field

from zdiloco.units import MemberKey

MAX_COUNTED = 4096
"""Most peers whose counts are kept."""


@dataclass(slots=True)
class Counts:
    """What passed to and from one peer, all roads together, without broadcasts' copies per listener."""

    frames_up: int = 0
    bytes_up: int = 0
    frames_down: int = 0
    bytes_down: int = 0
    dropped: int = 0
    malformed: Counter[str] = field(default_factory=Counter)


class PeerCounts(dict[MemberKey, Counts]):
    """The counts of all peers of one process."""

    def of(self, key: MemberKey) -> Counts:
        """Those of this peer, from now on."""
        found = self.get(key)
        if found is None:
            if len(self) >= MAX_COUNTED:
                del self[next(iter(self))]
            found = self[key] = Counts()
        return found

    def up(self, key: MemberKey, frames: Iterable[Sized]) -> None:
        """These frames went to it."""
        counts = self.of(key)
        for frame in frames:
            counts.frames_up += 1
            counts.bytes_up += len(frame)

    def down(self, key: MemberKey, frames: Iterable[Sized]) -> None:
        """These frames came from it."""
        counts = self.of(key)
        for frame in frames:
            counts.frames_down += 1
            counts.bytes_down += len(frame)
