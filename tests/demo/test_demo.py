"""A real demo, shorter than the shipped one: real processes, a real kill, and the report that tools read."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zdiloco
from zdiloco.goodput import figures_of
from zdiloco.trace import read_trace
from zdiloco.whatif.compare import Grid, compare

ROOT = Path(zdiloco.__file__).parent.parent
pytestmark = [pytest.mark.proc, pytest.mark.slow]
LIMIT_S = 350.0
CERTAIN = {
    "the merged model has learned",
    "survivors were merged after the kill of b",
    "b was merged after its return",
    "the ledger balances",
}
"""Claims that hold however short the run and however busy the machine; the two others are the full demo's."""


def demo(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "zdiloco.cli", "demo", *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.timeout(400)
def test_a_short_demo_reports_what_it_did(tmp_path: Path) -> None:
    run_dir = tmp_path / "demo"
    process = demo("--json", "--tokens", "450000", "--dir", str(run_dir))
    out, err = process.communicate(timeout=LIMIT_S)
    report = json.loads(out)
    failed = {check["name"]: check["figure"] for check in report["checks"] if check["passed"] is False}
    assert process.returncode == (1 if failed else 0), err
    assert not failed.keys() & CERTAIN, failed
    assert all(check["passed"] for check in report["checks"] if check["name"] in CERTAIN)
    assert len(report["checks"]) == 6
    assert report["loss_after"] < 2.4 < 5 < report["loss_before"]
    ledger = report["ledger"]
    terms = [ledger[word] for word in ("merged", "unmerged", "lost", "dropped", "left")]
    assert ledger["trained"] == pytest.approx(sum(terms), abs=1)
    assert ledger["merged"] >= 450_000
    assert 0.5 < report["goodput"] <= 1
    assert report["times_fewer"] > 10
    fates = {(row["name"], row["fate"]) for row in report["learners"]}
    assert fates == {("a", "finished"), ("b", "killed"), ("b", "returned"), ("c", "finished")}
    assert report["run_dir"] == str(run_dir)
    assert Path(report["picture"]).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (run_dir / "strip.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert_the_trace_says_the_same(run_dir, report)
    assert "killed b (SIGKILL)" in err
    assert "started b again" in err


def assert_the_trace_says_the_same(run_dir: Path, report: dict[str, Any]) -> None:
    """What the syncer saw, against the books of all processes; and decided again it is nearly the same run."""
    recorded, again = (row.figures for row in compare(read_trace(run_dir), Grid()))
    found = figures_of(read_trace(run_dir))
    assert found.rounds == report["rounds"]
    assert found.goodput == pytest.approx(report["goodput"], abs=0.05)
    assert {each.name: each.processes for each in found.learners} == {"a": 1, "b": 2, "c": 1}
    missed = found.learners[1]  # its successor may come a moment before it is taken for gone
    assert missed.dead_s > 0 or missed.stalled_s > 3.0
    assert again.rounds == pytest.approx(recorded.rounds, rel=0.15)
    assert again.participation == pytest.approx(recorded.participation, abs=0.15)
    assert again.goodput == pytest.approx(recorded.goodput, abs=0.15)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nobody_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = demo("--dir", str(tmp_path / "demo"))
    assert process.stderr is not None
    assert "started a syncer and a, b, c" in process.stderr.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "zdiloco: interrupted"
    listed = subprocess.run(["ps", "-A", "-o", "args"], capture_output=True, text=True, check=True, timeout=30).stdout
    assert str(tmp_path / "demo") not in listed
