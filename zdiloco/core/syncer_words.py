"""What happens to a syncer machine, and what it asks of its body; `core.machine` hands these names on.

Rule: events are in the past tense, actions are verbs; a heavy action says which event answers it.
"""

from dataclasses import dataclass

from zdiloco.core.messages import Bundle, Contribution, Handback, InitialOffer, LayoutOffer, Loan, Message, Update
from zdiloco.units import ContributionId, Epoch, FragmentId, MemberKey, Merged, Stamp

Fetchable = Contribution | LayoutOffer | InitialOffer | Handback | Loan | Bundle
"""Messages of a learner, or of a relay, whose body the syncer fetches."""


# ---- events of the syncer's body


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """The whole body of `message` of `key` is here and its digest is right."""

    key: MemberKey
    message: Fetchable


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchLost:
    """The transfer of this body was given up; its bytes are freed."""

    key: MemberKey
    message: Fetchable
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """A fetched contribution or bundle was looked at. `reason` is empty, or a word of `Refusal` and it must go.

    `norm`: of its decoded values, or of what the bundle stands for; `values`: of its fragment, as this syncer took it
    in; 0: not known.
    """

    id: ContributionId
    reason: str
    norm: float
    values: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutTaken:
    """The donor's layout is sound. Per fragment its number of values, and its share of the parameters (sum 1)."""

    key: MemberKey
    digest: str
    numels: tuple[int, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialTaken:
    """The donor's values of this fragment are in Theta."""

    key: MemberKey
    fragment: FragmentId


@dataclass(frozen=True, kw_only=True, slots=True)
class HandbackTaken:
    """A state handed back is in Theta; `map_` is what it holds of whom, in sums."""

    key: MemberKey
    fragment: FragmentId
    stamp: Stamp
    map_: tuple[Merged, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unusable:
    """A fetched body made no sense (`reason` says why); nothing of it was kept."""

    key: MemberKey
    message: Fetchable
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeDone:
    """The outer step of a `Merge` is made; the published value lies encoded, described by `update`.

    `trimmed`: what of whom a robust merge has left out, as a share of its values; `plain`: why it was not robust though
    it was to be.
    """

    update: Update
    trimmed: tuple[tuple[ContributionId, float], ...] = ()
    plain: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeFailed:
    """The result of a `Merge` would not have been finite: nothing has changed, neither value nor momentum nor map."""

    fragment: FragmentId
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint is durable. `stamps`: the state of each fragment in it."""

    stamps: tuple[Stamp, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveFailed:
    """A checkpoint could not be written (`reason` says why); the older one is untouched.

    `successor`: the epoch of another syncer that has written into the same folder.
    """

    reason: str
    successor: Epoch | None = None


# ---- actions of the syncer


@dataclass(frozen=True, kw_only=True, slots=True)
class Broadcast:
    """Send a message to everybody who listens (PUB, control road); a hint that may be lost."""

    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch:
    """Grant credit for the body of this message. Answered by `Fetched` or `FetchLost`."""

    key: MemberKey
    message: Fetchable


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelFetch:
    """Break the transfer of this body off and free its bytes; no event follows."""

    key: MemberKey
    message: Fetchable


@dataclass(frozen=True, kw_only=True, slots=True)
class TakeLayout:
    """Check the fetched layout and keep it. Answered by `LayoutTaken` or `Unusable`."""

    key: MemberKey
    message: LayoutOffer


@dataclass(frozen=True, kw_only=True, slots=True)
class TakeInitial:
    """Put the fetched initial values into Theta. Answered by `InitialTaken` or `Unusable`."""

    key: MemberKey
    message: InitialOffer


@dataclass(frozen=True, kw_only=True, slots=True)
class TakeHandback:
    """Put a fetched state into Theta (residual 0, momentum as on disk). Answered by `HandbackTaken` or `Unusable`."""

    key: MemberKey
    message: Handback


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """Look at a fetched contribution or bundle. Answered by `Screened`."""

    id: ContributionId
    codec: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One contribution's place in a merge, or a bundle's: its bytes' handle, their codec, its weight; `clip` scales its
    values."""

    id: ContributionId
    codec: str
    weight: float
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Merge:
    """Merge these contributions in this order, take the outer step, encode the result. Answered by `MergeDone` or
    `MergeFailed`.

    `merged` is the record of this version; the body adds it to the map that it saves and serves with the value.
    """

    fragment: FragmentId
    stamp: Stamp
    parts: tuple[Part, ...]
    merged: tuple[Merged, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Restamp:
    """Publish every fragment's value under these stamps (a new epoch); maps and values stay as they are.

    `exact`: what is published is Theta itself, in fp32, whatever was published before.
    """

    stamps: tuple[Stamp, ...]
    exact: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Free:
    """The bytes of this contribution or bundle are needed no more."""

    id: ContributionId


@dataclass(frozen=True, kw_only=True, slots=True)
class Publish:
    """Broadcast an update: the message on the control road, its body on the bulk road."""

    update: Update


@dataclass(frozen=True, kw_only=True, slots=True)
class Serve:
    """Offer the newest published state of a fragment, with the whole map, to one peer, in its turn; `trains`: it does,
    and does not only join or watch."""

    key: MemberKey
    fragment: FragmentId
    trains: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeStatus:
    """Answer a status query of this peer; `layout`: with the run's layout."""

    key: MemberKey
    layout: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """Write a checkpoint in the background. Answered by `Saved` or `SaveFailed`; one at a time.

    `replaced`: incarnations that newer ones of their names have replaced, so that none of them comes back. `live`: who
    takes part, so that a successor knows whom it may expect.
    """

    why: str
    replaced: tuple[MemberKey, ...] = ()
    live: tuple[MemberKey, ...] = ()
