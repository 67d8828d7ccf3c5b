"""The syncer's checkpoints: after a failure at any system call the older cut, or the new one, is there and whole."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from zdiloco.errors import ConfigError, StoreError
from zdiloco.rundir.archive import Cut, FragmentCut
from zdiloco.rundir.disk import Disk
from zdiloco.rundir.manifest import ForeignCheckpoint, signed
from zdiloco.rundir.store import Store, successor_in
from zdiloco.units import Epoch, MemberKey, Merged, Stamp

EPOCH = Epoch(1, 77)
LAYOUT = {"format": 1, "fragments": [["w", [3]], ["b", [2]]]}


class FailingDisk(Disk):
    """A disk whose n-th call fails; with `torn`, a failing write leaves half of its bytes behind."""

    def __init__(self, left: int, number: int = errno.ENOSPC) -> None:
        self.left, self.number = left, number
        self.calls: list[str] = []

    def _count(self, name: str) -> None:
        self.calls.append(name)
        self.left -= 1
        if self.left < 0:
            raise OSError(self.number, os.strerror(self.number))

    def open(self, path: Path) -> int:
        self._count("open")
        return super().open(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.left == 0:
            os.write(descriptor, data[: len(data) // 2])
        self._count("write")
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._count("sync")

    def move(self, source: Path, target: Path) -> None:
        self._count("move")
        super().move(source, target)

    def remove(self, path: Path) -> None:
        self._count("remove")
        super().remove(path)


def make_cut(version: int, epoch: Epoch = EPOCH, revisions: tuple[int, int] | None = None) -> Cut:
    revisions = revisions or (version, version)
    fragments = tuple(
        FragmentCut(
            fragment=index,
            revision=revisions[index],
            stamp=Stamp(epoch, version),
            theta=torch.full((3 - index,), float(revisions[index])),
            buf=torch.full((3 - index,), 0.5) if index else None,
            value=torch.full((6,), revisions[index], dtype=torch.uint8),
            codec="bf16",
            map_=(Merged("a", 5, version + 1, 10, 100),),
        )
        for index in (0, 1)
    )
    return Cut(
        run_id="r-1", epoch=epoch, layout_digest="d" * 32, layout=LAYOUT, fragments=fragments,
        progress_tokens=version * 7.0, replaced=(MemberKey("b", 2**64 - 1), MemberKey("a", 2)),
    )  # fmt: skip


def same(a: Cut, b: Cut) -> bool:
    for x, y in zip(a.fragments, b.fragments, strict=True):
        tensors = torch.equal(x.theta, y.theta) and torch.equal(x.value, y.value)
        bufs = (x.buf is None) == (y.buf is None) and (x.buf is None or y.buf is None or torch.equal(x.buf, y.buf))
        if not (tensors and bufs and (x.stamp, x.codec, x.map_) == (y.stamp, y.codec, y.map_)):
            return False
    return (a.run_id, a.epoch, a.progress_tokens, a.replaced) == (b.run_id, b.epoch, b.progress_tokens, b.replaced)


def load(run_dir: Path) -> Cut | None:
    store = Store(run_dir, keep=2)
    try:
        return store.load()
    finally:
        store.close()


def saved(run_dir: Path, *cuts: Cut) -> None:
    store = Store(run_dir, keep=2)
    store.load()
    for cut in cuts:
        store.write(cut)
    store.close()


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    saved(tmp_path, make_cut(3))
    found = load(tmp_path)
    assert found is not None
    assert same(found, make_cut(3))


def test_a_manifest_from_before_replaced_is_read(tmp_path: Path) -> None:
    saved(tmp_path, make_cut(3))
    path = next((tmp_path / "checkpoints").glob("manifest-*"))
    tree = json.loads(path.read_bytes())
    del tree["replaced"], tree["digest"]
    tree["ledger"] = {}
    path.write_bytes(signed(tree))
    found = load(tmp_path)
    assert found is not None
    assert (found.replaced, found.run_id) == ((), "r-1")


@pytest.mark.parametrize("replaced", [7, [["a"]], [[1, "a"]], [["a", 1, 2]], ["ab"]])
def test_replaced_members_that_make_no_sense_are_no_manifest(tmp_path: Path, replaced: object) -> None:
    saved(tmp_path, make_cut(3))
    path = next((tmp_path / "checkpoints").glob("manifest-*"))
    tree = {**json.loads(path.read_bytes()), "replaced": replaced}
    del tree["digest"]
    path.write_bytes(signed(tree))
    with pytest.raises(StoreError, match="not a complete manifest"):
        load(tmp_path)


def test_a_restart_goes_on_numbering_and_keeps_unchanged_files(tmp_path: Path) -> None:
    saved(tmp_path, make_cut(3))
    store = Store(tmp_path, keep=2)
    found = store.load()
    assert found is not None
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints").glob("fragment-*")}
    store.write(found)
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints").glob("fragment-*")}
    assert before == after
    assert len(store.manifests()) == 2
    store.close()


def test_only_changed_fragments_are_written(tmp_path: Path) -> None:
    saved(tmp_path, make_cut(1))
    store = Store(tmp_path, keep=2, disk=(disk := FailingDisk(10**6)))
    store.write(make_cut(2, revisions=(2, 2)))
    disk.calls.clear()
    store.write(make_cut(3, revisions=(3, 2)))
    assert disk.calls.count("move") == 2  # one fragment and the manifest
    store.close()
    found = load(tmp_path)
    assert found is not None
    assert same(found, make_cut(3, revisions=(3, 2)))


def calls_of_a_write(tmp_path: Path) -> int:
    saved(tmp_path, make_cut(1))
    store = Store(tmp_path, keep=1, disk=(disk := FailingDisk(10**6)))
    store.load()
    store.write(make_cut(2))
    store.close()
    return len(disk.calls)


def test_a_failure_at_any_call_leaves_a_whole_cut(tmp_path: Path) -> None:
    total = calls_of_a_write(tmp_path / "count")
    assert total > 12
    for at in range(total):
        run_dir = tmp_path / str(at)
        saved(run_dir, make_cut(1))
        disk = FailingDisk(at)
        store = Store(run_dir, keep=1, disk=disk)
        store.load()
        said = ""
        try:
            store.write(make_cut(2))
        except StoreError as error:
            said = str(error)
        store.close()
        assert not said or "No space left" in said
        expected = [2] if not said else [1, 2] if disk.calls[-1] in ("sync", "remove") else [1]
        found = load(run_dir)
        assert found is not None, at
        assert any(same(found, make_cut(version)) for version in expected), at
        saved(run_dir, make_cut(4))  # and the next write works
        again = load(run_dir)
        assert again is not None
        assert same(again, make_cut(4)), at


@pytest.mark.parametrize("victim", ["manifest", "fragment", "layout"])
@pytest.mark.parametrize("how", ["truncated", "flipped", "foreign", "missing"])
def test_a_damaged_newest_cut_gives_way_to_the_older_one(tmp_path: Path, victim: str, how: str) -> None:
    saved(tmp_path, make_cut(1))
    folder = tmp_path / "checkpoints"
    older = set(folder.iterdir())
    store = Store(tmp_path, keep=2)
    store.load()
    cut = make_cut(2)
    store.write(Cut(**{**{f: getattr(cut, f) for f in cut.__dataclass_fields__}, "layout": {**LAYOUT, "ties": []}}))
    store.close()
    path = next(p for p in folder.iterdir() if p.name.startswith(victim) and p not in older)
    data = path.read_bytes()
    middle = len(data) // 2
    if how == "missing":
        path.unlink()
    else:
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"truncated": data[:-1], "flipped": flipped, "foreign": b"{}"}[how])
    if victim == "manifest" and how == "foreign":
        with pytest.raises(ForeignCheckpoint):
            load(tmp_path)
        return
    found = load(tmp_path)
    assert found is not None
    assert same(found, make_cut(1))


def test_nothing_whole_is_an_error_that_says_why(tmp_path: Path) -> None:
    saved(tmp_path, make_cut(1))
    for path in (tmp_path / "checkpoints").glob("fragment-*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"no checkpoint is whole: .*fragment-000.* is damaged"):
        load(tmp_path)


def test_another_format_is_never_passed_over(tmp_path: Path) -> None:
    saved(tmp_path, make_cut(1), make_cut(2))
    newest = max((tmp_path / "checkpoints").glob("manifest-*"))
    newest.write_text(json.dumps({"format": 99}))
    with pytest.raises(StoreError, match="has format 99"):
        load(tmp_path)


def test_the_highest_epoch_is_known_though_its_manifest_is_damaged(tmp_path: Path) -> None:
    saved(tmp_path, make_cut(1), make_cut(2, epoch=Epoch(9, 1)))
    newest = max((tmp_path / "checkpoints").glob("manifest-*"))
    newest.write_bytes(b"")
    store = Store(tmp_path, keep=2)
    found = store.load()
    store.close()
    assert found is not None
    assert (found.epoch.counter, store.highest_epoch) == (1, 9)


def test_old_files_go(tmp_path: Path) -> None:
    saved(tmp_path, *(make_cut(version) for version in range(6)))
    folder = tmp_path / "checkpoints"
    assert len(list(folder.glob("manifest-*"))) == 2
    assert len(list(folder.glob("fragment-*"))) == 4
    assert not list(folder.glob("*.aside"))


def test_two_syncers_cannot_share_a_run_folder(tmp_path: Path) -> None:
    first = Store(tmp_path, keep=1)
    with pytest.raises(ConfigError, match="in use by another syncer"):
        Store(tmp_path, keep=1)
    first.close()
    Store(tmp_path, keep=1).close()


def test_a_run_folder_that_cannot_be_made_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        Store(tmp_path / "file", keep=1)


@pytest.mark.parametrize(("counter", "ident"), [(EPOCH.counter + 1, 3), (EPOCH.counter, EPOCH.ident ^ 1)])
def test_whoever_has_been_taken_over_writes_nothing_more(tmp_path: Path, counter: int, ident: int) -> None:
    """The lock is lost, as on a shared disk: a successor, or a twin of the same counter, has written here meanwhile."""
    saved(tmp_path, make_cut(1, Epoch(EPOCH.counter - 1, 9)))
    old = Store(tmp_path, keep=2)
    old.load()
    (tmp_path / "syncer.lock").unlink()
    successor = make_cut(2, Epoch(counter, ident))
    saved(tmp_path, successor)
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(StoreError, match="a newer syncer runs this run") as told:
        old.write(make_cut(9))
    assert successor_in(told.value).counter == counter
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before
    old.close()
    assert same(load(tmp_path), successor)
