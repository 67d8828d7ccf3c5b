"""docs/attacks.md stays true: each attack names tests that exist and name it, and most of them act on processes."""

import re

from tests.test_cases import ROOT, faults_of

TABLE = ROOT / "docs" / "attacks.md"
ON_PROCESSES = ("tests/accept/", "tests/chaos/", "tests/hostile/test_processes.py", "tests/hostile/test_hang_up.py")
LEAST_ROWS = 30


def rows_of(text: str) -> dict[str, str]:
    """The last cell of each row of the table, by attack."""
    found = re.findall(r"^\| ([KWPMF]-\d+) \|[^|]+\|[^|]+\| ([^|]+) \|$", text, re.MULTILINE)
    assert len(dict(found)) == len(found), "an attack has two rows"
    return dict(found)


def named_in(text: str) -> set[tuple[str, str]]:
    """Every test that is named, by file and name."""
    return set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text))


def share_on_processes(text: str) -> float:
    """Which part of the tests acts on live processes."""
    named = named_in(text)
    return sum(path.startswith(ON_PROCESSES) for path, _ in named) / len(named)


def test_every_attack_has_tests_that_name_it() -> None:
    text = TABLE.read_text()
    rows = rows_of(text)
    assert len(rows) == len(re.findall(r"^\| [KWPMF]-", text, re.MULTILINE)), "a row that is not read"
    assert len(rows) >= LEAST_ROWS
    assert [fault for attack, cell in rows.items() for fault in faults_of(attack, cell)] == []


def test_attacks_are_numbered_in_order() -> None:
    rows = list(rows_of(TABLE.read_text()))
    for kind in "KWPMF":
        of_kind = [row for row in rows if row.startswith(kind)]
        assert of_kind == [f"{kind}-{number}" for number in range(1, len(of_kind) + 1)]


def test_most_of_them_act_on_processes() -> None:
    assert share_on_processes(TABLE.read_text()) >= 0.5


def test_a_wrong_row_is_seen() -> None:
    assert faults_of("K-1", "words") == ["K-1: no test is named"]
    place = "tests/accept/test_attacks_outside.py::test_no_key"
    assert faults_of("K-1", f"`{place}`") == []
    assert faults_of("K-2", f"`{place}`") == [f"K-2: {place} does not name it"]
    assert share_on_processes(f"`{place}` `tests/core/test_start.py::test_nothing`") == 0.5
