"""Every check has a reason and a fix; the table of docs/doctor.md is this one."""

import re
import string
from pathlib import Path

import pytest

from zdiloco.doctor.finding import CHECKS, Measured, Side, Verdict, found, graded, unknown

DOCUMENT = Path(__file__).parents[2] / "docs" / "doctor.md"
HEAD = "| check | what is looked at | why it matters | what mends it |"


def names_in(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def shown(text: str) -> str:
    """A template as the document shows it: its names in capitals."""
    return text.format(**{name: name.upper() for name in names_in(text)})


def test_the_table_of_the_document_is_that_of_the_code() -> None:
    block = DOCUMENT.read_text().partition(HEAD)[2].partition("\n\n")[0]
    rows = [tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in block.strip().splitlines()[1:]]
    wanted = [(name, check.asks, shown(check.why), f"`{shown(check.fix)}`") for name, check in CHECKS.items()]
    assert rows == wanted


def test_a_wrong_table_would_be_seen() -> None:
    assert shown("--set {key}={value}") == "--set KEY=VALUE"
    assert len(re.findall(r"^\| \w", DOCUMENT.read_text(), re.MULTILINE)) >= len(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_a_bad_finding_says_why_and_what_to_type(name: str) -> None:
    names = dict.fromkeys(names_in(CHECKS[name].fix) | names_in(CHECKS[name].why), "7")
    finding = found(name, Side.HERE, Verdict.FAIL, Measured(said="x", value=1.0, unit="s"), **names)
    assert finding.why
    assert finding.fix
    assert "{" not in finding.why + finding.fix
    good = found(name, Side.HERE, Verdict.OK, Measured(said="x"))
    assert (good.why, good.fix, unknown(name, Side.THERE, "x").verdict) == ("", "", Verdict.UNKNOWN)


def test_more_is_better() -> None:
    assert [graded(value, 2.0, 1.0) for value in (0.5, 1.0, 1.5, 2.0)] == [
        Verdict.FAIL, Verdict.WARN, Verdict.WARN, Verdict.OK,
    ]  # fmt: skip
