"""docs/cases.md stays true: each case that fits one machine names tests that exist, and they name it."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
TABLE = ROOT / "docs" / "cases.md"
A = (1, 2, 3, 5, 7, 8, 9, 11, 13, 15, 17, 19, 21, 23)
B = (25, 27, 29, 31, 33, 35)
C = (37, 39, 41, 43, 45, 46, 47, 49, 51, 53, 55)
D = (57, 59, 61, 62, 63, 64, 65, 67, 69, 71)
E = (73, 75, 77, 79, 81, 83, 85, 87, 89, 91, 93)
SECTIONS = {"A": A, "B": B, "C": C, "D": D, "E": E}
ALL = [f"{section}-{number}" for section, numbers in SECTIONS.items() for number in numbers]
NOT_HERE = {"C-53": "not on one machine", "E-93": "not on one machine"}
"""Cases that one machine without a GPU cannot show."""


def rows_of(text: str) -> dict[str, str]:
    """The last cell of each row of the table, by case."""
    found = re.findall(r"^\| ([A-Z]-\d+) \|[^|]+\|[^|]+\| ([^|]+) \|$", text, re.MULTILINE)
    assert len(dict(found)) == len(found), "a case has two rows"
    return dict(found)


def faults_of(case: str, cell: str) -> list[str]:
    """What is wrong with the tests that a row names."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)
    return [f"{case}: no test is named"] * (not named) + [
        f"{case}: {path}::{name} does not name it" for path, name in named if not _names(ROOT / path, name, case)
    ]


def _names(path: pathlib.Path, name: str, case: str) -> bool:
    if not path.is_file():
        return False
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    docs = [ast.get_docstring(function) or "" for function in functions if function.name == name]
    return any(re.search(rf"\b{case}\b", doc) for doc in docs)


def test_every_case_has_its_row() -> None:
    assert list(rows_of(TABLE.read_text())) == ALL


def test_every_case_has_tests_that_name_it() -> None:
    rows = rows_of(TABLE.read_text())
    faults = [fault for case, cell in rows.items() if "::" in cell for fault in faults_of(case, cell)]
    assert faults == []
    without = {case: cell for case, cell in rows.items() if "::" not in cell}
    assert without == NOT_HERE


def test_a_wrong_row_is_seen() -> None:
    assert faults_of("A-1", "words") == ["A-1: no test is named"]
    for place in (
        "tests/none.py::test_none",
        "tests/test_cases.py::test_none",
        "tests/test_cases.py::test_a_wrong_row",
    ):
        assert faults_of("A-1", f"`{place}`") == [f"A-1: {place} does not name it"]
    cell = "`tests/core/test_weights.py::test_impossible_counters_are_named`"
    assert (faults_of("C-46", cell), len(faults_of("C-4", cell))) == ([], 1)
