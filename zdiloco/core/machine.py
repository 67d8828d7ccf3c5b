"""The contract between the machines and whatever body drives them: events in, actions out.

Rule: a machine decides and touches nothing. Its body feeds it one event at a time with a monotonic `now` in seconds,
and carries out the returned actions in their order. The same machines run behind real sockets and in virtual time.
Events are in the past tense, actions are verbs. Heavy actions answer later with an event of their own.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from zdiloco.core.learner_words import (
    Adopt as Adopt,
)
from zdiloco.core.learner_words import (
    Boundary as Boundary,
)
from zdiloco.core.learner_words import (
    ChunkArrived as ChunkArrived,
)
from zdiloco.core.learner_words import (
    ContributionLost as ContributionLost,
)
from zdiloco.core.learner_words import (
    Discard as Discard,
)
from zdiloco.core.learner_words import (
    Drop as Drop,
)
from zdiloco.core.learner_words import (
    Encoded as Encoded,
)
from zdiloco.core.learner_words import (
    Finish as Finish,
)
from zdiloco.core.learner_words import (
    Forget as Forget,
)
from zdiloco.core.learner_words import (
    Listen as Listen,
)
from zdiloco.core.learner_words import (
    Misfit as Misfit,
)
from zdiloco.core.learner_words import (
    Prepare as Prepare,
)
from zdiloco.core.learner_words import (
    Prepared as Prepared,
)
from zdiloco.core.learner_words import (
    Ready as Ready,
)
from zdiloco.core.learner_words import (
    Reborn as Reborn,
)
from zdiloco.core.learner_words import (
    Receive as Receive,
)
from zdiloco.core.learner_words import (
    Reincarnate as Reincarnate,
)
from zdiloco.core.learner_words import (
    SendHandback as SendHandback,
)
from zdiloco.core.learner_words import (
    SendInitial as SendInitial,
)
from zdiloco.core.learner_words import (
    SendLayout as SendLayout,
)
from zdiloco.core.learner_words import (
    Snapshot as Snapshot,
)
from zdiloco.core.learner_words import (
    Started as Started,
)
from zdiloco.core.learner_words import (
    StepDone as StepDone,
)
from zdiloco.core.learner_words import (
    UpdateLost as UpdateLost,
)
from zdiloco.core.learner_words import (
    UpdateReady as UpdateReady,
)
from zdiloco.core.loan_words import (
    CopyInner as CopyInner,
)
from zdiloco.core.loan_words import (
    DropLoan as DropLoan,
)
from zdiloco.core.loan_words import (
    EndLending as EndLending,
)
from zdiloco.core.loan_words import (
    InnerSeen as InnerSeen,
)
from zdiloco.core.loan_words import (
    LendFailed as LendFailed,
)
from zdiloco.core.loan_words import (
    LoanHere as LoanHere,
)
from zdiloco.core.loan_words import (
    LoanLost as LoanLost,
)
from zdiloco.core.loan_words import (
    LoanReady as LoanReady,
)
from zdiloco.core.loan_words import (
    LookInner as LookInner,
)
from zdiloco.core.loan_words import (
    OfferLoan as OfferLoan,
)
from zdiloco.core.loan_words import (
    ReceiveLoan as ReceiveLoan,
)
from zdiloco.core.loan_words import (
    TakeInner as TakeInner,
)
from zdiloco.core.messages import Message
from zdiloco.core.syncer_words import (
    Broadcast as Broadcast,
)
from zdiloco.core.syncer_words import (
    CancelFetch as CancelFetch,
)
from zdiloco.core.syncer_words import (
    Fetch as Fetch,
)
from zdiloco.core.syncer_words import (
    Fetchable as Fetchable,
)
from zdiloco.core.syncer_words import (
    Fetched as Fetched,
)
from zdiloco.core.syncer_words import (
    FetchLost as FetchLost,
)
from zdiloco.core.syncer_words import (
    Free as Free,
)
from zdiloco.core.syncer_words import (
    HandbackTaken as HandbackTaken,
)
from zdiloco.core.syncer_words import (
    InitialTaken as InitialTaken,
)
from zdiloco.core.syncer_words import (
    LayoutTaken as LayoutTaken,
)
from zdiloco.core.syncer_words import (
    Merge as Merge,
)
from zdiloco.core.syncer_words import (
    MergeDone as MergeDone,
)
from zdiloco.core.syncer_words import (
    MergeFailed as MergeFailed,
)
from zdiloco.core.syncer_words import (
    Part as Part,
)
from zdiloco.core.syncer_words import (
    Publish as Publish,
)
from zdiloco.core.syncer_words import (
    Restamp as Restamp,
)
from zdiloco.core.syncer_words import (
    Save as Save,
)
from zdiloco.core.syncer_words import (
    Saved as Saved,
)
from zdiloco.core.syncer_words import (
    SaveFailed as SaveFailed,
)
from zdiloco.core.syncer_words import (
    Screen as Screen,
)
from zdiloco.core.syncer_words import (
    Screened as Screened,
)
from zdiloco.core.syncer_words import (
    Serve as Serve,
)
from zdiloco.core.syncer_words import (
    ServeStatus as ServeStatus,
)
from zdiloco.core.syncer_words import (
    TakeHandback as TakeHandback,
)
from zdiloco.core.syncer_words import (
    TakeInitial as TakeInitial,
)
from zdiloco.core.syncer_words import (
    TakeLayout as TakeLayout,
)
from zdiloco.core.syncer_words import (
    Unusable as Unusable,
)
from zdiloco.units import MemberKey

EventT = TypeVar("EventT", contravariant=True)
ActionT = TypeVar("ActionT")

SYNCER = MemberKey("syncer", 0)
"""The peer that a learner talks to, under whatever epoch it answers."""


# ---- events that both machines know


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A message came from `key` on the control road (for a learner: from SYNCER, directly or by broadcast)."""

    key: MemberKey
    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class TimerDue:
    """The moment that `deadline()` named has come, or passed; early and repeated calls are harmless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaveRequested:
    """The process is to end in order: a signal, or the user's loop is done."""

    reason: str


