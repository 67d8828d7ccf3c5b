"""The journal read while it grows: whole lines only, torn ones passed over, whose work was merged when."""

import json
from pathlib import Path
from typing import Any

import pytest

from zdiloco.chaos.chronicle import Chronicle


class Written:
    """A journal that is written bit by bit."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.jsonl"

    def line(self, t: float, kind: str, **more: Any) -> None:
        self.raw(json.dumps({"t": t, "kind": kind, **more}) + "\n")

    def raw(self, text: str) -> None:
        with self._path.open("a") as file:
            file.write(text)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def merge(name: str, incarnation: str) -> dict[str, Any]:
    return {"members": [[name, incarnation, 8, 100, 1, 0]]}


def test_before_there_is_a_journal(tmp_path: Path) -> None:
    chronicle = Chronicle(tmp_path)
    chronicle.look()
    assert len(chronicle.merges) == 0


def test_only_the_newest_process_of_a_name_counts(written: Written, tmp_path: Path) -> None:
    chronicle = Chronicle(tmp_path)
    written.line(1.0, "joined", who="a", incarnation="1")
    written.line(2.0, "merge", **merge("a", "1"))
    chronicle.look()
    assert chronicle.merged_of("a", since=1.5, started_at=0.5) == 2.0
    assert chronicle.merged_of("a", since=2.5, started_at=0.5) is None
    assert chronicle.merged_of("b", since=0.0, started_at=0.0) is None
    written.line(3.0, "merge", **merge("a", "1"))
    chronicle.look()
    assert chronicle.merged_of("a", since=2.5, started_at=2.6) is None, "its work, but of the process before"
    written.line(4.0, "joined", who="a", incarnation="2")
    written.line(5.0, "merge", **merge("a", "1"))
    written.line(6.0, "merge", **merge("a", "2"))
    chronicle.look()
    assert chronicle.merged_of("a", since=2.5, started_at=2.6) == 6.0


def test_half_a_line_waits_and_a_torn_one_is_passed_over(written: Written, tmp_path: Path) -> None:
    chronicle = Chronicle(tmp_path)
    text = json.dumps({"t": 1.0, "kind": "merge", **merge("a", "1")})
    written.raw(text[:20])
    chronicle.look()
    assert len(chronicle.merges) == 0
    written.raw(text[20:] + '\n{"t": 2.0, "kind": "me\n')
    written.line(3.0, "merge", **merge("a", "1"))
    chronicle.look()
    assert chronicle.merges.times == [1.0, 3.0]
    assert chronicle.merges.first(1.0) == 3.0


def test_the_newest_within_a_time(written: Written, tmp_path: Path) -> None:
    chronicle = Chronicle(tmp_path)
    for t in (1.0, 2.0, 3.0):
        written.line(t, "joined", who="a", incarnation=str(t))
    chronicle.look()
    joined = chronicle.joined["a"]
    for since, until, wanted in ((0.0, 2.5, 2.0), (2.0, 2.5, None), (0.0, 0.5, None), (2.5, 9.0, 3.0)):
        found = joined.newest(since, until)
        assert (found.t if found else None) == wanted
