"""What learners and syncer say about loans: inner-optimizer state that a newcomer takes from a live learner.

Rule: a loan is of one fragment, and the syncer carries it: borrower and lender never meet, and never learn who the
other one is. `core.messages` hands these names on. All of them travel on the control road; the bytes of a loan are a
body.
"""

from dataclasses import dataclass

from zdiloco.core.body import Body
from zdiloco.core.bounds import MAX_COUNT, MAX_NAME, MAX_TEXT, check_range, check_stamps, check_text
from zdiloco.units import MAX_FRAGMENTS, FragmentId, Stamp

_NUMBER = (0, MAX_COUNT)
TAKEN = "taken"
"""The reason of a borrower that has what it asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Borrow:
    """A learner without inner state of its own asks for that of one fragment; asked again, it is the same question.

    `kind` names its inner optimizer and what that remembers: only the same kind fits. `stamp` is what it has adopted.
    """

    fragment: FragmentId
    kind: str
    stamp: Stamp

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1))
        check_text(self, kind=MAX_NAME)
        check_stamps(self, self.stamp)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lend:
    """The syncer asks a member for its inner state of a fragment, as loan `number` of this syncer."""

    fragment: FragmentId
    number: int
    kind: str

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), number=_NUMBER)
        check_text(self, kind=MAX_NAME)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loan:
    """Inner state of one fragment, copied at a boundary at which its owner had adopted `stamp`.

    From the lender to the syncer, and, with the same bytes, from the syncer to the borrower.
    """

    fragment: FragmentId
    number: int
    kind: str
    stamp: Stamp
    codec: str
    body: Body

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), number=_NUMBER)
        check_text(self, kind=MAX_NAME, codec=MAX_NAME)
        check_stamps(self, self.stamp)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoanOver:
    """There is no loan of this fragment, or none any more; `reason` says why, in words.

    From a lender: it cannot. From the syncer: nobody can (`number` 0), or it wants it no more. From a borrower: it has
    it, or wants it no more.
    """

    fragment: FragmentId
    number: int
    reason: str

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), number=_NUMBER)
        check_text(self, reason=MAX_TEXT)
