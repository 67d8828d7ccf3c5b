"""`zdiloco report` and `zdiloco whatif`: what they print, and one line where there is nothing to print."""

import json
from pathlib import Path

import pytest

from zdiloco.cli.main import run
from zdiloco.core.params import SyncParams
from zdiloco.sim.recorded import RecordedWorld
from zdiloco.trace import FILE, write_trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with the journal of a short simulated run of two learners."""
    world = RecordedWorld(SyncParams(sync_period=8), 2)
    world.join("us-east-0", 0.05)
    world.join("b", 0.08)
    world.run(6.0)
    place = tmp_path_factory.mktemp("run")
    write_trace(place / FILE, world.told)
    return place


def test_a_run_is_told_in_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "rounds of" in lines[0]
    assert lines[1].startswith("goodput ")
    heads = [line.split()[0] for line in lines if line]
    assert {"staleness", "call", "grace", "close", "between", "learner", "us-east-0", "b"} <= set(heads)
    assert all(len(line) <= 130 for line in lines)


def test_json_is_one_object_and_the_chart_is_drawn(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "strip.svg"
    assert run(["report", str(folder / FILE), "--json", "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plot"] == str(picture)
    assert found["rounds"] > 10
    assert 0 < found["goodput"] <= 1
    assert [each["name"] for each in found["learners"]] == ["b", "us-east-0"]
    assert picture.read_bytes().startswith(b"<?xml")


def test_settings_are_compared_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["whatif", str(folder), "--min-quorum", "2", "--sync-period", "8,16"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["K", "gamma", "H", "rounds"]
    assert [row[:13].strip() for row in rows] == ["recorded", "decided again", "what if", "what if"]
    assert [row[13:].split()[:3] for row in rows] == [["1", "0.5", "8"]] * 2 + [["2", "0.5", "8"], ["2", "0.5", "16"]]
    assert run(["whatif", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [row["what"] for row in found] == ["recorded", "decided again"]
    assert found[0]["rounds"] == pytest.approx(found[1]["rounds"], abs=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "{empty}"], "holds no journal.jsonl"),
        (["report", "{empty}/nowhere"], "there is no "),
        (["report", "/dev/null"], "is empty"),
        (["report", "{foreign}"], "line 1 is no record of a trace"),
        (["report", "{run}", "--plot", "{empty}/a.gif"], "a.gif must be called *.png"),
        (["whatif", "{empty}"], "holds no journal.jsonl"),
        (["whatif", "{run}", "--min-quorum", "3"], "--min-quorum is 3, but only 2 learners are in this trace"),
        (["whatif", "{run}", "--gamma", "0,2"], "--gamma: sync.gamma is 2.0; allowed is 0 to 1"),
        (["whatif", "{run}", "--sync-period", "0"], "--sync-period: sync.sync_period is 0; allowed is 1 to"),
        (["whatif", "{run}", "--gamma", "1,1"], "--gamma names a value twice"),
    ],
)
def test_what_cannot_be_is_one_line_and_2(
    arguments: list[str], said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "foreign").write_text("hello\n")
    places = {"{empty}": str(tmp_path), "{foreign}": str(tmp_path / "foreign"), "{run}": str(folder)}
    for name, place in places.items():
        arguments = [each.replace(name, place) for each in arguments]
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert said in err


def test_without_matplotlib_one_line_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["report", str(folder), "--plot", "a.png"]) == 2
    assert "pip install 'zdiloco[plots]'" in capsys.readouterr().err
