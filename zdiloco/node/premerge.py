"""The bodies behind a relay that merges: it fetches what its learners contribute, merges it, and offers the bundle.

Rule: words go through as ever; what is said here in a learner's stead is credit and chunks of its body alone. `core.
bundling` decides, the worker thread computes. Bytes are kept until the syncer has said what became of them, within
`relay.budget_bytes`; what has no room, or is nothing that can be judged here, is passed on as if nobody were here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from zdiloco.core import bundling as b
from zdiloco.core.bundles import Unbundling
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import (
    Ack,
    Bundle,
    Bundled,
    Contribution,
    Decline,
    Hello,
    Refused,
    Unbundled,
)
from zdiloco.core.params import SyncParams
from zdiloco.core.weights import implausible, weight_of
from zdiloco.node.params import MergeParams
from zdiloco.node.premerge_layout import LayoutOfRun
from zdiloco.node.relay_roads import credited
from zdiloco.node.syncer_body import MAX_LAYOUT_BYTES
from zdiloco.node.worker import Worker
from zdiloco.tensor.codecs import NAMES, get_codec
from zdiloco.tensor.layout import Fragment
from zdiloco.tensor.merge import Weighted
from zdiloco.tensor.partial import bundle_bytes, bundle_of
from zdiloco.tensor.screen import Screened, screen
from zdiloco.units import MemberKey
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.inbox import Expected, Inbox
from zdiloco.wire.kept import Kept, KeptBodies
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.pace import FIRST_CHUNK
from zdiloco.wire.transfer import Chunk, Credit, Gone

if TYPE_CHECKING:
    from zdiloco.node.relay import RelayNode

log = logging.getLogger("zdiloco.node.relay")

PATIENCE = 0.25
"""Share of `net.stall_s`, after which the syncer asks again, that one contribution waits for the others."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How the syncer of this run merges: a bundle that was merged otherwise would be refused."""

    merge: MergeParams
    sync: SyncParams


