"""The glossary: each name of it is a name of the code, and no word of its last column has crept in beside it."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def entries() -> list[tuple[str, ...]]:
    """Name, symbol, meaning, what it is not."""
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines if line.startswith("| `")]
    return [(row[0].strip("`"), *row[1:]) for row in rows]


def source() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "zdiloco").rglob("*.py")))


def test_every_row_is_read() -> None:
    names = [name for name, *_ in entries()]
    assert len(names) == len(set(names)) > 30, "one meaning each"
    for row in entries():
        assert len(row) == 4, row
        assert row[2], f"{row[0]} means nothing"


def test_each_name_occurs_in_the_package() -> None:
    words = set(re.findall(r"\w+", source()))
    assert [name for name, *_ in entries() if name not in words] == []


NOT_AT_ALL = ("min_replicas", "world_size", "sync_every", "parameter server", "pseudo-gradient", "local step")


@pytest.mark.parametrize("word", NOT_AT_ALL)
def test_names_of_others_for_the_same_do_not_occur(word: str) -> None:
    assert word not in source().lower()
