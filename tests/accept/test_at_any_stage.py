"""SIGTERM and SIGINT where a process is in the middle of something; and what a syncer says while it waits.

Rule: what is slow is made so from outside: a file named `hang` in the folder makes the disk hang where it is asked to.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.accept.bad_inputs import DOC
from tests.accept.mounts import mount_tmpfs, skip_unless_ci, unmount
from tests.accept.stage import AT_ONCE_S, SLOW_MACHINE_S, Child, Stage
from tests.accept.test_signals import CODES, leave

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]
HANGS = """
import pathlib, sys, threading
from zdiloco.rundir.disk import Disk
from zdiloco.rundir.store import Store
from zdiloco.cli.main import main
sync, load = Disk.sync, Store.load
def hang(what):
    if pathlib.Path("hang").exists() and pathlib.Path("hang").read_text() == what:
        print("hangs in", what, file=sys.stderr, flush=True)
        threading.Event().wait(60)
Disk.sync = lambda self, descriptor: (hang("sync"), sync(self, descriptor))[1]
Store.load = lambda self: (hang("load"), load(self))[1]
main()
"""


@pytest.fixture
def slow(stage: Stage) -> Stage:
    """A stage with a checkpoint of a run in it, which has ended."""
    syncer, learner = stage.sync(), stage.learner("first")
    stage.until(lambda: stage.rounds() >= 1, "a round", syncer, learner)
    stage.end(learner, syncer)
    return stage


def hanging(stage: Stage, where: str, *options: str) -> Child:
    """A syncer whose disk hangs in `where`."""
    (stage.folder / "hang").write_text(where)
    script = stage.folder / "hanging.py"
    script.write_text(HANGS)
    return stage.run("hanging", script, "sync", str(stage.toml), *options)


def at_once(child: Child, number: signal.Signals) -> None:
    """Asked for the second time: it ends now, with 130."""
    assert child.leave(number, within_s=AT_ONCE_S) == 130, child.errors
    assert "Traceback" not in child.errors


def test_a_syncer_that_loads_recovers_or_saves(slow: Stage) -> None:
    """Loading: it just ends. Recovering: in order. Saving: the second signal ends it, and the older state stays."""
    stage, before = slow, slow.cut().epoch
    for number in CODES:
        loading = hanging(stage, "load")
        stage.until(lambda child=loading: "hangs in load" in child.errors, "a syncer that loads", loading)
        leave(loading, number)
    (stage.folder / "hang").unlink()
    recovering = stage.sync("--set", "sync.recover_wait_s=60")
    stage.until(lambda: stage.status().get("phase") == "recovering", "a syncer that recovers", recovering)
    leave(recovering, signal.SIGTERM)
    assert stage.cut().epoch == before
    saving = hanging(stage, "sync", "--set", "sync.recover_wait_s=0")
    stage.until(lambda: "hangs in sync" in saving.errors, "a syncer that saves", saving)
    saving.send(signal.SIGTERM)
    stage.until(lambda: "leaving (SIGTERM)" in saving.errors, "a syncer that leaves", saving)
    at_once(saving, signal.SIGINT)
    assert stage.cut().epoch == before


def told(what: str, stage: Stage) -> str:
    """What docs/bad-input.md says that is said, with the port of this stage."""
    (line,) = (line for line in DOC.read_text().splitlines() if line.startswith(f"| {what} | "))
    return line.split(" | ")[2].strip("` |").replace("5700", str(stage.port))


def test_what_is_waited_for_is_said_once_and_in_status(stage: Stage) -> None:
    """A learner without a syncer; a syncer without a learner, with too few, and with none again."""
    stage.write(sync={"min_quorum": 2})
    learner = stage.learner("early")
    stage.until(lambda: told("no syncer yet", stage) in learner.errors, "a learner that waits", learner)
    syncer = stage.sync()
    stage.until(lambda: stage.member("early").get("state") == "live", "a learner that trains", syncer, learner)
    assert told("no learner yet", stage) in syncer.errors
    stage.until(lambda: "1 of the K = 2" in stage.status()["waits"], "the quorum in status", syncer, learner)
    assert told("K above the learners", stage) in syncer.errors
    learner.kill()
    stage.until(lambda: "nobody trains" in stage.status()["waits"], "nobody in status", syncer)
    assert told("all learners gone", stage) in syncer.errors
    stage.end(syncer)
    assert learner.errors.count("waits for the syncer") == 1
    assert syncer.errors.count("1 of the K = 2") == 1


@pytest.fixture
def tiny_disk(stage: Stage) -> Iterator[Path]:
    """A disk of 64 KiB, which is less than one checkpoint."""
    folder = stage.folder / "tiny"
    folder.mkdir()
    if not mount_tmpfs(folder, "size=64k"):
        skip_unless_ci()
    yield folder
    stage.close()
    unmount(folder)


def test_a_disk_without_room_for_the_first_checkpoint(stage: Stage, tiny_disk: Path) -> None:
    syncer, learner = stage.sync("--set", f"run.dir={tiny_disk}"), stage.learner("a")
    assert syncer.wait() == 1
    assert "Traceback" not in syncer.errors
    last = syncer.errors.splitlines()[-1]
    assert "the checkpoint that must be durable is not: cannot write a checkpoint to" in last
    assert "No space left on device" in last
    leave(learner, signal.SIGTERM)
