"""What tests of the command line share: a small run for real processes."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def small_run(tmp_path: Path, free_ports: Callable[[int], int]) -> Path:
    """A run.toml with a task that takes a moment: a little text, few tokens."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(200):
        (text / f"{number}.txt").write_text("a line of some text, and another one\n" * 40)
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
        [run]
        dir = "{tmp_path / "run"}"
        target_tokens = 1500
        [sync]
        sync_period = 4
        num_fragments = 3
        [task]
        data_dir = "{text}"
        min_data_bytes = 1000
        context = 16
        batch_size = 2
        num_shards = 2
        validation_batches = 1
        validation_batch_size = 2
        [net]
        port = {free_ports(4)}
        """
    )
    return path
