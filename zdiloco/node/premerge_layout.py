"""The layout of the run, as a relay that merges gets to know it: it asks the syncer, as anybody may.

Rule: it is asked for while learners contribute and it is unknown; a learner that has another one makes it forgotten.
"""

import logging
from collections.abc import Callable

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Status, StatusQuery
from zdiloco.errors import PeerError
from zdiloco.node.syncer_body import MAX_LAYOUT_BYTES
from zdiloco.tensor.layout import Fragment, Layout
from zdiloco.wire.assembly import Outcome
from zdiloco.wire.bodies import decode_map
from zdiloco.wire.inbox import Expected, Inbox
from zdiloco.wire.transfer import Chunk, Gone

log = logging.getLogger("zdiloco.node.relay")

ASK_AGAIN_S = 1.0


class LayoutOfRun:
    """The layout, once it is here. `say`: tells the syncer something."""

    def __init__(self, inbox: Inbox, say: Callable[[StatusQuery], None]) -> None:
        self._inbox, self._say = inbox, say
        self._layout: Layout | None = None
        self._asked_at = float("-inf")
        self._coming = ""

    def fragment(self, index: int, now: float) -> Fragment | None:
        """A fragment; None: there is no such one, or nothing is known yet, and it is asked for."""
        if self._layout is not None:
            return self._layout.fragments[index] if index < len(self._layout.fragments) else None
        if not self._coming and now >= self._asked_at + ASK_AGAIN_S:
            self._asked_at = now
            self._say(StatusQuery(layout=True))
        return None

    def said_to_be(self, digest: str) -> None:
        """A learner names the digest of its layout (empty: it has none): where it is another one, this is forgotten."""
        if self._layout is not None and digest not in ("", self._layout.digest):
            log.info("relay forgets the layout: a learner has another one")
            self._layout = None

    def told(self, message: object, now: float) -> bool:
        """The syncer offers it, or has it no more. False: it is about something else."""
        if isinstance(message, Gone) and message.transfer == self._coming:
            self._inbox.on_gone(SYNCER, message)
            self.lost()
            return True
        if not isinstance(message, Status):
            return False
        if not self._coming and self._layout is None and message.body.nbytes <= MAX_LAYOUT_BYTES:
            try:
                found = self._inbox.expect(SYNCER, message.body, now)
            except PeerError:
                return True
            self._coming = "" if found is Expected.FULL else message.body.transfer
        return True

    def on_chunk(self, chunk: Chunk, payload: memoryview, now: float) -> bool:
        """Take a chunk of it; False: it is of something else."""
        if not self._coming or chunk.transfer != self._coming:
            return False
        if self._inbox.on_chunk(SYNCER, chunk, payload, now) is Outcome.COMPLETE:
            data, self._coming = self._inbox.take(SYNCER, chunk.transfer), ""
            try:
                tree = decode_map(data, MAX_LAYOUT_BYTES)
                self._layout = Layout.from_obj(tree) if tree else None  # there is none before somebody has donated
            except PeerError as error:
                log.warning("relay cannot read the layout of the run why=%r", str(error))
            self._inbox.release(SYNCER, chunk.transfer)
        return True

    def lost(self) -> None:
        """It will not come: ask anew."""
        self._coming = ""
