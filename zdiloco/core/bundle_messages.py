"""What a relay and a syncer say to each other about contributions that were merged before they crossed the far link.

Rule: a bundle stands for contributions that the syncer has been offered already, each by its own learner; it brings
their bytes and nothing else. `core.messages` hands these names on.
"""

from dataclasses import dataclass
from typing import NamedTuple

from zdiloco.core.body import Body
from zdiloco.core.bounds import MAX_COUNT, MAX_NAME, MAX_TEXT, check_range, check_text
from zdiloco.units import MAX_FRAGMENTS, FragmentId, MemberKey

MOST_MEMBERS = 40
"""Contributions in one bundle, so that its header stays within bounds."""
MAX_REAL = 1e300


class Bundled(NamedTuple):
    """One contribution in a bundle: whose and which, its counters, its norm (0: buffers), the weight it was given."""

    name: str
    incarnation: int
    seq: int
    after: int
    steps: int
    tokens: int
    norm: float
    weight: float

    @property
    def key(self) -> MemberKey:
        """Whose it is."""
        return MemberKey(self.name, self.incarnation)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """Contributions to one fragment, merged by `method`: bundle `number` of this relay. Its body takes their place.

    `codec` is that of the values in the body; behind them lies the mean norm of each tensor.
    """

    fragment: FragmentId
    number: int
    method: str
    codec: str
    members: tuple[Bundled, ...]
    body: Body

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), number=(1, MAX_COUNT))
        check_text(self, method=MAX_NAME, codec=MAX_NAME)
        if not 1 <= len(self.members) <= MOST_MEMBERS:
            raise ValueError(f"Bundle.members has {len(self.members)} entries; allowed is 1 to {MOST_MEMBERS}")
        if len({member.key for member in self.members}) < len(self.members):
            raise ValueError("Bundle.members names a process twice")
        for member in self.members:
            counts = (member.after, member.seq, member.steps, member.tokens)
            known = 1 <= len(member.name) <= MAX_NAME and 1 <= member.incarnation < 2**64
            reals = 0.0 <= member.norm <= MAX_REAL and 0.0 < member.weight <= MAX_REAL
            if not (known and reals and min(counts) >= 0 and max(counts) <= MAX_COUNT):
                raise ValueError("Bundle.members holds a name or a number that is out of range")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbundled:
    """The syncer does not take bundle `number`, or no more: its members are to come one by one.

    `reason` is a word of `core.bundles.Unbundling`.
    """

    fragment: FragmentId
    number: int
    reason: str
    text: str

    def __post_init__(self) -> None:
        check_range(self, fragment=(0, MAX_FRAGMENTS - 1), number=(1, MAX_COUNT))
        check_text(self, reason=MAX_NAME, text=MAX_TEXT)
