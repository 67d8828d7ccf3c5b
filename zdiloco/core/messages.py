"""What peers say to each other, as frozen values; nothing here knows how it crosses the wire.

Rule: a message holds what the protocol needs and is checked when it is made, so whoever receives one may trust its
bounds. Everything of a size that depends on the model or the fleet travels as a `Body` beside it.
"""

from dataclasses import dataclass

from zdiloco.core.body import Body as Body
from zdiloco.core.bounds import (
    MAX_COUNT,
    MAX_NAME,
    MAX_TEXT,
    check_epoch,
    check_numbers,
    check_range,
    check_stamps,
    check_text,
)
from zdiloco.core.bundle_messages import Bundle as Bundle
from zdiloco.core.bundle_messages import Bundled as Bundled
from zdiloco.core.bundle_messages import Unbundled as Unbundled
from zdiloco.core.loan_messages import Borrow as Borrow
from zdiloco.core.loan_messages import Lend as Lend
from zdiloco.core.loan_messages import Loan as Loan
from zdiloco.core.loan_messages import LoanOver as LoanOver
from zdiloco.knobs import NAME, shown
from zdiloco.units import MAX_FRAGMENTS, NO_EPOCH, Epoch, FragmentId, Stamp

# ---- learner to syncer, control road


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """A process introduces itself: at the start, after silence, and when a syncer says that it does not know it.

    `stamps` holds the adopted state of each fragment (empty: none yet); `epoch` is the highest one ever seen, so that
    an old syncer learns that it has been replaced. `proof`: what came with the welcome to that epoch. `run_id` is empty
    until the first welcome, `layout_digest` for a process that only watches, `run_name` (as in a run id) where any run
    will do, `region` where nobody said which.
    """

    name: str
    incarnation: int
    run_name: str = ""
    run_id: str = ""
    layout_digest: str = ""
    epoch: Epoch = NO_EPOCH
    stamps: tuple[Stamp, ...] = ()
    watching: bool = False
    region: str = ""
    proof: str = ""

    def __post_init__(self) -> None:
        if self.region and not NAME.fullmatch(self.region):
            raise ValueError(f"Hello.region is {shown(self.region)}; allowed is what may be a name, or nothing")
        if not 1 <= len(self.name) <= MAX_NAME:
            raise ValueError(f"Hello.name has {len(self.name)} characters; allowed is 1 to {MAX_NAME}")
        check_text(self, run_name=MAX_NAME, run_id=MAX_NAME, layout_digest=MAX_NAME, proof=MAX_NAME)
        check_range(self, incarnation=(1, 2**64 - 1))
        check_epoch(self, self.epoch)
        if len(self.stamps) > MAX_FRAGMENTS:
            raise ValueError(f"Hello.stamps has {len(self.stamps)} entries; allowed is {MAX_FRAGMENTS}")
        check_stamps(self, *self.stamps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Where a learner is, said at a step boundary: inner steps since its start and its token counts, share-weighted."""

    step: int
    trained_tokens: int
    unmerged_tokens: float
    dropped_tokens: float

    def __post_init__(self) -> None:
        every = (0, MAX_COUNT)
        check_range(self, step=every, trained_tokens=every, unmerged_tokens=every, dropped_tokens=every)


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """A learner lives, whatever its training thread does. `epoch` is the highest one it has seen; `listening`: it takes
    the bodies of updates from the broadcast, and does not pull them; `codec_why`: why it has changed its codec last;
    `proof`: what came with the welcome to that epoch."""

    epoch: Epoch
    listening: bool = True
    codec_why: str = ""
    proof: str = ""

    def __post_init__(self) -> None:
        check_epoch(self, self.epoch)
        check_text(self, codec_why=MAX_TEXT, proof=MAX_NAME)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contribution:
    """One learner's unmerged work on one fragment, as an outer gradient (design: seq, after, stamp).

    It starts where the contribution `after` of the same learner ended and may be merged only on top of exactly that.
    `version` is the round that it answers. `cut_step` is the learner's inner step at the snapshot.
    """

    fragment: FragmentId
    seq: int
    after: int
    stamp: Stamp
    steps: int
    tokens: int
    cut_step: int
    version: int
    codec: str
    body: Body

    def __post_init__(self) -> None:
        every = (0, MAX_COUNT)
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), seq=(1, MAX_COUNT), after=every, steps=every, tokens=every)
        check_range(self, cut_step=every, version=every)
        check_text(self, codec=MAX_NAME)
        check_stamps(self, self.stamp)


UPLINK_BUSY = "uplink busy"
"""How the reason of a decline begins where the link is what is short; a syncer that adapts counts these alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decline:
    """A learner cannot answer the call of this round now. `eta_s`: in how many seconds it may, as far as it knows."""

    fragment: FragmentId
    version: int
    reason: str
    eta_s: float

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), version=(0, MAX_COUNT), eta_s=(0, 1e9))
        check_text(self, reason=MAX_TEXT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pull:
    """Ask for the newest state of a fragment, with the whole map."""

    fragment: FragmentId

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """At the end of a run: since the last receipt bytes have come, of whatever body; the link is busy, not dead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutOffer:
    """The layout of the model, offered by the donor of the initial values."""

    digest: str
    body: Body

    def __post_init__(self) -> None:
        check_text(self, digest=MAX_NAME)


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialOffer:
    """The donor's initial values of one fragment, fp32."""

    fragment: FragmentId
    body: Body

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Handback:
    """A learner returns the published state that it has adopted (value and map) to a syncer that starts again.

    `proof`: what came with that state.
    """

    fragment: FragmentId
    stamp: Stamp
    codec: str
    value_bytes: int
    body: Body
    proof: str = ""

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), value_bytes=(0, MAX_COUNT))
        check_text(self, codec=MAX_NAME, proof=MAX_NAME)
        check_stamps(self, self.stamp)


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodbye:
    """A learner leaves in order. `left_tokens`: its unmerged work, share-weighted, which nobody will merge."""

    reason: str
    trained_tokens: int
    left_tokens: float
    dropped_tokens: float

    def __post_init__(self) -> None:
        every = (0, MAX_COUNT)
        check_text(self, reason=MAX_TEXT)
        check_range(self, trained_tokens=every, left_tokens=every, dropped_tokens=every)


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusQuery:
    """Anybody asks how the run is, or (`layout`) for its layout; answered by a `Status`, also to strangers. `relay`: a
    relay on the way answers for itself, and passes nothing on."""

    layout: bool = False
    relay: bool = False


