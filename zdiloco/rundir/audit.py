"""The ledger of a run folder worked out anew, also while syncer and learners are at work.

Rule: files that move are read until they hold still: a reading counts when no checkpoint was written during it, and one
that does not balance must come twice in a row, or is said to move.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zdiloco.core.ledger import Fates
from zdiloco.errors import ConfigError, StoreError
from zdiloco.rundir.archive import Archive, Cut, run_dir_in_use
from zdiloco.rundir.books import Books, Process, read_books, read_cut
from zdiloco.rundir.fitting import layout_of_cut
from zdiloco.rundir.journal import read_journal
from zdiloco.rundir.lineage import Comparison, compare
from zdiloco.trace import FILE
from zdiloco.units import Stamp

LOOKS = 10
LOOK_AGAIN_S = 0.2
"""Between two readings of a run at work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What became of every token of a run, by its newest whole checkpoint.

    `syncer_lives`: a syncer on this machine holds the folder; `moves`: it was written to in every reading, so what does
    not balance may do so in the next one.
    """

    run_id: str
    stamps: tuple[Stamp, ...]
    books: Books
    comparison: Comparison
    syncer_lives: bool
    moves: bool

    @property
    def gaps(self) -> dict[str, int]:
        """Accounts that do not balance: trained minus all fates, by place."""
        return {place: gap for place, gap in self.books.gaps.items() if gap}

    @property
    def differences(self) -> dict[str, int]:
        """Accounts in which checkpoint and journal differ, by place: tokens by the one minus those by the other."""
        return {place: apart for place, apart in self.comparison.differences.items() if apart}

    @property
    def balanced(self) -> bool:
        """Whether every account balances, and no journal that is whole says otherwise."""
        return not self.gaps and not self.differences


def audit(run_dir: Path, others: Sequence[Path] = ()) -> Audit:
    """Work the ledger out. `others`: folders with learners' files from other machines.

    Raises ConfigError where a folder, a whole checkpoint or a whole counter file is missing, naming it.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"there is no run folder {run_dir}")
    pause = threading.Event()
    before: Audit | None = None
    for _ in range(LOOKS):
        found = _look(run_dir, others)
        if found.balanced or not (found.moves or _at_work(found)):
            return found
        if before is not None and not found.moves and _wrong(before) == _wrong(found):
            return found
        before = found
        pause.wait(LOOK_AGAIN_S)
    return found


def _look(run_dir: Path, others: Sequence[Path]) -> Audit:
    archive = Archive(run_dir)
    manifests = archive.manifests()
    try:
        cut = read_cut(run_dir)
        layout = layout_of_cut(cut)
        books = read_books(run_dir, cut, layout.shares, others)
        comparison = _compared(run_dir, cut)
    except StoreError as error:
        raise ConfigError(str(error)) from error
    return Audit(
        run_id=cut.run_id,
        stamps=tuple(part.stamp for part in cut.fragments),
        books=books,
        comparison=comparison,
        syncer_lives=run_dir_in_use(run_dir),
        moves=archive.manifests() != manifests,
    )


def _compared(run_dir: Path, cut: Cut) -> Comparison:
    why = f"there is no {FILE}"
    if (run_dir / FILE).exists():
        try:
            return compare(cut, read_journal(run_dir))
        except (LookupError, TypeError, ValueError) as error:
            why = f"{FILE} holds a line that no syncer has written ({type(error).__name__}: {error})"
    return Comparison(differences={}, silent={part.fragment: why for part in cut.fragments})


def _at_work(found: Audit) -> bool:
    return found.syncer_lives or any(process.state == "living" for process in found.books.processes)


def _wrong(found: Audit) -> tuple[Mapping[str, int], Mapping[str, int]]:
    return found.gaps, found.differences


def by_learner(books: Books) -> list[tuple[str, list[Process], Fates]]:
    """All processes of each name, and their sum weighed by parameter share."""
    names = sorted({process.key.name for process in books.processes})
    of = {name: [process for process in books.processes if process.key.name == name] for name in names}
    return [(name, of[name], Books(processes=tuple(of[name])).total) for name in names]
