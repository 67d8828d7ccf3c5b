"""Which merges of a journal are in a checkpoint, over all syncer processes that a run had; and whether the sums agree.

Rule: an epoch begins where its `opened` record says, and what the one before it made beyond that has died with it. So
of each fragment every version has one merge that survived, and a sum is judged only where all of them are in the
journal. A journal may lose lines (a kill, a full disk): where it has, that is said, and no fault is found in it.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zdiloco.rundir.archive import Cut
from zdiloco.rundir.books import Account, merged_by_map, place_of
from zdiloco.units import FragmentId, MemberKey

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`differences`: merged tokens by the checkpoint minus those by the journal, per process and fragment.

    `silent`: why a fragment could not be compared, by its number.
    """

    differences: Mapping[str, int]
    silent: Mapping[FragmentId, str]


class Merges:
    """The merges of a journal by epoch, fragment and version, and the versions that each epoch began and ended with.

    What an epoch ended with is no merge: at the end of a run every fragment gets one more version, Theta as it is.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        self.began: dict[int, Sequence[int]] = {}
        self.sealed: dict[int, Sequence[int]] = {}
        self.merges: dict[tuple[int, FragmentId, int], Line] = {}
        for line in lines:
            if line["kind"] == "opened" and line.get("versions"):
                self.began[line["epoch"]] = line["versions"]
            elif line["kind"] == "sealed":
                self.sealed[line["epoch"]] = line["versions"]
            elif line["kind"] == "merge":  # of two that make one version the first came to nothing
                self.merges[line.get("epoch", 0), line["fragment"], line["version"]] = line

    def survivors(self, fragment: FragmentId, epoch: int, version: int) -> tuple[list[Line], str]:
        """The merges that make this state of the fragment, and why they cannot be told; empty: they are all here."""
        found: list[Line] = []
        while version > 0:
            began = self.began.get(epoch)
            if began is None or fragment >= len(began):
                return [], f"the journal does not say where epoch {epoch} began"
            for each in range(began[fragment] + 1, version + 1):
                if self._is_sealed(epoch, fragment, each):
                    continue
                if (epoch, fragment, each) not in self.merges:
                    return [], f"the journal lacks version {each} of epoch {epoch}"
                found.append(self.merges[epoch, fragment, each])
            version, epoch = min(version, began[fragment]), epoch - 1
        return found, ""

    def _is_sealed(self, epoch: int, fragment: FragmentId, version: int) -> bool:
        return version in self.sealed.get(epoch, ())[fragment : fragment + 1]


def compare(cut: Cut, lines: Iterable[Line]) -> Comparison:
    """Compare the maps of a checkpoint with a journal, line by line as `rundir/journal.py` reads it."""
    recorded = Merges(lines)
    survivors: list[Line] = []
    silent: dict[FragmentId, str] = {}
    for part in cut.fragments:
        merges, why = recorded.survivors(part.fragment, part.stamp.epoch.counter, part.stamp.version)
        survivors += merges
        if why:
            silent[part.fragment] = why
    return Comparison(differences=differences(cut, survivors, without=silent), silent=silent)


def differences(cut: Cut, merges: Iterable[Line], *, without: Container[FragmentId] = ()) -> dict[str, int]:
    """Merged tokens by the checkpoint minus those of merges that are all in it, but for fragments `without`."""
    by_map = {account: tokens for account, (_seq, tokens) in merged_by_map(cut).items() if account[1] not in without}
    by_journal = merged_by_journal(merges)
    return {
        place_of(*account): by_map.get(account, 0) - by_journal.get(account, 0) for account in {**by_map, **by_journal}
    }


def merged_by_journal(rounds: Iterable[Line]) -> dict[Account, int]:
    """Tokens merged of each process on each fragment, by these lines of the journal."""
    sums: dict[Account, int] = {}
    for line in rounds:
        for name, incarnation, _steps, tokens, *_ in line["members"]:
            account = (MemberKey(name, int(incarnation, 16)), line["fragment"])
            sums[account] = sums.get(account, 0) + tokens
    return sums
