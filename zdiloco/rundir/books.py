"""The books of a run folder: what became of every token, from counters that know nothing of each other.

Rule: `trained` and what a process held come from the counter file of that process (it survives SIGKILL), `merged`
from the map in the syncer's checkpoint; that map in turn is compared with the syncer's journal of rounds
(`rundir/lineage.py`). Nothing is worked out as a remainder.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zdiloco.core.ledger import Fates, FragmentRow, settle, total, weigh
from zdiloco.errors import ConfigError, StoreError
from zdiloco.rundir.archive import Cut, read_newest
from zdiloco.rundir.counters import SUFFIX, Counters, read_counters, state_of
from zdiloco.units import FragmentId, MemberKey

Account = tuple[MemberKey, FragmentId]
READ_AGAIN = 5
ABSENT = "absent"
"""State of a process that something is merged of, and that has no counter file here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One learner process in the books: `per_fragment` in whole tokens, `weighed` by parameter share.

    `state`: 'living', 'left' (took leave in order), 'dead' or ABSENT.
    """

    key: MemberKey
    steps: int
    state: str
    per_fragment: tuple[Fates, ...]
    weighed: Fates

    @property
    def left_in_order(self) -> bool:
        """Whether it took leave in order."""
        return self.state == "left"


@dataclass(frozen=True, kw_only=True, slots=True)
class Books:
    """Every process of a run, in order of name, then of size of the incarnation's number."""

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
            place_of(process.key, index): int(fates.gap)
            for process in self.processes
            for index, fates in enumerate(process.per_fragment)
        }


def read_cut(run_dir: Path) -> Cut:
    """Return the newest whole checkpoint of a run, at work or over. Raises StoreError where there is none."""
    cut = read_newest(run_dir)
    if cut is None:
        raise StoreError(f"{run_dir} holds no checkpoint")
    return cut


def counter_files(folders: Iterable[Path]) -> dict[MemberKey, Path]:
    """The counter file of every process in these folders, each a run folder or one with such files in it.

    Of two copies of one file the one with more steps counts. Raises ConfigError for a folder that is none, StoreError
    for a file that cannot be read.
    """
    found: dict[MemberKey, tuple[int, Path]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}")
        inner = folder / "learners"
        for path in sorted((inner if inner.is_dir() else folder).glob(f"*{SUFFIX}")):
            counters = _steady(path)
            if counters.step >= found.get(counters.key, (-1, path))[0]:
                found[counters.key] = (counters.step, path)
    return {key: path for key, (_, path) in sorted(found.items())}


def read_books(run_dir: Path, cut: Cut, shares: Sequence[float], others: Sequence[Path] = ()) -> Books:
    """Settle the counters of every learner process with the maps of the checkpoint.

    `shares`: parameter share of each fragment; `others`: folders with learners' files from other machines. Raises
    StoreError where a counter file cannot be read or does not fit, ConfigError for a folder that is none.
    """
    merged = merged_by_map(cut)
    files = counter_files([run_dir, *others])
    processes = [_settled(path, merged, shares) for path in files.values()]
    processes += [_absent(key, merged, shares) for key in {key for key, _ in merged} - set(files)]
    return Books(processes=tuple(sorted(processes, key=lambda process: process.key)))


def merged_by_map(cut: Cut) -> dict[Account, tuple[int, int]]:
    """(newest seq, tokens) merged of each process on each fragment, by the checkpoint."""
    return {(m.key, part.fragment): (m.seq, m.tokens) for part in cut.fragments for m in part.map_}


def place_of(key: MemberKey, fragment: FragmentId) -> str:
    """An account in words."""
    return f"{key.name}:{key.incarnation:016x} fragment {fragment}"


def _settled(path: Path, merged: Mapping[Account, tuple[int, int]], shares: Sequence[float]) -> Process:
    state = state_of(path)  # before the counters: who dies in between has its last word in them
    counters = _steady(path)
    if len(counters.rows) != len(shares):
        raise StoreError(f"{path} counts {len(counters.rows)} fragments, the checkpoint has {len(shares)}")
    return _process(counters, "left" if counters.left else state, merged, shares)


def _steady(path: Path) -> Counters:
    """Its newest record; of a living process, which may write both slots during one look, after a few looks."""
    for _ in range(READ_AGAIN):
        try:
            return read_counters(path)
        except StoreError:
            if state_of(path) != "living":
                break
    return read_counters(path)


def _absent(key: MemberKey, merged: Mapping[Account, tuple[int, int]], shares: Sequence[float]) -> Process:
    rows = tuple(FragmentRow(0, 0, 0, merged.get((key, index), (0, 0))[0]) for index in range(len(shares)))
    return _process(Counters(key=key, base=0, step=0, trained_tokens=0, left=False, rows=rows), ABSENT, merged, shares)


def _process(
    counters: Counters, state: str, merged: Mapping[Account, tuple[int, int]], shares: Sequence[float]
) -> Process:
    fates = []
    for index, row in enumerate(counters.rows):
        seq, tokens = merged.get((counters.key, index), (0, 0))
        fates.append(settle(counters.trained_tokens, row, seq, tokens, state))
    return Process(
        key=counters.key, steps=counters.step, state=state, per_fragment=tuple(fates), weighed=weigh(fates, shares)
    )
