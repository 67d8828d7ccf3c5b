"""A small folder of text, and a task that learns from it in a blink."""

from pathlib import Path

import pytest

from zdiloco.train.params import TaskParams


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 120 files, each full of lines that no other file has; about 0.4 MB."""
    root = tmp_path_factory.mktemp("texts")
    for number in range(120):
        folder = root / f"part{number % 4}"
        folder.mkdir(exist_ok=True)
        (folder / f"file{number:03d}.txt").write_text(f"file {number:03d} counts its own lines\n" * 110)
    return root


@pytest.fixture
def params(texts: Path) -> TaskParams:
    """A tiny task over `texts`: batches of 4 x 32 bytes, two shards."""
    return TaskParams(
        data_dir=str(texts), min_data_bytes=1000, batch_size=4, context=32, num_shards=2,
        validation_batches=2, validation_batch_size=4, rejoin_warmup_steps=2,
    )  # fmt: skip