class Premerge:
    """What a relay with `relay.premerge` does beside passing on; every method but the jobs runs on its one thread."""

    def __init__(self, relay: RelayNode, terms: Terms) -> None:
        self.relay, self.terms = relay, terms
        net, self._codec = relay.net, relay.params.premerge_codec
        self.inbox = Inbox(net.inbox(relay.params.budget_bytes + MAX_LAYOUT_BYTES))
        self.box = Outbox()
        self.bundling = b.Bundling(PATIENCE * net.stall_s, net.stall_s, net.give_up_s / 3, self._cost)
        self.layout = LayoutOfRun(self.inbox, lambda message: relay.up.send(SYNCER, message))
        self.off = False
        self.passed_over = 0
        self._kept = KeptBodies(self.inbox)
        self._numbers: dict[str, int] = {}
        self._epoch: Any = None
        self._unheard_of: set[str] = {*Unbundling} - {Unbundling.OFF}
        self._worker = Worker("zdiloco-premerge", relay.fail)

    @property
    def kept_bytes(self) -> int:
        """Bytes of all bodies and bundles that are kept: never more than `relay.budget_bytes`, and a layout."""
        return self.inbox.reserved_bytes + self.box.held_bytes

    def close(self) -> None:
        """End the worker; what it has not begun is abandoned."""
        self._worker.close(1.0)

    # ---- from the learners

    def said(self, key: MemberKey, message: object, now: float) -> None:
        """A learner has said something, which goes up as ever."""
        if isinstance(message, Contribution):
            self._offered(key, message, now)
        elif isinstance(message, Decline):
            self.bundling.declined(key, message.fragment)
        elif isinstance(message, Gone) and message.by_sender:
            self._lost(self._kept.place(key, message.transfer))
        elif isinstance(message, Hello):
            self.layout.said_to_be(message.layout_digest)

    def _offered(self, key: MemberKey, message: Contribution, now: float) -> None:
        place = (key, message.fragment)
        known = self._kept.get(place)
        if (known is not None and known.message == message) or self.bundling.passes(key, message):
            return
        self._lost(place)
        fragment = self._fragment(message, now)
        room = fragment is not None and self._has_room(message.body.nbytes)
        found = self._kept.let_in(key, message, now) if room else None
        if found is None:
            self.passed_over += 1
            return
        self._do(self.bundling.offered(key, message))
        if found is Expected.COMPLETE:
            self._arrived(place)

    def _fragment(self, message: Contribution, now: float) -> Fragment | None:
        """The fragment of a contribution that can be merged here; None: it cannot be, or nothing is known yet."""
        if self.off or implausible(message, self.terms.sync):  # its weight need not even be a number
            return None
        fragment = self.layout.fragment(message.fragment, now)
        if fragment is None or message.codec not in NAMES:
            return None
        right = message.body.nbytes == get_codec(message.codec).encoded_bytes(fragment.numel)
        return fragment if right else None

    def _has_room(self, nbytes: int) -> bool:
        return self.kept_bytes + nbytes <= self.relay.params.budget_bytes

    def on_chunk(self, key: MemberKey, chunk: Chunk, payload: memoryview, now: float) -> bool:
        """Take a chunk of a body that is kept here. False: it is for the syncer."""
        place = self._kept.place(key, chunk.transfer)
        if place is None:
            return False
        if self.inbox.on_chunk(key, chunk, payload, now) is Outcome.COMPLETE:
            self._arrived(place)
        return True

    def _arrived(self, place: b.Place) -> None:
        """All bytes of a contribution are here: look at them."""
        body, data = self._kept.arrived(place)
        message, fragment = body.message, self.layout.fragment(body.message.fragment, 0.0)
        if fragment is None:  # the layout was forgotten meanwhile
            self._do(self.bundling.looked_at(place[0], message, sound=False))
            return

        def work() -> None:
            found = screen(data, codec=get_codec(message.codec), numel=fragment.numel, cuts=fragment.offsets)
            self.relay.wake.post(partial(self._looked_at, place, body, found, fragment.is_buffers))

        self._worker.submit(work)

    def _looked_at(self, place: b.Place, body: Kept, found: Screened, is_buffers: bool) -> None:
        if self._kept.get(place) is not body:  # the same words may have come again since, and their bytes not yet
            return
        body.squares, body.norm = found.squares, 0.0 if is_buffers else found.norm
        sound = found.reason is None and (is_buffers or found.norm > 0.0)
        self._do(self.bundling.looked_at(place[0], body.message, sound=sound))

    def gone(self, key: MemberKey) -> None:
        """The lane of a learner is closed."""
        self._do(self.bundling.gone(key))

    # ---- from upstream

    def heard(self, key: MemberKey, message: object, now: float) -> bool:
        """The syncer says something to a learner. True: it is answered here, and not for the learner."""
        if isinstance(message, Ack | Refused):
            self._do(self.bundling.answered(key, message))
        place = self._kept.place(key, message.transfer) if isinstance(message, Credit | Gone) else None
        if place is None:
            return False
        if not isinstance(message, Credit):
            self._lost(place)
            return False
        self._kept[place].credit = message
        self._do(self.bundling.asked(*place, now))
        entry = self.bundling.entries.get(place)
        if entry is not None and entry.stage is b.Stage.FORWARDED:
            self._answer(place)
        return entry is not None

    def broadcast(self, message: object) -> None:
        """What the syncer says to all: a new epoch knows nothing of what was bundled before."""
        epoch = getattr(message, "epoch", None)
        if epoch is not None and epoch != self._epoch:
            if self._epoch is not None:
                self._do(self.bundling.reset())
            self._epoch, self.off = epoch, False  # another one may take them

    def told(self, message: object, now: float) -> bool:
        """The syncer says something to the relay itself. False: it is of no concern here."""
        if isinstance(message, Unbundled):
            if message.reason == Unbundling.OFF and not self.off:
                self.off = True
                log.warning("relay merges nothing: the syncer refuses it why=%r", message.text)
            level = logging.INFO if message.reason in self._unheard_of else logging.DEBUG  # each reason is said once
            self._unheard_of.discard(message.reason)
            log.log(level, "bundle %d is refused why=%r", message.number, f"{message.reason}: {message.text}")
            self._do(self.bundling.failed(message.number))
        elif isinstance(message, Credit):
            self._serve(message, now)
        elif isinstance(message, Gone) and message.transfer in self._numbers and not message.by_sender:
            self._do(self.bundling.failed(self._numbers[message.transfer]))
        else:
            return self.layout.told(message, now)
        return True

    def _serve(self, credit: Credit, now: float) -> None:
        """The syncer asks for a bundle."""
        credited(self.relay.up, SYNCER, credit)
        self.relay.far.credited(credit)
        answer = self.box.on_credit(SYNCER, credit)
        if isinstance(answer, Gone):
            self.relay.up.send(SYNCER, answer)
            return
        self.bundling.taken(self._numbers[credit.transfer], now)
        self.relay.up.send_chunks(SYNCER, answer)

    # ---- what is decided

    def _do(self, actions: list[b.BundlingAction]) -> None:
        for action in actions:
            if isinstance(action, b.Forward):
                self._answer(action.place)
            elif isinstance(action, b.Release):
                self._kept.drop(action.place)
            elif isinstance(action, b.Gather):
                self._gather(action)
            else:
                self._withdraw(action.number)

    def _answer(self, place: b.Place) -> None:
        """Answer the syncer's last credit for a contribution with its own bytes."""
        lane = self.relay.lanes.get(place[0])
        if lane is not None:
            lane.roads.send_chunks(SYNCER, self._kept.answer(place))

    def _lost(self, place: b.Place | None) -> None:
        if place is not None:
            self._do(self.bundling.lost(*place))

    def _cost(self, index: int) -> int:
        fragment = self.layout.fragment(index, 0.0)
        return bundle_bytes(fragment, self._codec) if fragment else 0

    def _gather(self, action: b.Gather) -> None:
        """Have the worker merge."""
        fragment = self.layout.fragment(action.fragment, 0.0)
        if fragment is None or not self._has_room(self._cost(action.fragment)):
            self._do(self.bundling.failed(action.number))
            return
        method = "avg" if fragment.is_buffers else self.terms.merge.method
        members, parts = [], []
        for key, said in action.members:
            body = self._kept[key, action.fragment]
            assert body.data is not None
            weight, counters = weight_of(said, self.terms.sync), (said.seq, said.after, said.steps, said.tokens)
            members.append(Bundled(key.name, key.incarnation, *counters, body.norm, weight))
            parts.append(Weighted(data=body.data, codec=get_codec(said.codec), weight=weight, squares=body.squares))

        def work() -> None:
            data = bundle_of(fragment, parts, method, self._codec)
            self.relay.wake.post(partial(self._gathered, action, method, tuple(members), data))

        self._worker.submit(work)

    def _gathered(self, action: b.Gather, method: str, members: tuple[Bundled, ...], data: bytes | None) -> None:
        """A bundle is made: offer it."""
        if data is None or not self.bundling.awaits(action.number):
            self._do(self.bundling.failed(action.number))
            return
        name = f"b/{self.relay.key.incarnation:x}/{action.number}"
        self._numbers[name] = action.number
        body = self.box.add(name, data, min(self.relay.net.chunk_bytes, FIRST_CHUNK))
        bundle = Bundle(
            fragment=action.fragment, number=action.number, method=method, codec=self._codec, members=members,
            body=body,
        )  # fmt: skip
        self.relay.up.send(SYNCER, bundle)

    def _withdraw(self, number: int) -> None:
        name = f"b/{self.relay.key.incarnation:x}/{number}"
        if self._numbers.pop(name, None) is not None:
            self.box.drop(name)
            self.relay.up.drop_transfer(SYNCER, name)

    # ---- time

    def turn(self, now: float) -> None:
        """Inputs are drained: fetch what is missing, and bundle what is due."""
        turn = self.inbox.turn(now)
        for peer, message in turn.to_send:
            if peer == SYNCER:
                self.relay.up.send(SYNCER, message)
            elif isinstance(peer, MemberKey):
                self.relay.region.send(peer, message)
        for failed in turn.given_up:
            if failed.peer == SYNCER:
                self.layout.lost()
            elif isinstance(failed.peer, MemberKey):
                self._lost(self._kept.place(failed.peer, failed.transfer))
        self._do(self.bundling.turn(now))

    def deadline(self) -> float | None:
        """When `turn` is due next."""
        return min((at for at in (self.inbox.deadline(), self.bundling.deadline()) if at is not None), default=None)

    def status(self) -> dict[str, Any]:
        """What `zdiloco status --relay` shows of it, counted since the relay has started."""
        counters = self.bundling.counters
        return {
            "codec": self._codec,
            "off": self.off,
            "bundles": counters.bundles,
            "bundled": counters.bundled,
            "refused": counters.refused,
            "forwarded": counters.forwarded,
            "passed_over": self.passed_over,
            "kept_bytes": self.kept_bytes,
        }
