"""Inner state that a learner lends or borrows: copied and loaded by the training thread, encoded and checked elsewhere.

Rule: what is here of a loan is kept by the network thread alone, under its number; the training thread takes it from
there at the boundary at which it is loaded.
"""

import logging
from functools import partial
from typing import TYPE_CHECKING, cast

from torch import Tensor

from zdiloco.core import machine as m
from zdiloco.core.messages import Loan
from zdiloco.errors import PeerError
from zdiloco.tensor.inner import CODECS, InnerState, InnerValues
from zdiloco.wire.frames import Buffer
from zdiloco.wire.pace import FIRST_CHUNK

if TYPE_CHECKING:
    from zdiloco.node.learner_acts import LearnerParts

log = logging.getLogger("zdiloco.node.learner")

Inner = m.LookInner | m.CopyInner | m.TakeInner
"""What is done with the inner optimizer's state, at a boundary."""
CODEC = "bf16"
"""How loans are encoded: half the bytes of fp32, and as good (docs/decisions/0009-borrowed-state.md)."""


class LearnerLoans:
    """Both sides of one learner's loans."""

    def __init__(self, parts: "LearnerParts") -> None:
        self._parts = parts
        self._own = False
        self._lent = ""
        self._coming: dict[str, Loan] = {}
        self._here: dict[int, InnerValues] = {}

    @property
    def _inner(self) -> InnerState:
        return self._parts.inner_state

    # ---- on the training thread, at a boundary

    def now_begin(self) -> None:
        """Before the first step: an inner state that is here already is this learner's own, wherever it came from."""
        self._own = self._inner.now_remembers()

    def now_do(self, action: Inner) -> m.InnerSeen | None:
        """Carry one of these actions out; what answers it at once is returned."""
        if isinstance(action, m.LookInner):
            return self.now_look()
        if isinstance(action, m.CopyInner):
            self.now_copy(action)
        else:
            self.now_take(action.loan)
        return None

    def now_look(self) -> m.InnerSeen:
        """What the inner optimizer is; one that has begun with a state of its own wants no other."""
        memory = None if self._own else self._inner.now_look()
        return m.InnerSeen(kind=memory.kind, fragments=self._inner.now_fragments()) if memory else m.InnerSeen(kind="")

    def now_copy(self, action: m.CopyInner) -> None:
        """Copy what is lent, and have it encoded; who asks for another kind is told so."""
        memory, lend = self._inner.now_look(), action.lend
        fits = memory is not None and memory.kind == lend.kind
        copied = self._inner.now_copy(lend.fragment) if fits else None
        if copied is None:
            reason = "not of every tensor something is remembered" if fits else "its inner optimizer is another one"
            failed = m.LendFailed(number=lend.number, reason=reason)
            self._parts.wake.post(partial(self._parts.feed, failed))
            return
        self._parts.worker.submit(partial(self._encode, action, copied))

    def now_take(self, loan: Loan) -> None:
        """The fragment's inner state becomes the lender's."""
        values = self._here.pop(loan.number, None)
        if values is not None:
            self._release(self._inner.now_load(values))

    def _release(self, values: InnerValues) -> None:
        self._parts.worker.submit(partial(self._inner.later_release, values))

    # ---- lending

    def _encode(self, action: m.CopyInner, copied: InnerValues) -> None:
        encoded = self._inner.later_encode(copied, CODEC)
        self._parts.wake.post(partial(self._offer, action, encoded))

    def _offer(self, action: m.CopyInner, encoded: Tensor) -> None:
        self.end_lending()
        lend, self._lent = action.lend, f"l/{action.lend.number}"
        data = memoryview(cast(Buffer, encoded.numpy()))
        chunk_bytes = min(self._parts.settings.net.chunk_bytes, FIRST_CHUNK)
        body = self._parts.transfers.outbox.add(self._lent, data, chunk_bytes)
        loan = Loan(
            fragment=lend.fragment, number=lend.number, kind=lend.kind, stamp=action.stamp, codec=CODEC, body=body
        )
        self._parts.feed(m.LoanReady(loan=loan))

    def end_lending(self) -> None:
        """What was lent last goes."""
        if self._lent:
            self._parts.transfers.outbox.drop(self._lent)
            self._parts.roads.drop_transfer(m.SYNCER, self._lent)
            self._lent = ""

    # ---- borrowing

    def receive(self, loan: Loan) -> None:
        """Fetch a loan, if its length is exactly what it must be; whatever else the syncer sends goes first."""
        if loan.codec not in CODECS or loan.body.nbytes != self._inner.nbytes(loan.fragment, loan.codec):
            self._lose(loan, f"{loan.body.nbytes} bytes in {loan.codec!r} are no inner state of this fragment")
            return
        self._coming[loan.body.transfer] = loan
        self._parts.transfers.expect(m.SYNCER, loan.body, self._parts.clock(), last=True)

    def arrived(self, transfer: str) -> bool:
        """A body is complete; False: it is no loan."""
        loan = self._coming.get(transfer)
        if loan is None:
            return False
        data = self._parts.transfers.inbox.take(m.SYNCER, transfer)
        self._parts.worker.submit(partial(self._decode, loan, data))
        return True

    def _decode(self, loan: Loan, data: memoryview) -> None:
        try:
            values = self._inner.later_decode(loan.fragment, loan.codec, data)
        except PeerError as error:
            self._parts.wake.post(partial(self._lose, loan, str(error)))
            return
        self._parts.wake.post(partial(self._decoded, loan, values))

    def _decoded(self, loan: Loan, values: InnerValues) -> None:
        if self._forget(loan):
            self._here[loan.number] = values
            self._parts.feed(m.LoanHere(number=loan.number))
        else:
            self._release(values)

    def lost(self, transfer: str, reason: str) -> None:
        """A body will not come."""
        loan = self._coming.get(transfer)
        if loan is not None:
            self._lose(loan, reason)

    def _lose(self, loan: Loan, reason: str) -> None:
        log.info("loan of fragment %d is lost why=%r", loan.fragment, reason)
        self._forget(loan)
        self._parts.feed(m.LoanLost(number=loan.number, reason=reason))

    def drop(self, loan: Loan) -> None:
        """It is not taken."""
        self._forget(loan)
        values = self._here.pop(loan.number, None)
        if values is not None:
            self._release(values)

    def _forget(self, loan: Loan) -> bool:
        """Its bytes as they came are needed no more; False: they have gone already."""
        known = self._coming.get(loan.body.transfer) == loan
        if known:
            del self._coming[loan.body.transfer]
            self._parts.transfers.release(m.SYNCER, loan.body.transfer, self._parts.clock())
        return known
