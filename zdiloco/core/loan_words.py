"""What happens about loans at a learner and a syncer, and what they ask of their bodies; `core.machine` hands these on.

Rule: inner state is touched only at a boundary (`LookInner`, `CopyInner`, `TakeInner`); everything else is done
elsewhere, and answered by an event.
"""

from dataclasses import dataclass

from zdiloco.core.loan_messages import Lend, Loan
from zdiloco.units import FragmentId, MemberKey, Stamp

# ---- events of a learner's body


@dataclass(frozen=True, kw_only=True, slots=True)
class InnerSeen:
    """What the inner optimizer is, and which fragments it has state of; `kind` is empty where it wants no peer's."""

    kind: str
    fragments: tuple[FragmentId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LoanReady:
    """What was to be lent lies encoded, on offer as `loan` says."""

    loan: Loan


@dataclass(frozen=True, kw_only=True, slots=True)
class LendFailed:
    """Loan `number` cannot be made; `reason` says why."""

    number: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoanHere:
    """The bytes of a borrowed state are here and make sense: it can be taken at a boundary."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LoanLost:
    """A borrowed state did not come, or made no sense (`reason` says why); nothing of it was kept."""

    number: int
    reason: str


# ---- actions of a learner


@dataclass(frozen=True, kw_only=True, slots=True)
class LookInner:
    """Now, at this boundary: see what the inner optimizer is. Answered by `InnerSeen`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyInner:
    """Now, at this boundary: copy the inner state of this fragment; then, elsewhere, encode and offer it.

    `stamp`: what the fragment has adopted. Replaces what was lent before. Answered by `LoanReady` or `LendFailed`.
    """

    lend: Lend
    stamp: Stamp


@dataclass(frozen=True, kw_only=True, slots=True)
class EndLending:
    """What was lent last is needed no more: its bytes go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiveLoan:
    """Fetch and check the bytes of this loan. Answered by `LoanHere` or `LoanLost`."""

    loan: Loan


@dataclass(frozen=True, kw_only=True, slots=True)
class TakeInner:
    """Now, at this boundary: the inner state of the loan's fragment becomes the lender's, whole."""

    loan: Loan


@dataclass(frozen=True, kw_only=True, slots=True)
class DropLoan:
    """This loan is not taken: its bytes go; no event follows."""

    loan: Loan


# ---- actions of the syncer


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferLoan:
    """Offer the fetched bytes of this loan of `lender` to `key`, the borrower; offered already: say so again.

    They go with the `CancelFetch` of the lender's message.
    """

    key: MemberKey
    lender: MemberKey
    loan: Loan
