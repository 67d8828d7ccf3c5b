"""The books of a run folder: written by the real store and counters, balanced, and caught when they are not."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from zdiloco.core.ledger import CutRow, FragmentRow
from zdiloco.errors import StoreError
from zdiloco.rundir.archive import Cut, FragmentCut
from zdiloco.rundir.books import read_books, read_cut
from zdiloco.rundir.counters import CounterFile
from zdiloco.rundir.lineage import differences, merged_by_journal
from zdiloco.rundir.store import Store
from zdiloco.units import Epoch, MemberKey, Merged, Stamp

A, B = MemberKey("a", 10), MemberKey("b", 11)
SHARES = (0.25, 0.75)


def cut_of(*maps: Sequence[Merged]) -> Cut:
    """A checkpoint whose fragments hold these maps, and values of no interest."""
    parts = tuple(
        FragmentCut(
            fragment=index,
            revision=1,
            stamp=Stamp(Epoch(1, 5), 3),
            theta=torch.zeros(4),
            buf=None,
            value=torch.zeros(8, dtype=torch.uint8),
            codec="bf16",
            map_=tuple(entries),
        )
        for index, entries in enumerate(maps)
    )
    return Cut(run_id="r", epoch=Epoch(1, 5), layout_digest="d", layout={}, fragments=parts)


def count(run_dir: Path, key: MemberKey, trained: int, *rows: FragmentRow, left: bool) -> None:
    file = CounterFile(run_dir, key, len(rows))
    file.write(trained // 10, trained, rows, left=left)
    file.close()


def row(unmerged: int, after: int, sent: tuple[CutRow, ...] = (), **others: int) -> FragmentRow:
    return FragmentRow(unmerged=unmerged, after=after, sent=sent, dropped=others.get("dropped", 0), lost=0)


def test_the_dead_lose_what_was_not_merged_and_the_living_leave_it(tmp_path: Path) -> None:
    count(tmp_path, A, 100, row(30, 2), row(20, 1), left=True)
    count(tmp_path, B, 80, row(80, 0, (CutRow(1, 60, False),)), row(70, 0, dropped=10), left=False)
    cut = cut_of([Merged("a", 10, 2, 7, 70), Merged("b", 11, 1, 6, 60)], [Merged("a", 10, 1, 8, 80)])
    books = read_books(tmp_path, cut, SHARES)
    assert [process.key for process in books.processes] == [A, B]
    assert set(books.gaps.values()) == {0}
    assert len(books.gaps) == 4
    assert books.processes[0].left_in_order
    assert books.processes[1].per_fragment[0] == (80, 60, 0, 20, 0, 0)
    assert books.per_fragment == ((180, 130, 0, 20, 0, 30), (180, 80, 0, 70, 10, 20))
    assert books.total == pytest.approx((180, 92.5, 0, 57.5, 7.5, 22.5))


def test_a_token_too_many_is_a_gap(tmp_path: Path) -> None:
    count(tmp_path, A, 100, row(31, 2), row(20, 1), left=True)
    cut = cut_of([Merged("a", 10, 2, 7, 70)], [Merged("a", 10, 1, 8, 80)])
    gaps = read_books(tmp_path, cut, SHARES).gaps
    assert {place: gap for place, gap in gaps.items() if gap} == {"a:000000000000000a fragment 0": -1}


def test_counters_of_another_model_do_not_fit(tmp_path: Path) -> None:
    count(tmp_path, A, 100, row(100, 0), left=True)
    with pytest.raises(StoreError, match=r"a-0+a.counters counts 1 fragments, the checkpoint has 2"):
        read_books(tmp_path, cut_of([], []), SHARES)


def test_journal_and_checkpoint_are_compared() -> None:
    rounds = [
        {"fragment": 0, "members": [["a", "a", 3, 30], ["b", "b", 6, 60]]},
        {"fragment": 0, "members": [["a", "a", 4, 40]]},
        {"fragment": 1, "members": [["a", "a", 8, 81]]},
    ]
    assert merged_by_journal(rounds) == {(A, 0): 70, (B, 0): 60, (A, 1): 81}
    cut = cut_of([Merged("a", 10, 2, 7, 70)], [Merged("a", 10, 1, 8, 80)])
    found = {place: difference for place, difference in differences(cut, rounds).items() if difference}
    assert found == {"b:000000000000000b fragment 0": -60, "a:000000000000000a fragment 1": -1}


def test_the_newest_checkpoint_is_read_and_stays(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no checkpoint"):
        read_cut(tmp_path)
    store = Store(tmp_path, keep=2)
    store.write(cut_of([], []))
    store.write(cut_of([Merged("a", 10, 2, 7, 70)], []))
    store.close()
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert read_cut(tmp_path).fragments[0].map_ == (Merged("a", 10, 2, 7, 70),)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before
