"""The books of a run folder: what became of every token, from counters that know nothing of each other.

Rule: `trained` and what a process held come from the counter file of that process (it survives SIGKILL), `merged`
from the map in the syncer's checkpoint; that map in turn is compared with the syncer's journal of rounds. Nothing is
worked out as a remainder.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zdiloco.core.ledger import Fates, settle, total, weigh
from zdiloco.errors import StoreError
from zdiloco.node.counters import Counters, read_counters
from zdiloco.node.store import Cut, Store
from zdiloco.units import FragmentId, MemberKey

Account = tuple[MemberKey, FragmentId]


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One learner process in the books: `per_fragment` in whole tokens, `weighed` by parameter share."""

    key: MemberKey
    steps: int
    left_in_order: bool
    per_fragment: tuple[Fates, ...]
    weighed: Fates


@dataclass(frozen=True, kw_only=True, slots=True)
class Books:
    """Every process of a run that is over, in order of name, then of size of the incarnation's number."""

    processes: tuple[Process, ...]

    @property
    def total(self) -> Fates:
        """All processes together, weighed by parameter share."""
        return total(process.weighed for process in self.processes)

    @property
    def per_fragment(self) -> tuple[Fates, ...]:
        """All processes together, fragment by fragment, in whole tokens."""
        return tuple(total(column) for column in zip(*(p.per_fragment for p in self.processes), strict=True))

    @property
    def gaps(self) -> dict[str, int]:
        """Trained minus all fates, per process and fragment; zeros, where nothing was lost or doubled."""
        return {
            _place(process.key, index): int(fates.gap)
            for process in self.processes
            for index, fates in enumerate(process.per_fragment)
        }


def read_cut(run_dir: Path) -> Cut:
    """Return the newest checkpoint of a run whose syncer has ended. Raises StoreError where there is none."""
    store = Store(run_dir, keep=1_000_000)  # a reader removes nothing
    try:
        cut = store.load()
    finally:
        store.close()
    if cut is None:
        raise StoreError(f"{run_dir} holds no checkpoint")
    return cut


def read_books(run_dir: Path, cut: Cut, shares: tuple[float, ...]) -> Books:
    """Settle the counters of every learner process with the maps of the last checkpoint.

    `shares`: parameter share of each fragment. Raises StoreError where a counter file cannot be read or does not fit.
    """
    merged = merged_by_map(cut)
    counters = [read_counters(path) for path in sorted((run_dir / "learners").glob("*.counters"))]
    return Books(processes=tuple(_settled(each, merged, shares) for each in counters))


def merged_by_map(cut: Cut) -> dict[Account, tuple[int, int]]:
    """(newest seq, tokens) merged of each process on each fragment, by the checkpoint."""
    return {(m.key, part.fragment): (m.seq, m.tokens) for part in cut.fragments for m in part.map_}


def merged_by_journal(rounds: Iterable[Mapping[str, Any]]) -> dict[Account, int]:
    """Tokens merged of each process on each fragment, by the lines of the journal."""
    sums: dict[Account, int] = {}
    for line in rounds:
        for name, incarnation, _steps, tokens, *_ in line["members"]:
            account = (MemberKey(name, int(incarnation, 16)), line["fragment"])
            sums[account] = sums.get(account, 0) + tokens
    return sums


def differences(cut: Cut, rounds: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Merged tokens by the checkpoint minus those by the journal; of one syncer process that started from nothing."""
    by_map = {account: tokens for account, (_seq, tokens) in merged_by_map(cut).items()}
    by_journal = merged_by_journal(rounds)
    return {
        _place(*account): by_map.get(account, 0) - by_journal.get(account, 0) for account in {**by_map, **by_journal}
    }


def _settled(counters: Counters, merged: Mapping[Account, tuple[int, int]], shares: tuple[float, ...]) -> Process:
    if len(counters.rows) != len(shares):
        raise StoreError(f"{counters.key.name} counts {len(counters.rows)} fragments, the checkpoint has {len(shares)}")
    state = "left" if counters.left else "dead"
    fates = []
    for index, row in enumerate(counters.rows):
        seq, tokens = merged.get((counters.key, index), (0, 0))
        fates.append(settle(counters.trained_tokens, row, seq, tokens, state))
    return Process(
        key=counters.key,
        steps=counters.step,
        left_in_order=counters.left,
        per_fragment=tuple(fates),
        weighed=weigh(fates, shares),
    )


def _place(key: MemberKey, fragment: FragmentId) -> str:
    return f"{key.name}:{key.incarnation:016x} fragment {fragment}"
