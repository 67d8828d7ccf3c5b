"""`zdiloco demo`: standard output holds the report and nothing else; the exit code is its verdict."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.demo.finished import Finished
from zdiloco.cli import signals
from zdiloco.cli.main import run
from zdiloco.demo import report as reports
from zdiloco.demo import show
from zdiloco.demo.checks import Check, Lone
from zdiloco.demo.outcome import Outcome
from zdiloco.demo.processes import DemoFailed
from zdiloco.demo.report import Report
from zdiloco.demo.story import MIN_TOKENS, TARGET_TOKENS, Plot
from zdiloco.train.baseline import Baseline, Point, curve


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """What the demo would find; `perform` returns it at once, and signals stay as they are."""
    finished = Finished(tmp_path / "run")
    outcome = Outcome(loss_before=5.5, loss_after=1.5, lone=Lone(steps=20, loss=1.6, noise=0.01), remarks=())
    monkeypatch.setattr(reports, "judge", lambda *_: outcome)
    monkeypatch.setattr(signals, "interrupt_on_any", lambda: None)
    return reports.gather(finished.story, finished.rounds)


def plays(monkeypatch: pytest.MonkeyPatch, found: Report) -> list[tuple[Path, Plot]]:
    asked: list[tuple[Path, Plot]] = []

    def perform(run_dir: Path, plot: Plot) -> Report:
        asked.append((run_dir, plot))
        return found

    monkeypatch.setattr(show, "perform", perform)
    return asked


def test_json_is_one_object(report: Report, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = plays(monkeypatch, report)
    assert run(["demo", "--json", "--dir", "somewhere", "--tokens", "400000"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(report.to_obj()))
    assert asked == [(Path("somewhere").absolute(), Plot(target_tokens=400_000))]


def test_text_for_people_in_a_folder_of_its_own(
    report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = plays(monkeypatch, report)
    assert run(["demo"]) == 0
    assert "picture " in capsys.readouterr().out
    folder, plot = asked[0]
    assert plot == Plot(target_tokens=TARGET_TOKENS)
    assert list(folder.iterdir()) == []
    folder.rmdir()


def test_a_claim_that_does_not_hold_is_exit_code_1(
    report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Check(name="a claim", passed=False, figure="a figure")
    plays(monkeypatch, replace(report, checks=(*report.checks, failed)))
    assert run(["demo", "--dir", "somewhere"]) == 1
    assert "FAILED      a claim: a figure" in capsys.readouterr().out
    assert run(["demo", "--dir", "somewhere", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_a_claim_that_cannot_be_judged_is_no_failure(
    report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unsaid = Check(name="a claim", passed=None, figure="why not")
    outcome = Outcome(loss_before=5.5, loss_after=1.5, lone=None, why_no_lone="too short")
    plays(monkeypatch, replace(report, checks=(*report.checks, unsaid), outcome=outcome))
    assert run(["demo", "--dir", "somewhere"]) == 0
    said = capsys.readouterr().out
    assert "not judged  a claim: why not" in said
    assert "1 of 7 claims could not be judged" in said
    assert "one learner alone: not judged" in said
    assert run(["demo", "--dir", "somewhere", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["lone"], found["checks"][-1]["passed"]) == (True, None, None)


def test_too_few_tokens_are_one_line_and_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signals, "interrupt_on_any", lambda: None)
    for tokens in ("20000", "0"):
        assert run(["demo", "--tokens", tokens]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"zdiloco: --tokens is {int(tokens):,}; allowed is 400,000 to 10^12")
        assert said.count("\n") == 1
    assert run(["demo", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"at least {MIN_TOKENS:,}" in text
    assert f"[default: {TARGET_TOKENS:,}]" in text


def test_a_story_that_went_wrong_shows_the_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def perform(run_dir: Path, plot: Plot) -> Report:
        raise DemoFailed("a ended with code 1; the logs are in x", "--- x/a.log\nlast words")

    monkeypatch.setattr(signals, "interrupt_on_any", lambda: None)
    monkeypatch.setattr(show, "perform", perform)
    assert run(["demo", "--dir", "somewhere", "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "--- x/a.log\nlast words\nzdiloco: a ended with code 1; the logs are in x\n"


def test_a_baseline_is_measured_printed_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = (Point(steps=10, losses=(3.0, 3.2)), Point(steps=20, losses=(2.0, 2.2)))
    made = Baseline(settings={}, corpus="3 files", corpus_digest="abc", made_with="it", seeds=(0, 1), points=points)

    def measure(params: object, *, progress: Any) -> Baseline:
        progress(30, 60)
        return made

    monkeypatch.setattr("zdiloco.demo.measuring.measure", measure)
    path = tmp_path / "curve.json"
    assert run(["demo", "--measure-baseline", "--out", str(path)]) == 0
    said = capsys.readouterr()
    assert "30 of 60 steps" in said.err
    assert "3.1000" in said.out
    assert curve(path) == made
    assert run(["demo", "--measure-baseline", "--out", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"][1]["loss"] == pytest.approx(2.1)
