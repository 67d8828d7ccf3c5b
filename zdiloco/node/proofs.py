"""What a syncer recognises its own words by, when members bring them back: a proof under each published state, and one
under each epoch.

Rule: members keep proofs and hand them in; only who has the syncer's secret key can make one, or check it (a keyed
hash, HMAC-SHA256). What is claimed of the syncer without its proof is not believed, and blamed on nobody: an honest
member may hold what was proved under a key that has been replaced.
"""

import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from zdiloco.core.messages import Heartbeat, Hello
from zdiloco.units import NO_EPOCH, Epoch, FragmentId, MemberKey, Merged, Stamp
from zdiloco.wire.bodies import encode_record
from zdiloco.wire.frames import Buffer

log = logging.getLogger(__name__)

PURPOSE = b"zdiloco proofs 1"
"""Makes the key of proofs another one than that of the sockets, from the same secret."""
MOST_TOLD = 1000
"""Members whose vain claims are logged, each once; then the one that was told of longest ago may be told of again."""


def same(brought: str, made: str) -> bool:
    """Whether the proof that somebody brings is the one that was made; takes as long where it is nearly."""
    return hmac.compare_digest(brought.encode(), made.encode())


class Proofs:
    """Those of one syncer, by its secret key (Z85)."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.blake2b(secret, digest_size=32, person=PURPOSE).digest()
        self._told: OrderedDict[MemberKey, None] = OrderedDict()

    def of_epoch(self, run_id: str, epoch: Epoch) -> str:
        """The proof that there was this epoch of this run; 64 hexadecimal digits."""
        return self._of("epoch", run_id, *epoch)

    def of_state(
        self, run_id: str, fragment: FragmentId, stamp: Stamp, grid: str, value: Buffer, map_: Iterable[Merged]
    ) -> str:  # fmt: skip
        """The proof that this was published: the whole value as bytes in `grid`, and the map in any order."""
        digests = hashlib.sha256(value).digest(), hashlib.sha256(encode_record(sorted(map_))).digest()
        return self._of("state", run_id, fragment, *stamp.epoch, stamp.version, grid, *digests)

    def _of(self, *what: str | int | bytes) -> str:
        return hmac.new(self._key, msgspec.msgpack.encode(what), hashlib.sha256).hexdigest()

    def believed(self, run_id: str, epoch: Epoch, key: MemberKey, message: Hello | Heartbeat) -> Hello | Heartbeat:
        """What of a member's words a syncer of `epoch` may believe: no epoch above its own without a proof, and then
        no states of one either."""
        proved = message.epoch <= epoch or same(message.proof, self.of_epoch(run_id, message.epoch))
        if proved and isinstance(message, Heartbeat):
            return message
        claimed = message.epoch if proved else NO_EPOCH
        if isinstance(message, Heartbeat):
            sound: Hello | Heartbeat = replace(message, epoch=claimed)
        elif proved and all(stamp.epoch <= max(claimed, epoch) for stamp in message.stamps):
            return message
        else:
            sound = replace(message, epoch=claimed, stamps=())
        if key not in self._told:
            self._told[key] = None
            why = f"it claims epoch {message.epoch.counter} of this run, and brings no proof of this syncer's key"
            log.warning("what %s claims is not believed why=%r", key.name, why)
            if len(self._told) > MOST_TOLD:
                self._told.popitem(last=False)
        return sound
