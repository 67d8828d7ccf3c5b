"""The nursery: a start costs a fork, what is started is the command, and nobody outlives who started it."""

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.theatre import play
from zdiloco.chaos.forked import Forked, Nursery
from zdiloco.chaos.script import Deed, Kind
from zdiloco.config import from_tree, to_toml
from zdiloco.demo.processes import DemoFailed

pytestmark = [pytest.mark.proc, pytest.mark.slow, pytest.mark.chaos]
LIMIT_S = 90.0
ROOT = Path(__file__).parents[2]
PARENT = """
import sys, threading
from pathlib import Path
from zdiloco.chaos.forked import Nursery
folder = Path(sys.argv[1])
forks = Nursery(folder)
child = forks.start("syncer", ["sync", str(folder / "run.toml")], folder)
print(forks.process._process.pid, child.pid, flush=True)
threading.Event().wait(60)
"""


def until(condition: Callable[[], bool], what: str) -> None:
    ends, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < ends, what
        pause.wait(0.02)


def is_gone(pid: int) -> bool:
    """Dead, whether anybody has taken notice or not."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] in ("", "Z")


@pytest.fixture
def syncer(tmp_path: Path, free_ports: Callable[[int], int]) -> list[str]:
    """The words that start a syncer, which then waits for learners."""
    tree = {"run": {"dir": str(tmp_path / "run")}, "net": {"port": free_ports(4)}}
    (tmp_path / "run.toml").write_text(to_toml(from_tree(tree)))
    return ["sync", str(tmp_path / "run.toml")]


def serves(child: Forked) -> bool:
    return "syncer serves" in child.last_lines()


def test_what_is_started_is_the_command(forks: Nursery, tmp_path: Path, syncer: list[str]) -> None:
    """Exit codes, logs, SIGTERM, SIGKILL; and a start of another name that fails says why."""
    wrong = forks.start("wrong", ["sync", str(tmp_path / "none.toml")], tmp_path)
    assert wrong.wait(LIMIT_S) == 2
    assert "none.toml: cannot be read" in wrong.last_lines()
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGKILL, -9)):
        child = forks.start("syncer", syncer, tmp_path)
        until(lambda child=child: serves(child), "a syncer")
        assert child.exit_code is None
        assert child.send(number)
        assert child.wait(LIMIT_S) == code
        assert not child.send(number), "it is dead: nobody else may get it"


def test_a_fork_costs_a_tenth_of_a_start(
    forks: Nursery, tmp_path: Path, syncer: list[str], say: Callable[[str], None]
) -> None:
    """From the order to a syncer that serves, three times each; both are the same command."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for cold in (False, True) * 3:
        asked_at = time.monotonic()
        child = forks.start("syncer", syncer, tmp_path, cold=cold)
        until(lambda child=child: serves(child), "a syncer")
        took[cold].append(time.monotonic() - asked_at)
        child.kill()
    fork, start = statistics.median(took[False]), statistics.median(took[True])
    say(f"restart of a syncer until it serves, median of 3: fork {fork:.3f} s, as a new program {start:.3f} s")
    assert fork < start / 3


def test_a_closed_nursery_leaves_nobody(tmp_path: Path, syncer: list[str]) -> None:
    nursery = Nursery(tmp_path)
    child = nursery.start("syncer", syncer, tmp_path)
    child.send(signal.SIGSTOP)
    nursery.close()
    nursery.close()
    assert is_gone(child.pid)
    with pytest.raises(ValueError, match="closed"):
        nursery.start("syncer", syncer, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a killed process (prctl)")
def test_a_killed_nursery_leaves_nobody(tmp_path: Path, syncer: list[str]) -> None:
    nursery = Nursery(tmp_path)
    try:
        child = nursery.start("syncer", syncer, tmp_path)
        nursery.process.kill()
        until(lambda: is_gone(child.pid), "the end of the child")
        with pytest.raises(DemoFailed, match="the nursery has ended"):
            child.wait(LIMIT_S)
    finally:
        nursery.close()


def test_who_commands_is_killed_and_leaves_nobody(tmp_path: Path, syncer: list[str]) -> None:
    """As a test that runs out of its time: nursery and children end by themselves."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(map(is_gone, pids))
        parent.kill()
    for pid in pids:
        until(lambda pid=pid: is_gone(pid), "the end of nursery and child")


@pytest.mark.net
def test_orders_reach_a_process_that_lives(forks: Nursery, tmp_path: Path) -> None:
    """A death in a merge, a death within a start; each process has an incarnation of its own."""
    script = [
        Deed(number=1, kind=Kind.KILL_SYNCER, whom=("syncer",), pause_s=0.0, place="merge", passes=1),
        Deed(number=2, kind=Kind.KILL_LEARNER, whom=("a",), pause_s=0.0, place="prepare", joining=True),
    ]
    played = play(forks, tmp_path, 1, script)
    played.assert_sound()
    names = [path.name.split("-")[0] for path in (played.fleet.run_dir / "learners").glob("*.counters")]
    assert names.count("a") == 3, "the first, the one that died while it joined, and the last"
    assert [child.exit_code for child in played.fleet.lives if child.name == "a"] == [-9, -9, 0]
    assert [child.exit_code for child in played.fleet.lives if child.name == "syncer"] == [-9, 0]
