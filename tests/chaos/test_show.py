"""`zdiloco demo --chaos`: what it is told, what it tells, its picture, and a real run of a minute."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.finished import report_of
from zdiloco.chaos import picture, show
from zdiloco.chaos.picture import Scene, draw
from zdiloco.chaos.script import SYNCER, Kind
from zdiloco.chaos.show import Plot, lines_of
from zdiloco.cli import signals
from zdiloco.cli.main import run
from zdiloco.demo.learner_log import Notes
from zdiloco.demo.processes import DemoFailed
from zdiloco.errors import ConfigError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Plot]]:
    """What the command asks for; the run is over at once, and holds or not by its seed."""
    found: list[tuple[Path, Plot]] = []

    def perform(folder: Path, plot: Plot, tell: show.Tell) -> show.Report:
        found.append((folder, plot))
        tell("something happens")
        if plot.seed == 13:
            raise DemoFailed("it went wrong", "the logs")
        return replace(report_of(folder, passed=plot.seed != 5), plot=plot)

    monkeypatch.setattr(show, "perform", perform)
    monkeypatch.setattr(signals, "interrupt_on_any", lambda: None)
    return found


def test_the_command_asks_for_a_run_and_exits_by_its_verdict(
    asked: list[tuple[Path, Plot]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--chaos", "--dir", "somewhere"]) == 0
    assert run(["demo", "--chaos", "--dir", "somewhere", "--minutes", "2", "--seed", "5"]) == 1
    here = Path("somewhere").absolute()
    assert asked == [(here, Plot()), (here, Plot(minutes=2.0, seed=5))]
    told = capsys.readouterr()
    assert told.err == "something happens\n" * 2
    assert "holds       a claim: a figure" in told.out
    assert "FAILED      a claim: a figure" in told.out
    assert "killed learners merged again: 1 times, median / p90 / max in s: all 0.75" in told.out


def test_json_is_one_object(asked: list[tuple[Path, Plot]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--chaos", "--json", "--dir", "somewhere"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] is True
    assert told["ledger"]["merged"] == 90.0
    assert len(told["disturbances"]) == len(Kind)
    assert told["returns"] == [{"who": "a", "seconds": 0.75, "phases": {"is welcome": 0.25, "is merged": 0.5}}]
    assert told["picture"].endswith("chaos.png")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--chaos", "--tokens", "500000"], "--tokens belongs to the demo without --chaos"),
        (["--minutes", "2"], "--minutes and --seed belong to --chaos"),
        (["--seed", "2"], "--minutes and --seed belong to --chaos"),
        (["--chaos", "--minutes", "0.1"], "--minutes is 0.1; allowed is 0.5 to 1440"),
        (["--chaos", "--minutes", "nan"], "--minutes is nan; allowed is 0.5 to 1440"),
    ],
)
def test_words_that_do_not_fit(
    words: list[str], says: str, asked: list[tuple[Path, Plot]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", *words]) == 2
    assert says in capsys.readouterr().err
    assert asked == []


def test_a_run_that_went_wrong_shows_the_logs(
    asked: list[tuple[Path, Plot]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--chaos", "--seed", "13", "--dir", "somewhere"]) == 1
    assert "the logs" in capsys.readouterr().err


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigError, match="is not empty"):
        show.perform(tmp_path, Plot(), lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_the_picture_shows_every_kind(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    hues = [picture._hue(kind) for kind in Kind]
    assert set(hues) == set(picture.HUES)
    notes = Notes(name="a", incarnation="1", joined_at=0.0, wall_offset=0.0, ended_at=9.0)
    notes.loss = [(1.0, 0.0, 4.0), (2.0, 0.0, 3.0)]
    scene = Scene(
        names=("a", "b"), notes=[notes], lives=[(SYNCER, 0.0, 60.0), ("a", 0.0, 9.0), ("b", 1.0, 60.0)],
        done=report.done, merged_at=[1.0, 2.0, 2.5], began_at=0.0, ended_at=60.0, loss_after=2.5, seed=4,
    )  # fmt: skip
    path = draw(scene, tmp_path / "chaos.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_lines_for_people_name_what_is_missing(tmp_path: Path) -> None:
    text = "\n".join(lines_of(replace(report_of(tmp_path), returns=())))
    assert "14 disturbances in 42 s, 300 rounds; seed 4" in text
    assert "killed syncers merged again: none" in text


@pytest.mark.net
@pytest.mark.proc
@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_a_minute_of_chaos(tmp_path: Path, capfd: pytest.CaptureFixture[str], say, monkeypatch) -> None:
    """Without root, from nothing: it is told, judged and drawn. How long `step()` took, a busy machine decides."""
    monkeypatch.setattr(signals, "interrupt_on_any", lambda: None)
    run(["demo", "--chaos", "--minutes", "1", "--seed", "3", "--json", "--dir", str(tmp_path / "chaos")])
    out, err = capfd.readouterr()
    told = json.loads(out)
    for check in told["checks"]:
        say(f"{check['passed']!s:<6}{check['name']}: {check['figure']}")
    failed = [check for check in told["checks"] if check["passed"] is False]
    assert [check for check in failed if not check["name"].startswith("step()")] == [], err
    assert len(told["disturbances"]) >= 4
    assert all(each["what"] in err for each in told["disturbances"])
    assert told["loss_after"] < told["loss_before"]
    assert Path(told["picture"]).stat().st_size > 10_000
    assert told["ledger"]["trained"] > 0
