"""`zdiloco simulate`: one JSON object or tables for people, and one line for what cannot be."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from zdiloco.cli.main import run
from zdiloco.sim import paper, picture, unequal

TABLES = ["paper", "heterogeneity", "scavenging"]


@pytest.fixture(autouse=True)
def short_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are whole, but the slowest one makes few steps."""
    monkeypatch.setattr(unequal, "STEPS", 96)


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert run(["simulate", *words, "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def test_one_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--chips", "100000", "--learners", "4", "--hours", "2", "--mtbi-hours", "500", "--seeds", "1,3")
    found = answer(capsys, *words)
    assert 0 < found["goodput_least"] < found["goodput"] < found["goodput_most"] < 100
    assert (found["chips"], found["learners"], found["seeds"], found["elastic"]) == (100_000, 4, [1, 3], True)
    assert len(found["constants"]) <= 4
    assert found == answer(capsys, *words)
    assert answer(capsys, *words, "--no-elastic")["goodput"] < found["goodput"]
    assert answer(capsys, *words, "--min-quorum", "4")["uptime"] < found["uptime"]
    assert run(["simulate", *words]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"^goodput +{found['goodput']:.2f}% ", said, re.MULTILINE)
    assert all(name in said for name in (*found["constants"], *found["assumptions"]))


def test_the_paper_table(capsys: pytest.CaptureFixture[str]) -> None:
    """So short a run need not be within the bounds: the exit code is the verdict that the answer holds."""
    words = ["simulate", "--table", "paper", "--hours", "0.1", "--seeds", "1-2"]
    code = run([*words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == int(bool(found["faults"]))
    assert len(found["cells"]) == 30
    assert all({"system", "chips", "goodput", "paper", "mark", "diff"} <= cell.keys() for cell in found["cells"])
    assert {shift["name"] for shift in found["sensitivity"]} == set(found["constants"])
    assert run(words) == code
    said = capsys.readouterr().out
    assert all(system.name in said for system in paper.SYSTEMS)
    assert all(name in said for name in found["constants"])
    assert all(fault in said for fault in found["faults"])


@pytest.mark.slow
def test_the_small_tables(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "--table", "heterogeneity", "--seeds", "1")["rows"]
    assert [row["paper"] for row in rows] == [84, 100, 100, None]
    assert run(["simulate", "--table", "heterogeneity", "--seeds", "1"]) == 0
    assert "lockstep is a model of training that waits" in capsys.readouterr().out
    rows = answer(capsys, "--table", "scavenging", "--hours", "3", "--seeds", "1")["rows"]
    assert [row["extra"] for row in rows] == [0, 25, 50, 100, 300]
    assert run(["simulate", "--table", "scavenging", "--hours", "3", "--seeds", "1"]) == 0
    assert "+300%" in capsys.readouterr().out


BAD = [
    (["--chips", "0"], "--chips is 0; allowed is 1 to 1e+09"),
    (["--chips", "-7"], "--chips is -7; allowed is 1 to 1e+09"),
    (["--chips", "many"], "Invalid value for '--chips': 'many' is not a valid integer."),
    (["--learners", "9", "--chips", "8"], "--learners is 9, but there are only 8 chips for them"),
    (["--learners", "4", "--min-quorum", "5"], "--min-quorum is 5; allowed is 1 to 4, the learners"),
    (["--mtbi-hours", "-1"], "--mtbi-hours is -1.0; allowed is 0.001 to 1e+12"),
    (["--mtbi-hours", "nan"], "--mtbi-hours is nan; allowed is 0.001 to 1e+12"),
    (["--hours", "0"], "--hours is 0.0; allowed is 0.001 to 1e+06"),
    (["--hours", "inf"], "--hours is inf; allowed is 0.001 to 1e+06"),
    (["--step-time", "-0.5"], "--step-time is -0.5; allowed is 0.001 to 100,000"),
    (["--step-time", "7200", "--hours", "1"], "--step-time is 7200 s, longer than the 1 hours of --hours"),
    (["--slice-chips", "0"], "--slice-chips is 0; allowed is 1 to 1e+06"),
    (["--mtbi-hours", "0.01"], "that makes 2.88e+09 failures; allowed are 5,000,000: fewer --hours?"),
    (["--table", "a"], "Invalid value for '--table': 'a' is not one of 'paper', 'heterogeneity', 'scavenging'."),
    (["--table", "paper", "--chips", "5"], "--chips does not go with --table paper."),
    (["--table", "paper", "--no-elastic"], "--no-elastic does not go with --table paper."),
    (["--table", "scavenging", "--sensitivity"], "--sensitivity does not go with --table scavenging."),
    (["--table", "heterogeneity", "--hours", "3"], "--hours does not go with --table heterogeneity."),
    (["--table", "heterogeneity", "--step-time", "500"], "--step-time is 500; allowed for this table is 0.1 to 100"),
    (["--table", "paper", "--hours", "1e6"], "that makes 2.74e+08 failures; allowed are 5,000,000: fewer --hours?"),
    (["--sensitivity"], "--sensitivity goes with --table paper."),
    (["--seeds", "1,2,1"], "--seeds is '1,2,1': 1 comes twice, and would count twice"),
    (["--seeds", "1-3,2"], "--seeds is '1-3,2': 2 comes twice, and would count twice"),
    (["--seeds", ""], "--seeds is ''; write numbers such as 7, 1,2,9 or 1-5"),
    (["--seeds", "x"], "--seeds is 'x'; write numbers such as 7, 1,2,9 or 1-5"),
    (["--seeds", "5-1"], "--seeds is '5-1'; write numbers such as 7, 1,2,9 or 1-5"),
    (["--seeds", "-1"], "--seeds is '-1'; write numbers such as 7, 1,2,9 or 1-5"),
    (["--seeds", "1-100000"], "--seeds is '1-100000'; allowed are 1000 at most"),
    (["again"], "Got unexpected extra argument (again)"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says"), BAD, ids=[" ".join(words) or "-" for words, _ in BAD])
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_what_cannot_be_is_one_line_and_2(
    words: list[str], says: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *words, *more]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == f"zdiloco: {says}"
    assert len(said.err.splitlines()) <= 2  # the second says where help is


def test_a_picture_that_cannot_be_written_is_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    (tmp_path / "folder.png").mkdir()
    for name, why in (("folder.png", "Is a directory"), ("none/a.png", "No such file or directory")):
        path = tmp_path / name
        assert run(["simulate", "--plot", str(path)]) == 2
        assert capsys.readouterr().err == f"zdiloco: --plot {path}: cannot be written ({why})\n"
    picture.check_path(tmp_path / "new.png")
    assert [each.name for each in tmp_path.iterdir()] == ["folder.png"]
    assert run(["simulate", "--plot", str(tmp_path / "a.gif")]) == 2
    assert "a.gif must be called" in capsys.readouterr().err


def test_without_matplotlib_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(["simulate", "--plot", str(tmp_path / "a.png")]) == 2
    assert "zdiloco[plots]" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--hours", "1"], *(["--table", table] for table in TABLES)], ids=["fleet", *TABLES])
def test_pictures_are_drawn(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--hours", "1"] if words[-1] in ("paper", "scavenging") else []
    path = tmp_path / "a.png"
    assert run(["simulate", *words, *short, "--seeds", "1", "--plot", str(path)]) in (0, 1)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.splitlines()[-1] == f"picture {path}"