# ---- syncer to learner, control road


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """The syncer takes a process as member number `order` of this epoch, and says what state it publishes.

    `proof`: by which a syncer of the same key knows that there was this epoch; empty where there are no keys.
    """

    epoch: Epoch
    run_id: str
    order: int
    versions: tuple[int, ...]
    progress: float
    proof: str = ""

    def __post_init__(self) -> None:
        check_epoch(self, self.epoch)
        check_text(self, run_id=MAX_NAME, proof=MAX_NAME)
        check_range(self, order=(0, MAX_COUNT), progress=(0.0, 1e9))
        check_numbers(self, "versions", self.versions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unwelcome:
    """The syncer does not take a process. `reason` is a word of `core.tables.Unwelcomes`; `text` says what to do."""

    reason: str
    text: str
    fatal: bool

    def __post_init__(self) -> None:
        check_text(self, reason=MAX_NAME, text=MAX_TEXT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Donate:
    """The syncer has no values yet: send the layout, and then the initial values of every fragment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HandbackRequest:
    """The syncer starts again and wants the state of this fragment that the learner has adopted."""

    fragment: FragmentId

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """Which of a learner's contributions to a fragment is held for the next close, and which is merged (0: none).

    `remark`: a word of `core.tables.Remark` where the merged one did not enter the merge whole; `text` says why.
    """

    fragment: FragmentId
    held: int
    merged: int
    remark: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), held=(0, MAX_COUNT), merged=(0, MAX_COUNT))
        check_text(self, remark=MAX_NAME, text=MAX_TEXT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A contribution will not be merged. `reason` is a word of `core.tables.Refusal`."""

    fragment: FragmentId
    seq: int
    reason: str
    text: str

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), seq=(0, MAX_COUNT))
        check_text(self, reason=MAX_NAME, text=MAX_TEXT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A round of a fragment opens; it will make `version` of it."""

    epoch: Epoch
    fragment: FragmentId
    version: int

    def __post_init__(self) -> None:
        check_epoch(self, self.epoch)
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), version=(1, MAX_COUNT))


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """The published value of a fragment. Its body is the value (`value_bytes`, in `codec`), then the record.

    The record names what was merged from whom in this one version; when `full`, the sums of everybody, so that it may
    be adopted on top of any older state. `base`: the state to which the value is a delta (None: it is the whole value,
    as it always is when `full`). `value_digest` is that of the whole value, and nothing else may be adopted. `proof`:
    by which a syncer of the same key knows value and map again; empty where there are no keys.
    """

    fragment: FragmentId
    stamp: Stamp
    full: bool
    codec: str
    value_bytes: int
    body: Body
    value_digest: int = 0
    base: Stamp | None = None
    proof: str = ""

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), value_bytes=(0, MAX_COUNT), value_digest=(0, 2**64 - 1))
        check_text(self, codec=MAX_NAME, proof=MAX_NAME)
        check_stamps(self, self.stamp, *([self.base] if self.base else []))
        if self.base and (self.full or self.base >= self.stamp):
            raise ValueError(f"Update.base is {self.base}: allowed is a state before {self.stamp}, and none when full")


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """The syncer lives. Repeats what may have been missed: open rounds as (fragment, version), versions, stable ones.

    `progress` is merged ÷ target tokens of the run (0 where there is no target); it never falls.
    """

    epoch: Epoch
    open_rounds: tuple[tuple[int, int], ...]
    versions: tuple[int, ...]
    stable: tuple[int, ...]
    progress: float

    def __post_init__(self) -> None:
        check_epoch(self, self.epoch)
        check_range(self, progress=(0.0, 1e9))
        check_numbers(self, "open_rounds", [fragment for fragment, _ in self.open_rounds], least=0)
        check_numbers(self, "open_rounds", [version for _, version in self.open_rounds], least=1)
        check_numbers(self, "versions", self.versions)
        check_numbers(self, "stable", self.stable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Farewell:
    """The run is over, or the syncer stops: learners stop with this reason. `finished`: the target was reached.

    `versions` are the last ones of each fragment, for who only watches and wants to hold them at the end.
    """

    epoch: Epoch
    finished: bool
    reason: str
    versions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_epoch(self, self.epoch)
        check_numbers(self, "versions", self.versions)
        check_text(self, reason=MAX_TEXT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """The answer to a `StatusQuery`; its body is a map: what `zdiloco status --json` prints, or the run's layout."""

    body: Body


Message = (
    Hello | Report | Heartbeat | Contribution | Decline | Pull | LayoutOffer | InitialOffer | Handback | Goodbye
    | StatusQuery | Welcome | Unwelcome | Donate | HandbackRequest | Ack | Refused | Call | Update | Beat | Farewell
    | Status | Borrow | Lend | Loan | LoanOver | Receipt | Bundle | Unbundled
)  # fmt: skip
"""Everything that one machine says to another."""
