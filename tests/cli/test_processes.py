"""The commands as processes: a whole small run, and how each leaves when it is asked to."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import zdiloco
from tests.accept.pace import assert_within
from zdiloco.config import load
from zdiloco.demo.learner_log import read_notes
from zdiloco.errors import LinkError
from zdiloco.node.query import Query
from zdiloco.rundir.books import read_books, read_cut
from zdiloco.rundir.journal import read_journal
from zdiloco.tensor.layout import Layout

pytestmark = pytest.mark.proc
ROOT = Path(zdiloco.__file__).parent.parent
LIMIT_S = 120.0
Process = subprocess.Popen[str]


class Processes:
    """Starts commands; ends what is left of them with the test."""

    def __init__(self) -> None:
        self.started: list[Process] = []

    def start(self, *arguments: str) -> Process:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        process = subprocess.Popen(
            [sys.executable, "-m", "zdiloco.cli", *arguments], text=True, stderr=subprocess.PIPE, env=environment
        )
        self.started.append(process)
        return process


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def said_until(process: Process, text: str) -> str:
    """Read what a process says until it says this; returns all of it. A process that ends is at its end."""
    said = ""
    alarm = threading.Timer(LIMIT_S, process.kill)
    alarm.start()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            said += line
            if text in line:
                return said
    finally:
        alarm.cancel()
        alarm.join()
    raise AssertionError(f"{text!r} was never said:\n{said}")


def ended(process: Process) -> tuple[int, str]:
    _, said = process.communicate(timeout=LIMIT_S)
    return process.returncode, said


def test_a_run_reaches_its_target_and_everybody_ends_with_0(small_run: Path, processes: Processes) -> None:
    started = [processes.start("sync", str(small_run), "--set", "sync.min_quorum=2")]  # or one is done before the other
    started += [processes.start("learner", str(small_run), "--name", name, "--shard", "0") for name in ("x", "y")]
    for process in started:
        code, said = ended(process)
        assert code == 0, said
        assert "Traceback" not in said
    run_dir = load(small_run).run.path
    cut = read_cut(run_dir)
    books = read_books(run_dir, cut, Layout.from_obj(dict(cut.layout)).shares)
    assert books.total.merged >= 1500
    assert not any(books.gaps.values())
    notes = [read_notes(path) for path in sorted((run_dir / "learners").glob("*.jsonl"))]
    assert [(n.name, n.end_reason) for n in notes] == [("x", "the target is reached"), ("y", "the target is reached")]
    uncounted = [n.steps - process.steps for n, process in zip(notes, books.processes, strict=True)]
    assert set(uncounted) <= {0, 1}  # a step during whose last moment the run has ended
    kinds = [line["kind"] for line in read_journal(run_dir)]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert "merge" in kinds
    assert_a_finished_run_says_so(processes.start("sync", str(small_run), "--set", "sync.recover_wait_s=0.1"))


def assert_a_finished_run_says_so(process: Process) -> None:
    code, said = ended(process)
    assert code == 0
    assert "this run was finished before" in said.splitlines()[-1]
    assert "raise run.target_tokens" in said.splitlines()[-1]


def test_a_syncer_answers_and_leaves_in_order(small_run: Path, processes: Processes) -> None:
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        process = processes.start("sync", str(small_run))
        said_until(process, "syncer serves run=")
        with Query(load(small_run).net) as query:
            assert query.ask(LIMIT_S)["learners"] == []
            process.send_signal(number)
            found, said = ended(process)
            assert found == code
            assert said.splitlines()[-1].endswith(f"ends after {number.name} code={code}")
            with pytest.raises(LinkError, match="no syncer answers"):
                query.ask(0.2)


def test_a_learner_leaves_in_order_saves_its_place_and_goes_on(small_run: Path, processes: Processes) -> None:
    endless = ["--set", "run.target_tokens=0"]
    processes.start("sync", str(small_run), *endless)
    heard = []
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        process = processes.start("learner", str(small_run), "--name", "x", *endless)
        heard.append(said_until(process, "first step"))
        began = time.monotonic()
        process.send_signal(number)
        found, said = ended(process)
        assert found == code, said
        assert_within(6.0, began)
    assert ["x goes on step=" in text for text in heard] == [False, True]
