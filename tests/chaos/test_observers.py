"""Those who look on: what they must notice, they do."""

import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from zdiloco.chaos.observers import Reader, Stamps, newest_fault
from zdiloco.rundir.archive import FOLDER, Cut, FragmentCut
from zdiloco.rundir.store import Store
from zdiloco.tensor.layout import layout_of
from zdiloco.units import Epoch, Stamp

LIMIT_S = 60.0


def cut_of(version: int) -> Cut:
    """A cut with one fragment at this version."""
    epoch, layout = Epoch(1, 7), layout_of(nn.Linear(8, 1, bias=False), num_fragments=1)
    fragment = FragmentCut(
        fragment=0, revision=version, stamp=Stamp(epoch, version), theta=torch.full((8,), float(version)), buf=None,
        value=torch.zeros(16, dtype=torch.uint8), codec="bf16", map_=(),
    )  # fmt: skip
    table = layout.to_obj()
    return Cut(run_id="run-1", epoch=epoch, layout_digest=layout.digest, layout=table, fragments=(fragment,))


def test_a_stamp_that_goes_back_is_a_fault() -> None:
    stamps = Stamps("the value of")
    for counter, version in ((1, 5), (1, 6), (2, 4), (2, 4), (2, 5)):
        stamps.see(0, Stamp(Epoch(counter, 7), version))
    stamps.see(1, Stamp(Epoch(1, 7), 0))
    assert stamps.faults == []
    assert (stamps.seen, stamps.epochs) == (6, {1, 2})
    stamps.see(0, Stamp(Epoch(1, 7), 99))
    stamps.see(0, Stamp(Epoch(2, 7), 4))
    assert len(stamps.faults) == 2
    assert "the value of fragment 0 goes back from 2.7/5 to 1.7/99" in stamps.faults[0]


def until(condition, what: str) -> None:
    ends, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < ends, what
        pause.wait(0.02)


def test_a_reader_sees_whole_checkpoints_and_says_when_one_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=1)
    reader = Reader(tmp_path)
    try:
        store.write(cut_of(1))
        until(lambda: reader.reads > 0, "a read")
        store.write(cut_of(2))
        assert reader.faults == []
        (newest,) = (tmp_path / FOLDER).glob("fragment-*")
        newest.write_bytes(newest.read_bytes()[:-1])
        until(lambda: reader.faults, "a fault")
        assert "damaged" in reader.faults[0]
    finally:
        reader.close()
        store.close()


@pytest.mark.parametrize("keep", [1, 3])
def test_a_newest_checkpoint_that_is_not_whole_is_named_whatever_is_older(tmp_path: Path, keep: int) -> None:
    assert newest_fault(tmp_path) == ""
    store = Store(tmp_path, keep=keep)
    for version in (1, 2, 3):
        newest = store.write(cut_of(version))
    store.close()
    assert newest_fault(tmp_path) == ""
    newest.write_bytes(newest.read_bytes()[:-9])
    assert newest.name in newest_fault(tmp_path)
