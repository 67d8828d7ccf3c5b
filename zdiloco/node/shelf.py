"""What a syncer has on offer: published states and answers, each held as long as somebody may still ask for it.

Rule: the newest payload of a slot stays. One that a newer has replaced stays only while a peer is fetching it, so that
a receiver slower than a round still gets its whole body, and memory does not grow with what nobody fetches. Whatever
peers ask for, `MOST_REPLACED` replaced ones of a slot stay at most: those that were asked for last.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from zdiloco.core.messages import Body
from zdiloco.units import MemberKey
from zdiloco.wire.frames import Buffer
from zdiloco.wire.joined import Joined
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit

MOST_REPLACED = 4


@dataclass(slots=True)
class _Held:
    slot: Hashable
    body: Body
    idle_s: float
    used_at: float
    superseded: bool = False


class Shelf:
    """The payloads of an outbox, by slot. All calls come from the network thread.

    `gone` hears the name of each payload that is let go: whoever has chunks of it on their way out drops them.
    """

    def __init__(self, outbox: Outbox, gone: Callable[[str], None] = lambda name: None) -> None:
        self._outbox = outbox
        self._gone = gone
        self._held: dict[str, _Held] = {}
        self._newest: dict[Hashable, str] = {}

    def put(
        self, slot: Hashable, name: str, payload: Buffer | Joined, now: float, *, chunk_bytes: int, idle_s: float
    ) -> Body:
        """Offer `payload` as transfer `name`, the newest of its slot; what it replaces goes once idle for `idle_s`."""
        if name in self._held:
            self.drop(name)
        body = self._outbox.add(name, payload, chunk_bytes)
        before = self._newest.get(slot)
        if before in self._held:
            self._held[before].superseded = True
        self._newest[slot] = name
        self._held[name] = _Held(slot=slot, body=body, idle_s=idle_s, used_at=now)
        self._crowd_out(slot)
        self.sweep(now)
        return body

    def _crowd_out(self, slot: Hashable) -> None:
        replaced = [(held.used_at, name) for name, held in self._held.items() if held.superseded and held.slot == slot]
        for _, name in sorted(replaced)[:-MOST_REPLACED]:
            self.drop(name)

    def body(self, name: str) -> Body | None:
        """The body of a transfer on offer; None: it is not."""
        held = self._held.get(name)
        return held.body if held else None

    def used(self, key: MemberKey, credit: Credit, now: float) -> None:
        """A peer has given credit for a transfer."""
        held = self._held.get(credit.transfer)
        if held:
            held.used_at = now

    def retire(self, slot: Hashable) -> None:
        """Nothing of this slot is new any more: it goes once idle."""
        name = self._newest.pop(slot, None)
        if name in self._held:
            self._held[name].superseded = True

    def retire_all(self) -> None:
        """Nothing that is here is new any more: all of it goes once idle."""
        for slot in list(self._newest):
            self.retire(slot)

    def drop(self, name: str) -> None:
        """Let a payload go now."""
        held = self._held.pop(name, None)
        if held:
            self._outbox.drop(name)
            self._gone(name)
            if self._newest.get(held.slot) == name:
                del self._newest[held.slot]

    def sweep(self, now: float) -> None:
        """Let go what was replaced and is idle."""
        for name in [n for n, held in self._held.items() if held.superseded and now - held.used_at > held.idle_s]:
            self.drop(name)
