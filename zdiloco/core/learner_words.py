"""What happens to a learner machine, and what it asks of its body; `core.machine` hands these names on.

Rule: the model is touched only by `Snapshot`, `Adopt` and `Drop`, and these are only returned at a boundary.
"""

from dataclasses import dataclass

from zdiloco.core.messages import Body, Update
from zdiloco.units import FragmentId, Merged, Stamp

# ---- events of the learner's body


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The process is up and its sockets are open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDone:
    """An inner step over `tokens` tokens is done; this is a step boundary. `seconds`: how long the step took."""

    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundary:
    """A moment at which the model may be touched though no step was made: before the first, and while leaving."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """The snapshot of contribution `seq` lies encoded.

    `encode_s`: what that took; `link_bytes_s`: bytes per second that the link up takes, as far as is known (0: not).
    """

    fragment: FragmentId
    seq: int
    codec: str
    body: Body
    encode_s: float = 0.0
    link_bytes_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateReady:
    """The body of an update is here and its digest is right; `records` is its record."""

    update: Update
    records: tuple[Merged, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateLost:
    """The body of an update cannot be had any more."""

    update: Update


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkArrived:
    """Bytes have come that were not here before, of whatever body. Only wanted where the run is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The change of an update is worked out; it can be added at the next boundary. `serial`: that of its `Prepare`."""

    fragment: FragmentId
    serial: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Misfit:
    """What a `Prepare` (its `serial`) made of an update is not what was published, and `reason` says how that shows."""

    fragment: FragmentId
    serial: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ContributionLost:
    """The transfer of one of ours was broken off for good."""

    fragment: FragmentId
    seq: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reborn:
    """The process goes on under a new random incarnation."""

    incarnation: int


# ---- actions of the learner


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Now, at this boundary: copy the fragment's values; then, elsewhere, encode reference - values.

    Keep the encoded bytes under `seq` until `Forget`. Answered by `Encoded`. Only returned at a boundary. `codec`: to
    encode in; empty: as the settings say.
    """

    fragment: FragmentId
    seq: int
    why: str
    codec: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepare:
    """Work out, elsewhere, how the values change when this update is adopted. Answered by `Prepared` or `Misfit`.

    With u = values - R and û(s) = what the kept bytes of seq s decode to (as work, so with the sign of u):
    values <- Theta' + keep * (u - û(subtract) + Σ û(restore)); with `reset`: values <- Theta' bit for bit, and u is
    gone. A later Prepare of the fragment replaces this one; so does a `Drop`.
    """

    fragment: FragmentId
    stamp: Stamp
    subtract: int
    restore: tuple[int, ...]
    reset: bool
    serial: int
    keep: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopt:
    """Now, at this boundary: add the prepared change in place; R <- Theta'. Only returned at a boundary."""

    fragment: FragmentId
    stamp: Stamp


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """Now, at this boundary: values <- R. Only returned at a boundary."""

    fragment: FragmentId


@dataclass(frozen=True, kw_only=True, slots=True)
class Forget:
    """The encoded bytes of these contributions are needed no more; transfers of them end."""

    fragment: FragmentId
    seqs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Receive:
    """Assemble the body of this update; its chunks come by PUB (`broadcast`) or by credit. Answered by `UpdateReady` or
    `UpdateLost`."""

    update: Update
    broadcast: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Listen:
    """Listen to the broadcast of bodies from now on (`on`), or leave it, with all of it that has not come yet."""

    on: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Discard:
    """The body of this update is needed no more; its transfer ends, no event follows."""

    update: Update


@dataclass(frozen=True, kw_only=True, slots=True)
class SendLayout:
    """Offer the model's layout to the syncer, as its donor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SendInitial:
    """Offer the model's own values of this fragment to the syncer, as its donor. Values do not change meanwhile."""

    fragment: FragmentId


@dataclass(frozen=True, kw_only=True, slots=True)
class SendHandback:
    """Offer the adopted state of this fragment (R as it was published, and the map) to the syncer."""

    fragment: FragmentId
    stamp: Stamp
    map_: tuple[Merged, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reincarnate:
    """Take a new random incarnation and reset the inner optimizer. Answered by `Reborn`."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """Every fragment holds the published values; training may begin (or go on)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """Training is over: the user's loop sees `finished`. `finished` is False where the other side is gone for good."""

    reason: str
    finished: bool
