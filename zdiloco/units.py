"""Small value types that everybody shares: who, which fragment, which state of it.

Rule: tuples compare in the order in which the protocol orders them, so `a < b` is the protocol's own comparison.
"""

from typing import NamedTuple

FragmentId = int
"""Index of a fragment, 0 to P - 1 (a model with floating-point buffers has one more, the last)."""


class Epoch(NamedTuple):
    """One incarnation of the syncer: a counter that grows with each, then a random id that tells twins apart."""

    counter: int
    ident: int


class Stamp(NamedTuple):
    """One published state of one fragment: the epoch of its syncer, and the number of outer steps in it."""

    epoch: Epoch
    version: int


class MemberKey(NamedTuple):
    """One process of one learner: its name and its random 64-bit incarnation."""

    name: str
    incarnation: int


class ContributionId(NamedTuple):
    """Handle of one contribution and of its encoded bytes, unique in a run."""

    name: str
    incarnation: int
    fragment: FragmentId
    seq: int

    @property
    def key(self) -> MemberKey:
        return MemberKey(self.name, self.incarnation)


class Merged(NamedTuple):
    """What of whom is in a state: in an update one contribution's own counts, in a map the sums up to `seq`."""

    name: str
    incarnation: int
    seq: int
    steps: int
    tokens: int

    @property
    def key(self) -> MemberKey:
        return MemberKey(self.name, self.incarnation)


RUN_NAME_CHARS = 40
"""So much of `run.name` stands in a run id."""


def run_id_of(run_name: str, token: str) -> str:
    """The id of a new run: its name, and a token that no other run of this name has."""
    return f"{run_name[:RUN_NAME_CHARS]}-{token}"


def run_name_in(run_id: str) -> str:
    """The name in a run id, cut as `run_id_of` cuts it; empty where there is none."""
    return run_id.rpartition("-")[0]


MAX_FRAGMENTS = 512
"""Most fragments that one run may have: their stamps must fit into one 16 KiB header."""
NO_EPOCH = Epoch(0, 0)
NO_STAMP = Stamp(NO_EPOCH, -1)
