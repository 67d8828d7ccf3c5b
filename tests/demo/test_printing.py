"""The printed report shows every learner, every check with its verdict, and where things lie."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.demo.finished import Finished
from zdiloco.demo import report as reports
from zdiloco.demo.checks import Check
from zdiloco.demo.outcome import Outcome
from zdiloco.demo.printing import COLUMNS, WIDTH, print_report


def test_it_prints_what_was_found(finished: Finished, outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "judge", lambda *_: outcome)
    report = reports.gather(finished.story, finished.rounds)
    failed = Check(name="a claim", passed=False, figure="a figure")
    out = io.StringIO()
    print_report(replace(report, checks=(*report.checks, failed)), Console(file=out, width=WIDTH))
    text = out.getvalue()
    lines = text.splitlines()
    assert [word for word in COLUMNS if word not in lines[0]] == []
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["a", "finished", "20"], ["b", "killed", "6"], ["b", "returned", "5"], ["c", "finished", "8"],
    ]  # fmt: skip
    assert "FAILED      a claim: a figure" in lines
    assert sum(line.startswith("ok ") for line in lines) == 6
    assert "trained 390 = merged 330 + unmerged 0 + lost 20 + dropped 0 + left 40" in text
    assert "note        a remark" in lines
    assert "one learner alone: 1.600 ± 0.010 in 20 steps" in text
    assert "not judged" not in text
    assert f"picture {finished.run_dir / 'demo.png'}" in lines
    assert "…" not in text
