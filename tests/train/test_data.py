"""Same tree, same parts; nothing in two shards; a restored cursor walks on as if nothing had happened."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zdiloco.errors import ConfigError
from zdiloco.train.data import ShardCursor, load_corpus, validation_batches

TEXT = np.random.default_rng(5).integers(0, 256, 4000).astype(np.uint8)


def cursor(**changes: int) -> ShardCursor:
    keys = {"index": 0, "batch_size": 3, "context": 16, "seed": 7} | changes
    return ShardCursor(TEXT, **keys)


def test_standard_library_is_enough_text() -> None:
    corpus = load_corpus()
    assert len(corpus.train) + len(corpus.held_out) >= 5_000_000
    assert 0.02 < len(corpus.held_out) / len(corpus.train) < 0.2, "about a tenth; files differ from Python to Python"


def test_too_little_text_says_what_was_found_where(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("a" * 20_000)
    with pytest.raises(ConfigError, match=rf"0\.02 MB in 1 text files under {tmp_path}.* 5\.00 MB .*data_dir"):
        load_corpus(str(tmp_path))


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task.data_dir is .*nowhere., which is no folder"):
        load_corpus(str(tmp_path / "nowhere"))


def test_one_file_cannot_be_split(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("a" * 20_000)
    with pytest.raises(ConfigError, match="held-out part empty"):
        load_corpus(str(tmp_path), 1000)


def test_binary_hidden_and_skipped_files_stay_out(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"{number:04d}" * 10)
    clean = load_corpus(str(tmp_path), 100)
    (tmp_path / "picture").write_bytes(b"\x89\0\0\0")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "m.py").write_text("no")
    load_corpus.cache_clear()
    assert load_corpus(str(tmp_path), 100).digest == clean.digest


def test_split_depends_on_names_only_and_keeps_files_whole(texts: Path) -> None:
    corpus = load_corpus(str(texts), 1000)
    held = set(bytes(corpus.held_out).splitlines())
    trained = set(bytes(corpus.train).splitlines())
    assert len(held) + len(trained) == corpus.files == 120  # each file has one distinct line
    assert not held & trained
    load_corpus.cache_clear()
    again = load_corpus(str(texts), 1000)
    assert bytes(again.train) == bytes(corpus.train)
    assert again.digest == corpus.digest


@given(num_shards=st.integers(1, 9))
def test_shards_are_disjoint_and_complete(num_shards: int) -> None:
    corpus = load_corpus()
    parts = [corpus.shard(i, num_shards) for i in range(num_shards)]
    spans = [p.ctypes.data - corpus.train.ctypes.data for p in parts]
    assert spans == [sum(len(p) for p in parts[:i]) for i in range(num_shards)]
    assert sum(map(len, parts)) == len(corpus.train)


def test_shard_out_of_range(texts: Path) -> None:
    with pytest.raises(ConfigError, match=r"shard is 2, but task.num_shards is 2: allowed is 0 to 1"):
        load_corpus(str(texts), 1000).shard(2, 2)


@given(before=st.integers(0, 200), after=st.integers(1, 100))
def test_restored_cursor_goes_on_as_if_uninterrupted(before: int, after: int) -> None:
    walked = cursor()
    for _ in range(before):
        walked.next_batch()
    resumed = cursor()
    resumed.load_state_dict(json.loads(json.dumps(walked.state_dict())))
    for _ in range(after):
        assert torch.equal(walked.next_batch(), resumed.next_batch())
    assert walked.state_dict() == resumed.state_dict()


def test_no_window_comes_twice_in_an_epoch_and_epochs_differ() -> None:
    walk = cursor(batch_size=1)
    epochs: list[list[bytes]] = []
    while walk.epoch < 3:
        batch = walk.next_batch()
        assert batch.shape == (1, 17)
        assert batch.dtype == torch.int64
        if walk.epoch == len(epochs):
            epochs.append([])
        epochs[-1].append(batch.numpy().astype(np.uint8).tobytes())
    for seen in epochs[:3]:
        assert len(set(seen)) == len(seen)
    assert len(epochs[0]) == pytest.approx(len(TEXT) / 16, abs=2)
    assert epochs[0] != epochs[1]


def test_a_batch_may_span_two_epochs() -> None:
    walk = cursor(batch_size=200)
    first, second = walk.next_batch(), walk.next_batch()
    assert first.shape == second.shape == (200, 17)
    assert walk.epoch == 1


@pytest.mark.parametrize("change", [{"seed": 8}, {"index": 1}])
def test_seed_and_shard_change_the_order(change: dict[str, int]) -> None:
    assert not torch.equal(cursor().next_batch(), cursor(**change).next_batch())


def test_windows_are_bytes_of_the_shard() -> None:
    row = cursor().next_batch()[0].numpy().astype(np.uint8).tobytes()
    assert row in TEXT.tobytes()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 8}, "has seed 8, but this learner 7"),
        ({"epoch": -1}, "epoch -1"),
        ({"taken": 10_000}, "it is damaged"),
    ],
)
def test_foreign_or_damaged_state_is_refused(change: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        cursor().load_state_dict(cursor().state_dict() | change)


def test_shard_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds 20 bytes, but context 16 needs at least 33"):
        ShardCursor(TEXT[:20], index=0, batch_size=1, context=16, seed=0)


def test_validation_batches_are_fixed_and_apart() -> None:
    first, second = (validation_batches(TEXT, 4, 5, 16) for _ in range(2))
    assert [b.shape for b in first] == [(5, 17)] * 4
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    rows = {row.numpy().tobytes() for batch in first for row in batch}
    assert len(rows) == 20
    with pytest.raises(ConfigError, match="lower validation_batches"):
        validation_batches(TEXT, 100, 5, 16)
