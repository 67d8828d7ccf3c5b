"""The whole measurement, in a size that says nothing; and what is left of it when it is broken off."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ["alone", "beside_slow", "computing", "pause_kill_learner", "pause_stop_learner", "pause_kill_syncer"]
TINY = ["--steps", "60", "--parameters", "60000", "--times", "1", "--json"]
LIMIT_S = 550.0
"""On a quiet machine it takes 75 s."""


@contextmanager
def benching(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command with a temporary folder of its own; afterwards it has ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "zdiloco.cli", "bench", "overhead", *TINY],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children_of(folder: Path) -> list[int]:
    """The processes whose command line names this folder, other than this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.mark.net
@pytest.mark.proc
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_measurement_runs(tmp_path: Path) -> None:
    """Figures of so small a run on a busy machine are no claim; that they are there, and sound, is asked for."""
    with benching(tmp_path) as process:
        out, said = process.communicate(timeout=LIMIT_S)
    results = json.loads(out)["results"]
    assert [result["name"] for result in results] == NAMES, said
    assert process.returncode == int(not all(result["passed"] for result in results))
    for result in results:
        assert result["counts"] == (result["void"] == "")
        assert result["rounds"] > 10, result
        assert result["rounds_with_us"] > 0.2 * result["rounds"], result
        assert 20 < result["call_steps"] < 100, result
        assert result["ratio"] == pytest.approx(result["ours"] / result["reference"])
    assert results[1]["others_tokens"] > 0
    assert results[2]["bound"] is None
    assert [result["times"] for result in results[3:]] == [1, 1, 1]
    assert list(tmp_path.glob("zdiloco-*")) == []
    assert children_of(tmp_path) == []


@pytest.mark.net
@pytest.mark.proc
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    with benching(tmp_path) as process:
        ends, pause = time.monotonic() + 120.0, threading.Event()
        while len(children_of(tmp_path)) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < ends
            pause.wait(0.1)
        process.send_signal(number)
        process.communicate(timeout=120.0)
    assert process.returncode == 130
    assert children_of(tmp_path) == []
    assert list(tmp_path.glob("zdiloco-*")) == []
