"""Chunks that come before they are expected wait, within bounds."""

import pytest

from zdiloco.wire import early as early_file
from zdiloco.wire.early import Early
from zdiloco.wire.transfer import Chunk


def chunk(name: str, index: int) -> Chunk:
    return Chunk(transfer=name, index=index, checksum=0)


def test_they_are_handed_over_once_and_in_order() -> None:
    early = Early()
    for name, index in [("a", 1), ("b", 0), ("a", 0)]:
        early.keep(name, chunk(name, index), memoryview(bytes(10)))
    assert (early.nbytes, early.chunks) == (30, 3)
    assert [held.index for held, _ in early.take("a")] == [1, 0]
    assert early.take("a") == []
    assert (early.nbytes, early.chunks) == (10, 1)


@pytest.mark.parametrize(("bound", "most"), [("EARLY_MAX_BYTES", 25), ("EARLY_MAX_CHUNKS", 2)])
def test_the_oldest_transfer_goes_over_board(monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    monkeypatch.setattr(early_file, bound, most)
    early = Early()
    for name in ("a", "b", "c"):
        early.keep(name, chunk(name, 0), memoryview(bytes(10)))
    assert (early.nbytes, early.chunks) == (20, 2)
    assert [len(early.take(name)) for name in ("a", "b", "c")] == [0, 1, 1]
