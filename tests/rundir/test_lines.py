"""Lines of JSON that a kill or a full disk has cut are passed over, and so is what is no object."""

from pathlib import Path

import pytest

from zdiloco.errors import StoreError
from zdiloco.rundir.lines import read_lines


def test_whole_objects_are_read_and_everything_else_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    deep = b"[" * 100_000
    path.write_bytes(b'{"a": 1}\n{"a": \n7\n[2]\n\n' + deep + b'\n{"a": 2}\n{"a": "\xc3')
    assert list(read_lines(path, "notes")) == [{"a": 1}, {"a": 2}]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^cannot read the notes .*nowhere: No such file or directory$"):
        list(read_lines(tmp_path / "nowhere", "notes"))