# ---- actions of both


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """Send a message to one peer on the control road; it may be lost, the machines repair that."""

    key: MemberKey
    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something worth a line in log and trace: what happened, and why. `level`: debug, info, warning or error."""

    what: str
    why: str
    level: str = "info"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """End the process with this exit code and reason, after the actions before it.

    `word`: of `Unwelcomes`, where the syncer has turned this process away.
    """

    reason: str
    exit_code: int
    word: str = ""


SyncerEvent = (
    Received | TimerDue | LeaveRequested | Fetched | FetchLost | Screened | LayoutTaken | InitialTaken | HandbackTaken
    | Unusable | MergeDone | MergeFailed | Saved | SaveFailed
)  # fmt: skip
SyncerAction = (
    Send | Note | Stop | Broadcast | Fetch | CancelFetch | TakeLayout | TakeInitial | TakeHandback | Screen | Merge
    | Restamp | Free | Publish | Serve | ServeStatus | Save | OfferLoan
)  # fmt: skip
LearnerEvent = (
    Received | TimerDue | LeaveRequested | Started | StepDone | Boundary | Encoded | UpdateReady | UpdateLost | Prepared
    | Misfit | ContributionLost | Reborn | InnerSeen | LoanReady | LendFailed | LoanHere | LoanLost | ChunkArrived
)  # fmt: skip
LearnerAction = (
    Send | Note | Stop | Snapshot | Prepare | Adopt | Drop | Forget | Receive | Discard | SendLayout | SendInitial
    | SendHandback | Reincarnate | Ready | Finish | LookInner | CopyInner | EndLending | ReceiveLoan | TakeInner
    | DropLoan | Listen
)  # fmt: skip


class Machine(Protocol[EventT, ActionT]):
    """What every machine looks like from outside."""

    def handle(self, event: EventT, now: float) -> list[ActionT]:
        """Take one event at `now` (monotonic seconds, never falling) and say what to do, in order."""
        ...

    def deadline(self) -> float | None:
        """When to send `TimerDue` next, in the clock of `now`; None: only an event can change anything."""
        ...
