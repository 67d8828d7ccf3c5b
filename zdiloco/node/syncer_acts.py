"""Carries out what the syncer machine decides: each action by its method, on the network thread.

Rule: nothing here takes long. Values are the worker's, files the saver's; they are given jobs, and what comes of a job
is posted back as an event. The machine's order of actions is the worker's order of jobs.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

from zdiloco.core import machine as m
from zdiloco.core.bundles import bundle_id
from zdiloco.core.messages import Body, Bundle, Contribution, InitialOffer, LayoutOffer, Loan, Status, Update, Welcome
from zdiloco.core.progress import Refusal
from zdiloco.errors import PeerError, StoreError
from zdiloco.node.clock import Clock
from zdiloco.node.params import Settings
from zdiloco.node.proofs import Proofs
from zdiloco.node.publishing import Published
from zdiloco.node.roads import Roads
from zdiloco.node.shelf import Shelf
from zdiloco.node.sizes import wrong_size
from zdiloco.node.states import NAME as WHOLE
from zdiloco.node.states import WholeStates
from zdiloco.node.syncer_body import Payload, SyncerBody
from zdiloco.node.syncer_loans import SyncerLoans
from zdiloco.node.transfers import Transfers
from zdiloco.node.wake import Wake
from zdiloco.node.worker import Worker
from zdiloco.rundir.archive import Cut
from zdiloco.rundir.store import Store, successor_in
from zdiloco.tensor.layout import Layout
from zdiloco.units import MAX_FRAGMENTS, ContributionId, Epoch, MemberKey, Stamp
from zdiloco.wire.bodies import encode_map, encode_record
from zdiloco.wire.frames import Buffer
from zdiloco.wire.joined import Joined
from zdiloco.wire.pace import CAST_CHUNK, FIRST_CHUNK

log = logging.getLogger("zdiloco.node.syncer")

STATUS_IDLE_S = 30.0
MOST_ANSWERS = 64
"""Answers to status queries that are held at once."""
STATUS_FRESH_S = 0.2
"""One answer serves all queries for so long: a syncer has better things to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncerParts:
    """What the acts of a syncer work with; `feed` hands an event to the machine, `widen` hears of a new layout."""

    settings: Settings
    clock: Clock
    wake: Wake
    roads: Roads
    transfers: Transfers
    shelf: Shelf
    body: SyncerBody
    store: Store
    worker: Worker
    saver: Worker
    feed: Callable[[m.SyncerEvent], None]
    widen: Callable[[Layout], None]
    stop: Callable[[m.Stop], None]
    identity: Callable[[], tuple[str, Epoch]]
    status: Callable[[], dict[str, Any]]
    proofs: Proofs | None


