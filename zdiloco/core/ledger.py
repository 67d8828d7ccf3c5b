"""The ledger: every token trained is merged, unmerged, lost, dropped or left, and each term is counted by itself.

Rule: no term is a remainder. `trained` and what a process holds come from its own counters, `merged` from the syncer's
map, and `lost` from the last counters of a dead process, once none of its work is pending. Whether the sum is right
is therefore a real question, and `Fates.gap` answers it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from zdiloco.core.progress import CutRow, LearnerProgress


class FragmentRow(NamedTuple):
    """A learner's own counts for one fragment at one moment, in tokens. One is made in every step, so it is cheap."""

    unmerged: int
    dropped: int
    lost: int
    after: int
    sent: tuple[CutRow, ...] = ()
    kept: tuple[CutRow, ...] = ()


class Fates(NamedTuple):
    """Tokens of one (learner, incarnation, fragment), or sums weighted by parameter share."""

    trained: float
    merged: float
    unmerged: float
    lost: float
    dropped: float
    left: float

    @property
    def gap(self) -> float:
        """What the books do not explain: trained minus all its fates. Zero, or the run has lost or doubled work."""
        return self.trained - (self.merged + self.unmerged + self.lost + self.dropped + self.left)

    def rounded(self) -> dict[str, float]:
        """Every term by its word, to a thousandth of a token: how weighted sums are told in JSON."""
        return {word: round(value, 3) for word, value in self._asdict().items()}


def row_of(progress: LearnerProgress) -> FragmentRow:
    """The row that a learner writes down for one fragment."""
    kept = tuple([kept.cut.row for kept in progress.kept.values()])
    sent = tuple([cut.row for seq, cut in progress.sent.items() if seq not in progress.kept])
    tally = progress.tally
    return FragmentRow(progress.tokens, tally.dropped, tally.lost, progress.after, sent, kept)


def settle(trained: int, row: FragmentRow, merged_seq: int, merged_tokens: int, state: str) -> Fates:
    """The fates of one process's tokens on one fragment, by its last row and the syncer's map.

    `state`: 'living', 'left' (took leave in order) or 'dead'. A process that has not yet heard of its newest merge
    (or of a roll-back) still counts those tokens; they are moved to where they belong.
    """
    unmerged, dropped, lost = row.unmerged, row.dropped, row.lost
    if merged_seq > row.after:
        newly = next((cut for cut in row.sent if cut.seq == merged_seq), None)
        if newly is None:  # its bytes are gone: as soon as the learner hears of it, it gives the rest of u up
            known = trained - unmerged - dropped - lost
            dropped, unmerged = dropped + unmerged - (merged_tokens - known), 0
        elif newly.void:
            dropped -= newly.tokens
        else:
            unmerged -= newly.tokens
    for cut in row.kept:
        if cut.seq > merged_seq:
            dropped, unmerged = (dropped + cut.tokens, unmerged) if cut.void else (dropped, unmerged + cut.tokens)
    unmerged_, lost_, left_ = {"living": (unmerged, lost, 0), "left": (0, lost, unmerged)}.get(
        state, (0, lost + unmerged, 0)
    )
    return Fates(trained, merged_tokens, unmerged_, lost_, dropped, left_)


def weigh(fates: Sequence[Fates], shares: Sequence[float]) -> Fates:
    """Sum over fragments, each weighted by its share of the parameters (the shares sum to 1)."""
    columns = zip(*fates, strict=True)
    return Fates(*(sum(share * value for share, value in zip(shares, column, strict=True)) for column in columns))


def total(fates: Iterable[Fates]) -> Fates:
    """Plain sum over processes."""
    return Fates(*(sum(column) for column in zip(Fates(0, 0, 0, 0, 0, 0), *fates, strict=True)))
