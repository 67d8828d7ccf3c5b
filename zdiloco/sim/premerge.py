"""A relay of a world that merges: it fetches what its learners contribute, joins it, and offers the bundle.

Rule: as `node/premerge.py`, with sets of ids for tensors: `core.bundling` decides, words go through as ever, and bytes
are kept until the syncer has said what became of them.
"""

from dataclasses import replace
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any

from zdiloco.core import bundling as b
from zdiloco.core import machine as m
from zdiloco.core.messages import Ack, Body, Bundle, Bundled, Contribution, Decline, Refused, Unbundled
from zdiloco.core.weights import implausible, weight_of
from zdiloco.sim import chunks
from zdiloco.sim.relay_places import Relay
from zdiloco.sim.sizes import BYTES, NBYTES
from zdiloco.sim.work import Parcel, joined
from zdiloco.units import ContributionId, Epoch, MemberKey
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.inbox import Expected, Inbox
from zdiloco.wire.kept import KeptBodies
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Chunk, Credit, Gone

if TYPE_CHECKING:
    from zdiloco.sim.relays import Relays

PATIENCE = 0.25
"""Share of the time after which the syncer asks again, that one contribution waits for the others."""
MERGE_S = 0.002


class Premerge:
    """What a relay with `premerge` does beside passing on."""

    def __init__(self, relays: "Relays", relay: Relay) -> None:
        params = relays.world.inbox_params
        self.relays, self.relay, self.world = relays, relay, relays.world
        self.inbox = Inbox(replace(params, budget_bytes=relay.spec.budget_bytes))
        self.box = Outbox()
        self.bundling = b.Bundling(
            PATIENCE * params.stall_s, params.stall_s, params.give_up_s / 3, lambda fragment: NBYTES
        )
        self._kept = KeptBodies(self.inbox)
        self._epoch: Epoch | None = None

    # ---- from the learners

    def said(self, key: MemberKey, word: Any) -> None:
        """A learner has said something, which goes up as ever."""
        if isinstance(word, Contribution):
            self._offered(key, word)
        elif isinstance(word, Decline):
            self.bundling.declined(key, word.fragment)
        elif isinstance(word, Gone) and word.by_sender:
            self._lost(self._kept.place(key, word.transfer))

    def _offered(self, key: MemberKey, message: Contribution) -> None:
        place = (key, message.fragment)
        known = self._kept.get(place)
        if (known is not None and known.message == message) or self.bundling.passes(key, message):
            return
        self._lost(place)
        right = message.codec in BYTES and message.body.nbytes == BYTES[message.codec]
        if not right or message.fragment >= self.world.num_fragments or implausible(message, self.world.params):
            return
        found = self._kept.let_in(key, message, self.world.now)
        if found is None:
            return
        self._do(self.bundling.offered(key, message))
        if found is Expected.COMPLETE:
            self._arrived(place)

    def takes(self, key: MemberKey, chunk: Chunk, payload: memoryview) -> bool:
        """Take a chunk of a body that is kept here. False: it is for the syncer."""
        place = self._kept.place(key, chunk.transfer)
        if place is not None and self.inbox.on_chunk(key, chunk, payload, self.world.now) is Outcome.COMPLETE:
            self._arrived(place)
        return place is not None

    def _arrived(self, place: b.Place) -> None:
        """All bytes of a contribution are here: look at them."""
        body, _ = self._kept.arrived(place)
        key, message = place[0], body.message
        norms = self.relay.site.body.norms if self.relay.site is not None else {}
        body.norm = norms.get(ContributionId(key.name, key.incarnation, message.fragment, message.seq), 1.0)
        sound = not isnan(body.norm) and body.norm > 0.0
        self._do(self.bundling.looked_at(key, message, sound=sound))

    def gone(self, key: MemberKey) -> None:
        """The lane of a learner is closed."""
        self._do(self.bundling.gone(key))

    # ---- from above

    def hears(self, key: MemberKey, word: Any) -> bool:
        """The syncer says something to a learner. True: it is answered here, and not for the learner."""
        if isinstance(word, Ack | Refused):
            self._do(self.bundling.answered(key, word))
        place = self._kept.place(key, word.transfer) if isinstance(word, Credit | Gone) else None
        if place is None:
            return False
        if not isinstance(word, Credit):
            self._lost(place)
            return False
        self._kept[place].credit = word
        self._do(self.bundling.asked(*place, self.world.now))
        entry = self.bundling.entries.get(place)
        if entry is not None and entry.stage is b.Stage.FORWARDED:
            self._answer(place)
        return entry is not None

    def broadcast(self, word: Any) -> None:
        """What the syncer says to all: a new epoch knows nothing of what was bundled before."""
        epoch = getattr(word, "epoch", None)
        if epoch is not None and epoch != self._epoch:
            if self._epoch is not None:
                self._do(self.bundling.reset())
            self._epoch = epoch

    def told(self, word: Any) -> None:
        """The syncer says something to the relay itself."""
        if isinstance(word, Unbundled):
            self._do(self.bundling.failed(word.number))
        elif isinstance(word, Gone) and not word.by_sender and word.transfer in self.box:
            self._do(self.bundling.failed(number_of(word.transfer)))
        elif isinstance(word, Credit):
            answer = self.box.on_credit(m.SYNCER, word)
            if isinstance(answer, Gone):
                self.relays.say_up(self.relay, answer)
                return
            self.bundling.taken(number_of(word.transfer), self.world.now)
            for out in answer:
                self.relays.chunk_up(self.relay, self.relay.key, out.header, out.view)

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
                self.box.drop(bundle_name(self.relay.key, action.number))
                self.relay.link.up.drop(bundle_name(self.relay.key, action.number), self.relay.key)

    def _answer(self, place: b.Place) -> None:
        """Answer the syncer's last credit for a contribution with its own bytes."""
        for out in self._kept.answer(place):
            self.relays.chunk_up(self.relay, place[0], out.header, out.view)

    def _lost(self, place: b.Place | None) -> None:
        if place is not None:
            self._do(self.bundling.lost(*place))

    def _gather(self, action: b.Gather) -> None:
        value, members = 0, []
        for key, said in action.members:
            body = self._kept[key, action.fragment]
            assert body.data is not None
            value = joined(value, Parcel.read(body.data, said.body.nbytes).value, "two contributions of one bundle")
            counters, weight = (said.seq, said.after, said.steps, said.tokens), weight_of(said, self.world.params)
            members.append(Bundled(key.name, key.incarnation, *counters, body.norm, weight))
        self.world.later(self.relay, MERGE_S, partial(self._gathered, action, value, tuple(members)))

    def _gathered(self, action: b.Gather, value: int, members: tuple[Bundled, ...]) -> None:
        """A bundle is made: offer it."""
        if not self.bundling.awaits(action.number):
            self._do(self.bundling.failed(action.number))
            return
        name = bundle_name(self.relay.key, action.number)
        body: Body = self.box.add(name, Parcel(value, NBYTES).data(), chunks.CHUNK_BYTES)
        bundle = Bundle(
            fragment=action.fragment, number=action.number, method="avg", codec="fp32", members=members, body=body
        )
        self.relays.say_up(self.relay, bundle)

    # ---- time

    def turn(self) -> float | None:
        """Fetch what is missing, and bundle what is due. Returns when it wants to be asked again."""
        turn = self.inbox.turn(self.world.now)
        for peer, word in turn.to_send:
            assert isinstance(peer, MemberKey)
            self.relays.tell_below(self.relay, peer, word)
        for failed in turn.given_up:
            assert isinstance(failed.peer, MemberKey)
            self._lost(self._kept.place(failed.peer, failed.transfer))
        self._do(self.bundling.turn(self.world.now))
        due = (self.inbox.deadline(), self.bundling.deadline())
        return min((at for at in due if at is not None), default=None)


def bundle_name(key: MemberKey, number: int) -> str:
    """The name of a bundle's transfer."""
    return f"b/{key.incarnation:x}/{number}"


def number_of(transfer: str) -> int:
    """The number of the bundle of that name."""
    return int(transfer.rpartition("/")[2])
