"""`zdiloco ledger verify`: what it prints, its exit codes, and one line where there is nothing to verify."""

import json
from pathlib import Path

import pytest

from tests.demo.finished import Finished
from zdiloco.cli.main import run
from zdiloco.core.ledger import FragmentRow
from zdiloco.rundir.counters import CounterFile, counters_path
from zdiloco.units import MemberKey


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The folder of a finished run, without a journal."""
    return Finished(tmp_path / "run").run_dir


def spoil(run_dir: Path) -> None:
    """A process of the past that counted one token too many in fragment 1."""
    file = CounterFile(run_dir, MemberKey("x", 7), 2)
    file.write(1, 10, [FragmentRow(unmerged=10 - index, dropped=0, lost=0, after=0) for index in range(2)])
    file.close()


def test_a_run_that_balances(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "verify", str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].startswith("run r: no syncer is at work here; the newest checkpoint holds 4 rounds")
    assert [line.split() for line in said.splitlines() if line.startswith(("b ", "all"))] == [
        ["b", "1", "dead,", "1", "left", "110", "70", "0", "20", "0", "20"],
        ["all", "4", "390", "330", "0", "20", "0", "40"],
    ]
    assert said.splitlines()[-2:] == [
        "the journal says the same of 0 of 2 fragments (there is no journal.jsonl)",
        "balanced: 8 accounts",
    ]


def test_what_does_not_balance_is_named(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(run_dir)
    assert run(["ledger", "verify", str(run_dir)]) == 1
    said = capsys.readouterr().out
    assert "x:0000000000000007 fragment 1: trained minus all fates is +1 tokens" in said
    assert said.splitlines()[-1] == "NOT BALANCED: 1 of 10 accounts"


def test_json_is_one_object(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(run_dir)
    assert run(["ledger", "verify", str(run_dir), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["balanced"], found["moves"], found["syncer_lives"], found["accounts"]) == (False, False, False, 10)
    assert found["gaps"] == {"x:0000000000000007 fragment 1": 1}
    assert {"trained", "merged", "unmerged", "lost", "dropped", "left"} == set(found["ledger"])
    assert found["learners"][-1] | {"fragments": 0, "lost": 0} == {
        "name": "x", "incarnation": "0000000000000007", "state": "dead", "steps": 1, "fragments": 0,
        "trained": 10.0, "merged": 0.0, "unmerged": 0.0, "lost": 0, "dropped": 0.0, "left": 0.0,
    }  # fmt: skip
    assert found["ledger_fragments"][1]["trained"] == 400


def test_a_learner_of_another_machine_is_asked_for(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = tmp_path / "far"
    far.mkdir()
    path = counters_path(run_dir, MemberKey("c", 13))
    path.rename(far / path.name)
    assert run(["ledger", "verify", str(run_dir)]) == 1
    assert "c:000000000000000d is merged and has no counter file here" in capsys.readouterr().out
    assert run(["ledger", "verify", str(run_dir), "--learners", str(far)]) == 0


def test_bad_input_is_one_line(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = counters_path(run_dir, MemberKey("c", 13))
    path.write_bytes(b"PK" + path.read_bytes()[2:])
    (tmp_path / "empty").mkdir()
    for place, says in (
        (run_dir, f"{path} is not a counter file of this version"),
        (tmp_path / "empty", "holds no checkpoint"),
        (tmp_path / "none", "there is no run folder"),
    ):
        assert run(["ledger", "verify", str(place)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line
