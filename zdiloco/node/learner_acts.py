"""Carries out what the learner machine decides on the network thread: words, transfers, and jobs for the worker.

Rule: actions come in the machine's order, through one queue, whichever thread the machine was asked on. What a job ends
in is posted back as an event.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, cast

from torch import Tensor

from zdiloco.core import machine as m
from zdiloco.core.bounds import MAX_TEXT
from zdiloco.core.messages import (
    Body,
    Handback,
    Heartbeat,
    Hello,
    InitialOffer,
    LayoutOffer,
    Unwelcome,
    Update,
    Welcome,
)
from zdiloco.errors import ConfigError, LinkError, MachineError, PeerError, ZdilocoError
from zdiloco.node.clock import Clock
from zdiloco.node.dialler import Dialler
from zdiloco.node.incoming import IncomingUpdate
from zdiloco.node.learner_body import LearnerBody
from zdiloco.node.learner_loans import LearnerLoans
from zdiloco.node.params import Settings
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Road
from zdiloco.node.transfers import Transfers
from zdiloco.node.wake import Wake
from zdiloco.node.worker import Worker
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.delta import CODECS, GRIDS
from zdiloco.tensor.device import Copied
from zdiloco.tensor.inner import InnerState
from zdiloco.units import NO_EPOCH, MemberKey
from zdiloco.wire.bodies import encode_map, join_update, split_update
from zdiloco.wire.frames import Buffer
from zdiloco.wire.meter import LinkMeter
from zdiloco.wire.pace import LEAST_CHUNK, chunk_for
from zdiloco.wire.transfer import Credit, Gone
from zdiloco.wire.vain import Vain

log = logging.getLogger("zdiloco.node.learner")

MAX_RECORD_BYTES = 2**23


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerParts:
    """What the acts of the learner `name` work with; `feed` hands an event to the machine, from the network thread."""

    name: str
    settings: Settings
    clock: Clock
    wake: Wake
    roads: Roads
    transfers: Transfers
    body: LearnerBody
    inner_state: InnerState
    worker: Worker
    dialler: Dialler
    feed: Callable[[m.LearnerEvent], None]
    stop: Callable[[m.Stop], None]


class LearnerActs:
    """One method per action that is not the training thread's; `do` finds it."""

    def __init__(self, parts: LearnerParts) -> None:
        self._parts = parts
        self._receiving: dict[str, Update] = {}
        self._once: dict[str, Body] = {}
        self._offers = 0
        self._meter = LinkMeter()
        self._gave_up = self._refused = False
        self._epoch, self._proved = NO_EPOCH, (NO_EPOCH, "")
        self._vain = Vain(parts.transfers.inbox, parts.settings.net.give_up_s)
        self.loans = LearnerLoans(parts)

    def do(self, action: m.LearnerAction) -> None:
        """Carry one action out, on the network thread."""
        self._ACTIONS[type(action)](self, action)

    def turn(self, now: float) -> None:
        """Inputs are drained: see to the transfers, and dial a road anew that is half open; end where nobody lets us
        in."""
        if not self._refused and (why := self._parts.dialler.why_refused()):
            self._refused = True
            self._parts.feed(m.Received(key=m.SYNCER, message=Unwelcome(reason="key", text=why[:MAX_TEXT], fatal=True)))
        transfers = self._parts.transfers
        if self._parts.dialler.renewed():
            log.info("%s dials anew why='the syncer has another key'", self._parts.name)
            self._parts.dialler.dial_again()
            transfers.inbox.resume(m.SYNCER, now)
        transfers.turn(now)
        road = self._vain.judge(m.SYNCER, self._parts.roads.of(m.SYNCER).frames_down, now)
        if road not in self._parts.roads.sockets:  # none is dead, or the one that the machine has left
            return
        why = "what is asked for on it does not come, though the syncer is heard"
        log.warning("%s dials the %s road anew why=%r", self._parts.name, road, why)
        if road == Road.BULK_CAST:
            self._parts.dialler.listen(True)
        else:
            self._parts.dialler.dial_bulk()
            transfers.inbox.resume(m.SYNCER, now)

    def _send(self, action: m.Send) -> None:
        message = action.message
        if isinstance(message, Hello | Heartbeat) and message.epoch == self._proved[0]:
            message = replace(message, proof=self._proved[1])
        self._parts.roads.send(action.key, message)

    def welcomed(self, key: MemberKey, message: Welcome, now: float) -> None:
        """A silence is over, and what was on its way may be lost; keep the proof of the highest epoch so far."""
        self._parts.transfers.inbox.resume(m.SYNCER, now)
        if message.epoch != self._epoch:
            self._epoch = message.epoch
            self._parts.transfers.outbox.forget_peer(key)  # another syncer: it has nothing of what the former was sent
        if message.epoch >= self._proved[0]:
            self._proved = message.epoch, message.proof

    def _note(self, action: m.Note) -> None:
        log.log(getattr(logging, action.level.upper()), "%s: %s why=%r", self._parts.name, action.what, action.why)

    def _stop(self, action: m.Stop) -> None:
        self._parts.stop(action)

    def _listen(self, action: m.Listen) -> None:
        self._parts.dialler.listen(action.on)
        self._parts.transfers.forget_early()
        self._parts.transfers.inbox.forgive(m.SYNCER)  # what was not heard before says nothing of this road

    def _forget(self, action: m.Forget) -> None:
        for seq in action.seqs:
            name = contribution_name(action.fragment, seq)
            self._parts.transfers.outbox.drop(name)
            self._parts.roads.drop_transfer(m.SYNCER, name)
            self._meter.forget(name)

    # ---- updates

    def _receive(self, action: m.Receive) -> None:
        update = action.update
        wrong = self._wrong_size(update)
        if wrong:
            log.warning("update of fragment %d is passed over why=%r", update.fragment, wrong)
            self._parts.feed(m.UpdateLost(update=update))
            return
        self._receiving[update.body.transfer] = update
        gentle = not (action.broadcast or update.full)
        now = self._parts.clock()
        self._parts.transfers.expect(m.SYNCER, update.body, now, passive=action.broadcast, gentle=gentle)

    def _wrong_size(self, update: Update) -> str:
        """Say why the announced length cannot be right, before a byte of it is allocated; empty: it can."""
        kind, allowed = ("delta", CODECS) if update.base else ("value", GRIDS)
        if update.codec not in allowed:
            return f"no {kind} comes in a codec called {update.codec!r}"
        wanted = get_codec(update.codec).encoded_bytes(self._parts.body.layout.numels[update.fragment])
        fits = update.value_bytes == wanted and wanted <= update.body.nbytes <= wanted + MAX_RECORD_BYTES
        return "" if fits else f"{update.body.nbytes} bytes, where {wanted} and a record are right"

    def arrived(self, key: MemberKey, transfer: str, now: float) -> None:
        """A body is complete."""
        if self.loans.arrived(transfer):
            return
        update = self._receiving.pop(transfer, None)
        if update is None:
            self._parts.transfers.release(key, transfer, now)
            return
        data = self._parts.transfers.inbox.take(key, transfer)
        try:
            value, records = split_update(data, update.value_bytes, MAX_RECORD_BYTES)
        except PeerError as error:
            log.warning("update of fragment %d is passed over why=%r", update.fragment, str(error))
            self._parts.transfers.release(key, transfer, now)
            self._parts.feed(m.UpdateLost(update=update))
            return
        here = self._parts.body.fragments[update.fragment].incoming
        incoming = IncomingUpdate(transfer, update.codec, value, update.value_digest, update.base, update.proof)
        here.setdefault(update.stamp, incoming)
        self._parts.feed(m.UpdateReady(update=update, records=records))

    def lost(self, key: MemberKey, transfer: str, reason: str, now: float) -> None:
        """A body will not come."""
        self.loans.lost(transfer, reason)
        update = self._receiving.pop(transfer, None)
        if update is not None:
            log.info("update of fragment %d is lost why=%r", update.fragment, reason)
            self._parts.feed(m.UpdateLost(update=update))

    def _discard(self, action: m.Discard) -> None:
        update = action.update
        self._receiving.pop(update.body.transfer, None)
        here = self._parts.body.fragments[update.fragment].incoming
        held = here.get(update.stamp)
        if held is not None and held.transfer == update.body.transfer:
            del here[update.stamp]
        self.release(update.body.transfer)

    def release(self, transfer: str) -> None:
        """The bytes of a body are needed no more."""
        self._parts.transfers.release(m.SYNCER, transfer, self._parts.clock())

    # ---- jobs for the worker: given under the machine's lock, so that they hold the R of that very moment

    def give_snapshot(self, action: m.Snapshot, copied: Copied, reference: Tensor) -> None:
        """Have a snapshot encoded and offered."""

        def work() -> None:
            body, began = self._parts.body, self._parts.clock()
            encoded = body.later_encode(action.fragment, action.seq, copied, reference, action.codec)
            seconds = self._parts.clock() - began
            codec = body.codec_of(action.fragment, action.codec)
            self._parts.wake.post(partial(self._offer, action, codec, _view(encoded), seconds))

        self._parts.worker.submit(work)

    def _offer(self, action: m.Snapshot, codec: str, payload: memoryview, encode_s: float) -> None:
        name = contribution_name(action.fragment, action.seq)
        body = self._parts.transfers.outbox.add(name, payload, self._chunk_bytes)
        self._meter.offered(name, body.nbytes, self._parts.clock())
        encoded = m.Encoded(
            fragment=action.fragment, seq=action.seq, codec=codec, body=body, encode_s=encode_s,
            link_bytes_s=self._meter.bytes_s,
        )  # fmt: skip
        self._parts.feed(encoded)

    def give_prepare(self, action: m.Prepare) -> None:
        """Have the change of an update worked out."""
        values = self._parts.body.fragments[action.fragment]
        incoming, reference = values.incoming[action.stamp], values.reference

        def work() -> None:
            wrong = self._parts.body.later_prepare(action, incoming, reference)
            self._parts.wake.post(partial(self.release, incoming.transfer))
            event: m.LearnerEvent = m.Prepared(fragment=action.fragment, serial=action.serial)
            if wrong:
                event = m.Misfit(fragment=action.fragment, serial=action.serial, reason=wrong)
            self._parts.wake.post(partial(self._parts.feed, event))

        self._parts.worker.submit(work)

    def give_forget(self, action: m.Forget) -> None:
        """Have kept bytes let go, after every job that needs them."""
        self._parts.worker.submit(partial(self._parts.body.later_forget, action.fragment, action.seqs))

    def give_initial(self, action: m.SendInitial) -> None:
        """Have the model's own values encoded and offered."""

        def work() -> None:
            data = _view(self._parts.body.later_values(action.fragment))
            self._parts.wake.post(partial(self._offer_initial, action.fragment, data))

        self._parts.worker.submit(work)

    def _offer_initial(self, fragment: int, data: memoryview) -> None:
        self._parts.roads.send(m.SYNCER, InitialOffer(fragment=fragment, body=self._put("initial", data)))

    def give_handback(self, action: m.SendHandback) -> None:
        """Have the adopted state, as it was published, offered with its map."""
        values = self._parts.body.fragments[action.fragment]
        reference, codec, proof = values.reference, values.codec, values.proof
        if reference is None:
            return

        def work() -> None:
            value = self._parts.body.later_reference(codec, reference)
            data = memoryview(join_update(_view(value), action.map_))
            what = partial(Handback, stamp=action.stamp, codec=codec, value_bytes=value.numel(), proof=proof)
            self._parts.wake.post(partial(self._offer_handback, partial(what, fragment=action.fragment), data))

        self._parts.worker.submit(work)

    def _offer_handback(self, what: Callable[..., Handback], data: memoryview) -> None:
        self._parts.roads.send(m.SYNCER, what(body=self._put("handback", data)))

    # ---- what is offered once

    def _send_layout(self, action: m.SendLayout) -> None:
        layout = self._parts.body.layout
        body = self._put("layout", memoryview(encode_map(layout.to_obj())))
        self._parts.roads.send(m.SYNCER, LayoutOffer(digest=layout.digest, body=body))

    def _put(self, kind: str, data: memoryview) -> Body:
        """Offer bytes under a name of their own, until they have been fetched or `withdraw` is called."""
        self._offers += 1
        body = self._parts.transfers.outbox.add(f"{kind}/{self._offers}", data, self._chunk_bytes)
        self._once[body.transfer] = body
        return body

    def credited(self, key: MemberKey, credit: Credit, now: float) -> None:
        """The syncer gives credit: the link is measured; what it has whole, and wants once, goes."""
        self._meter.credited(credit, now)
        self._vain.credited(credit)
        self._gave_up &= not credit.received
        body = self._once.get(credit.transfer)
        if body is not None and credit.received >= body.nbytes:
            self._parts.transfers.outbox.drop(credit.transfer)
            del self._once[credit.transfer]

    def refused(self, key: MemberKey, gone: Gone, now: float) -> None:
        """The syncer has given a transfer up."""
        self._gave_up = True

    @property
    def _chunk_bytes(self) -> int:
        """Bytes of a chunk of what is offered now: the least where the syncer gave up, until something gets through."""
        most = self._parts.settings.net.chunk_bytes
        return min(most, LEAST_CHUNK) if self._gave_up else chunk_for(self._meter.bytes_s, most)

    def withdraw(self) -> None:
        """Nothing that was offered once is wanted any more."""
        for name in self._once:
            self._parts.transfers.outbox.drop(name)
        self._once.clear()

    _ACTIONS: ClassVar[dict[type, Callable[..., None]]] = {
        m.Send: _send,
        m.Note: _note,
        m.Stop: _stop,
        m.Forget: _forget,
        m.Listen: _listen,
        m.Receive: _receive,
        m.Discard: _discard,
        m.SendLayout: _send_layout,
        m.EndLending: lambda self, action: self.loans.end_lending(),
        m.ReceiveLoan: lambda self, action: self.loans.receive(action.loan),
        m.DropLoan: lambda self, action: self.loans.drop(action.loan),
    }


def error_of(stop: m.Stop | None, difference: Callable[[], str] = str) -> ZdilocoError | None:
    """What to raise for a stop with an exit code above 0. `difference` is asked where the model is not the run's."""
    if stop is None or not stop.exit_code:
        return None
    kinds: dict[int, type[ZdilocoError]] = {2: ConfigError, 3: LinkError}
    return kinds.get(stop.exit_code, MachineError)(stop.reason + (difference() if stop.word == "layout" else ""))


def contribution_name(fragment: int, seq: int) -> str:
    """The name of a contribution's transfer."""
    return f"c/{fragment}/{seq}"


def _view(encoded: Tensor) -> memoryview:
    return memoryview(cast(Buffer, encoded.numpy()))
