"""How far the learners behind a relay are: which published states each of them has shown to have adopted.

Rule: only what is said counts. A learner names the state that it has adopted when it says hello and in each of its
contributions; in between it may be further than its lag says, never less far.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from zdiloco.core.messages import Beat, Contribution, Handback, Hello, Pull, Update
from zdiloco.units import FragmentId, Stamp


@dataclass(kw_only=True, slots=True)
class Followed:
    """One learner: the state of each fragment that it has named last, and what it had to ask for."""

    adopted: dict[FragmentId, Stamp] = field(default_factory=dict)
    pulled: int = 0
    repaired_chunks: int = 0
    repaired_bytes: int = 0


class Lag:
    """The newest published stamp of each fragment, and what each learner has of it."""

    def __init__(self) -> None:
        self.newest: dict[FragmentId, Stamp] = {}
        self._followed: dict[Hashable, Followed] = {}

    def of(self, key: Hashable) -> Followed:
        """What is known of a learner."""
        return self._followed.setdefault(key, Followed())

    def forget(self, key: Hashable) -> None:
        """It is not behind this relay any more."""
        self._followed.pop(key, None)

    def published(self, message: object) -> None:
        """Hear what the syncer says: updates and beats tell what there is."""
        if isinstance(message, Update):
            self._newest(message.fragment, message.stamp)
        elif isinstance(message, Beat):
            for fragment, version in enumerate(message.versions):
                self._newest(fragment, Stamp(message.epoch, version))

    def said(self, key: Hashable, message: object) -> None:
        """Hear what a learner says."""
        if isinstance(message, Contribution | Handback):
            self.of(key).adopted[message.fragment] = message.stamp
        elif isinstance(message, Hello):
            self.of(key).adopted.update(enumerate(message.stamps))
        elif isinstance(message, Pull):
            self.of(key).pulled += 1

    def versions(self, key: Hashable) -> int | None:
        """By how many versions a learner is behind, in the fragment where it is most; None: it has named no state of
        this epoch."""
        known = [
            max(0, newest.version - stamp.version)
            for fragment, newest in self.newest.items()
            if (stamp := self.of(key).adopted.get(fragment)) is not None and stamp.epoch == newest.epoch
        ]
        return max(known, default=None)

    def _newest(self, fragment: FragmentId, stamp: Stamp) -> None:
        self.newest[fragment] = max(stamp, self.newest.get(fragment, stamp))