class SyncerActs:
    """One method per action; `do` finds it."""

    def __init__(self, parts: SyncerParts) -> None:
        self._parts = parts
        self._payloads: dict[ContributionId, Payload] = {}
        self._fetching: dict[tuple[MemberKey, str], m.Fetchable] = {}
        self._fetched: dict[tuple[MemberKey, str], memoryview] = {}
        self._stamps: dict[int, Stamp] = {}
        self.states = WholeStates(parts, self._stamps, lambda published: self._offer(published, _body(published)))
        self._answers = 0
        self._answered: dict[MemberKey, str] = {}
        self._status = self._layout = b""
        self._status_until = float("-inf")
        self._donor: MemberKey | None = None
        self._early: list[m.Fetch] = []
        self._loans = SyncerLoans(parts, self._fetched)

    def do(self, action: m.SyncerAction) -> None:
        """Carry one action out."""
        self._ACTIONS[type(action)](self, action)

    def _later(self, event: m.SyncerEvent) -> None:
        """From a worker: have the network thread feed this event."""
        self._parts.wake.post(partial(self._parts.feed, event))

    # ---- words

    def _send(self, action: m.Send) -> None:
        message, proofs = action.message, self._parts.proofs
        if proofs and isinstance(message, Welcome):
            message = replace(message, proof=proofs.of_epoch(message.run_id, message.epoch))
        self._parts.roads.send(action.key, message)

    def _broadcast(self, action: m.Broadcast) -> None:
        self._parts.roads.cast(action.message)

    def _note(self, action: m.Note) -> None:
        log.log(getattr(logging, action.level.upper()), "%s why=%r", action.what, action.why)

    def _stop(self, action: m.Stop) -> None:
        self._parts.stop(action)

    # ---- fetching

    def _fetch(self, action: m.Fetch) -> None:
        key, message = action.key, action.message
        place = (key, message.body.transfer)
        if place in self._fetching:
            if self._fetching[place] != message:
                reason = f"the transfer {message.body.transfer!r} carries something else already"
                self._parts.feed(m.FetchLost(key=key, message=message, reason=reason))
            return
        if isinstance(message, LayoutOffer):
            self._donor, self._early = None, []
        elif isinstance(message, InitialOffer) and key != self._donor:
            if len(self._early) < MAX_FRAGMENTS:
                self._early.append(action)  # its length can be judged only when the layout is here
            return
        wrong = wrong_size(message, self._parts.body.layout)
        if wrong and isinstance(message, Contribution):
            log.info("contribution of %s is refused why=%r", key.name, wrong)
            self._parts.feed(m.Screened(id=_id_of(key, message), reason=Refusal.LAYOUT, norm=0.0))
        elif isinstance(message, Bundle) and (wrong := wrong or self._parts.body.wrong_method(message)):
            self._parts.feed(m.FetchLost(key=key, message=message, reason=wrong))
        elif wrong:
            self._parts.feed(m.Unusable(key=key, message=message, reason=wrong))
        else:
            self._fetching[place] = message
            last = isinstance(message, Loan)  # contributions go first
            self._parts.transfers.expect(key, message.body, self._parts.clock(), last=last)

    def arrived(self, key: MemberKey, transfer: str, now: float) -> None:
        """A body is complete."""
        message = self._fetching.pop((key, transfer))
        data = self._parts.transfers.inbox.take(key, transfer)
        if isinstance(message, Contribution | Bundle):
            method = message.method if isinstance(message, Bundle) else ""
            self._payloads[_id_of(key, message)] = Payload(data, transfer, method=method)
        else:
            self._fetched[key, transfer] = data
        self._parts.feed(m.Fetched(key=key, message=message))

    def lost(self, key: MemberKey, transfer: str, reason: str, now: float) -> None:
        """A body will not come."""
        message = self._fetching.pop((key, transfer), None)
        if message is not None:
            self._parts.feed(m.FetchLost(key=key, message=message, reason=reason))

    def _cancel_fetch(self, action: m.CancelFetch) -> None:
        key, message = action.key, action.message
        place = (key, message.body.transfer)
        if isinstance(message, Loan):
            self._loans.end(message)
        self._fetching.pop(place, None)
        self._fetched.pop(place, None)
        if isinstance(message, Contribution | Bundle):
            self._payloads.pop(_id_of(key, message), None)
        self._parts.transfers.release(*place, self._parts.clock())

    def _free(self, action: m.Free) -> None:
        """Let the bytes go when the worker is through with what it was given before."""
        payload = self._payloads.pop(action.id, None)
        if payload is not None:
            self._release_after(action.id.key, payload.transfer)

    def _release_after(self, key: MemberKey, transfer: str) -> None:
        job = partial(self._release, key, transfer)
        self._parts.worker.submit(partial(self._parts.wake.post, job))

    def _release(self, key: MemberKey, transfer: str) -> None:
        self._parts.transfers.release(key, transfer, self._parts.clock())

    # ---- beginnings

    def _take(
        self, action: m.TakeLayout | m.TakeInitial | m.TakeHandback, job: Callable[[memoryview], m.SyncerEvent]
    ) -> None:
        """Have the worker take a fetched body; a body that makes no sense becomes `Unusable`."""
        key, message = action.key, action.message
        data = self._fetched.pop((key, message.body.transfer))

        def work() -> None:
            try:
                event = job(data)
            except PeerError as error:
                event = m.Unusable(key=key, message=message, reason=str(error))
            self._later(event)

        self._parts.worker.submit(work)
        self._release_after(key, message.body.transfer)

    def _take_layout(self, action: m.TakeLayout) -> None:
        def job(data: memoryview) -> m.SyncerEvent:
            layout = self._parts.body.take_layout(action.message, data)
            self._parts.wake.post(partial(self._layout_is_here, action.key, layout))
            return m.LayoutTaken(key=action.key, digest=layout.digest, numels=layout.numels, shares=layout.shares)

        self._take(action, job)

    def _layout_is_here(self, key: MemberKey, layout: Layout) -> None:
        self._parts.widen(layout)
        self._donor, early, self._early = key, self._early, []
        for action in early:
            if action.key == key:
                self._fetch(action)

    def _take_initial(self, action: m.TakeInitial) -> None:
        def job(data: memoryview) -> m.SyncerEvent:
            self._parts.body.take_initial(action.message, data)
            return m.InitialTaken(key=action.key, fragment=action.message.fragment)

        self._take(action, job)

    def _take_handback(self, action: m.TakeHandback) -> None:
        def job(data: memoryview) -> m.SyncerEvent:
            map_ = self._parts.body.take_handback(action.message, data)
            message = action.message
            return m.HandbackTaken(key=action.key, fragment=message.fragment, stamp=message.stamp, map_=map_)

        self._take(action, job)

    def _restamp(self, action: m.Restamp) -> None:
        self._stamps.update(enumerate(action.stamps))
        self._parts.worker.submit(partial(self._parts.body.restamp, action.stamps, action.exact))
        if action.exact:
            self._parts.shelf.retire_all()  # the last values are another payload, Theta itself
            self.states.pulls.open()

    # ---- rounds

    def _screen(self, action: m.Screen) -> None:
        payload = self._payloads[action.id]

        def work() -> None:
            reason, norm, values = self._parts.body.screen(action.id.fragment, action.codec, payload)
            self._later(m.Screened(id=action.id, reason=reason, norm=norm, values=values))

        self._parts.worker.submit(work)

    def _merge(self, action: m.Merge) -> None:
        payloads = [self._payloads[part.id] for part in action.parts]

        def work() -> None:
            try:
                published = self._parts.body.merge(action, payloads)
            except PeerError as error:
                self._later(m.MergeFailed(fragment=action.fragment, reason=str(error)))
                return
            self._parts.wake.post(partial(self._merged, action, published, _body(published)))

        self._parts.worker.submit(work)

    def _merged(self, action: m.Merge, published: Published, body: Joined) -> None:
        self._stamps[published.fragment] = published.stamp
        self._parts.shelf.retire(("full", published.fragment))
        self.states.outdated(published.fragment)
        parts = zip(action.parts, published.trimmed, strict=True)
        trimmed = tuple((part.id, share) for part, share in parts if share)
        self._parts.feed(m.MergeDone(update=self._offer(published, body), trimmed=trimmed, plain=published.plain))

    def _offer(self, published: Published, body: Joined) -> Update:
        """Put an update's body on the shelf and describe it."""
        kind = WHOLE if published.full else "update"
        net = self._parts.settings.net
        held = self._parts.shelf.put(
            (kind, published.fragment),
            _update_name(kind, published.fragment, published.stamp),
            body,
            self._parts.clock(),
            chunk_bytes=min(net.chunk_bytes, FIRST_CHUNK if published.full else CAST_CHUNK),
            idle_s=net.give_up_s if published.full else 2 * net.stall_s,
        )
        return _update(published, held)

    def _publish(self, action: m.Publish) -> None:
        self._parts.roads.cast(action.update)
        self._parts.roads.cast_chunks(self._parts.transfers.outbox.broadcast(action.update.body.transfer))

    def _serve(self, action: m.Serve) -> None:
        self.states.pulled(action)

    # ---- disk and status

    def _save(self, action: m.Save) -> None:
        run_id, epoch = self._parts.identity()

        def work() -> None:
            cut = self._parts.body.cut(run_id, epoch, action)
            self._parts.saver.submit(partial(self._write, cut))

        self._parts.worker.submit(work)

    def _write(self, cut: Cut) -> None:
        event: m.SyncerEvent
        try:
            self._parts.store.write(cut)
            event = m.Saved(stamps=tuple(part.stamp for part in cut.fragments))
        except StoreError as error:
            event = m.SaveFailed(reason=str(error), successor=successor_in(error))
        self._later(event)

    def _serve_status(self, action: m.ServeStatus) -> None:
        """Answer a query; everybody who asks within `STATUS_FRESH_S` gets the same bytes, and has one payload."""
        key, now, shelf = action.key, self._parts.clock(), self._parts.shelf
        if now >= self._status_until:
            self._status, self._status_until = encode_map(self._parts.status()), now + STATUS_FRESH_S
            self._layout = b""
            self._answered = {peer: name for peer, name in self._answered.items() if shelf.body(name) is not None}
        if key in self._answered:
            shelf.drop(self._answered.pop(key))
        elif len(self._answered) >= MOST_ANSWERS:  # whoever was answered longest ago asks again
            shelf.drop(self._answered.pop(next(iter(self._answered))))
        self._answers += 1
        name, net = f"s/{self._answers}", self._parts.settings.net
        slot = ("status", key)
        if action.layout:
            layout = self._parts.body.layout
            self._layout = self._layout or encode_map(layout.to_obj() if layout else {})
        answer = self._layout if action.layout else self._status
        body = shelf.put(slot, name, answer, now, chunk_bytes=net.chunk_bytes, idle_s=STATUS_IDLE_S)
        shelf.retire(slot)
        self._answered[key] = name
        self._parts.roads.send(key, Status(body=body))

    _ACTIONS: ClassVar[dict[type, Callable[..., None]]] = {
        m.Send: _send,
        m.Broadcast: _broadcast,
        m.Note: _note,
        m.Stop: _stop,
        m.Fetch: _fetch,
        m.CancelFetch: _cancel_fetch,
        m.TakeLayout: _take_layout,
        m.TakeInitial: _take_initial,
        m.TakeHandback: _take_handback,
        m.Screen: _screen,
        m.Merge: _merge,
        m.Restamp: _restamp,
        m.Free: _free,
        m.Publish: _publish,
        m.Serve: _serve,
        m.ServeStatus: _serve_status,
        m.Save: _save,
        m.OfferLoan: lambda self, action: self._loans.offer(action),
    }


def _id_of(key: MemberKey, message: Contribution | Bundle) -> ContributionId:
    if isinstance(message, Bundle):
        return bundle_id(key, message)
    return ContributionId(key.name, key.incarnation, message.fragment, message.seq)


def _update_name(kind: str, fragment: int, stamp: Stamp) -> str:
    return f"{kind}/{fragment}/{stamp.epoch.counter}.{stamp.epoch.ident:x}/{stamp.version}"


def _update(published: Published, body: Body) -> Update:
    return Update(
        fragment=published.fragment,
        stamp=published.stamp,
        full=published.full,
        codec=published.codec,
        value_bytes=published.value.numel(),
        value_digest=published.digest,
        base=published.base,
        body=body,
        proof=published.proof,
    )


def _body(published: Published) -> Joined:
    """The value where it lies, since nobody writes to it, and the record behind it."""
    return Joined(cast(Buffer, published.value.numpy()), encode_record(published.record))
