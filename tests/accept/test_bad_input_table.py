"""Every row of docs/bad-input.md against a real process: exit code, last line, no traceback, and nothing lost."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.accept.bad_inputs import DOC, Outcome, Row, pattern_of, rows_of, run_each, run_forked
from tests.accept.mounts import mount_tmpfs, skip_unless_ci, unmount
from tests.accept.stage import SLOW_MACHINE_S, Child, Stage
from zdiloco.chaos.forked import Nursery
from zdiloco.rundir.archive import Cut, FragmentCut
from zdiloco.rundir.store import Store
from zdiloco.units import Epoch, Stamp

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]
ROWS = rows_of(DOC.read_text())
BARE = ("Commands and flags", "The file", "Settings")
"""Sections of what is wrong before torch is needed."""
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d (INFO|WARNING) ")
FILES = {
    "latin.toml": b'[run]\nname = "f\xe9r"\n',
    "huge.toml": b"#" * 2**21,
    "broken.toml": b"[sync\n",
    "twice.toml": b'[run]\nname = "a"\nname = "b"\n',
    "deep.toml": b"a = " + b"[" * 100_000,
    "section.toml": b"[snyc]\nmin_quorum = 1\n",
    "key.toml": b"[sync]\nsync_perod = 3\n",
    "place.toml": b"[sync]\nport = 5700\n",
    "flat.toml": b"sync = 3\n",
    "nul.toml": b'[run]\ndir = "a\\u0000b"\n',
}


class Scene:
    """A folder with all that the rows name, a run at work in it, and how each row ended."""

    def __init__(self, stage: Stage, free: int) -> None:
        self.stage, folder = stage, stage.folder
        self.ports = {"5700": str(stage.port), "5900": str(free)}
        for name, data in FILES.items():
            (folder / name).write_bytes(data)
        for name in ("old", "short", "foreign"):
            checkpoint(folder / name)
        (part,) = (folder / "short" / "checkpoints").glob("fragment-*")
        part.write_bytes(part.read_bytes()[:-1])
        (manifest,) = (folder / "foreign" / "checkpoints").glob("manifest-*")
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
        self.mounted = seal(folder / "sealed") and fill(folder / "full")

    def play(self) -> dict[int, Outcome]:
        """Run every row while a run is at work."""
        stage, numbered = self.stage, dict(enumerate(map(self.real, ROWS)))
        syncer, learner = stage.sync(), stage.learner("live", "--slowdown", "20")
        bare = {n: row for n, row in numbered.items() if row.section in BARE}
        ended = run_each(bare, stage.folder)  # meanwhile the run begins
        stage.until(lambda: stage.rounds() >= 1, "a round", syncer, learner)
        (stage.run_dir / "learners" / f"damaged-000000001-{0:032x}.safetensors").write_text("{")
        ended |= run_forked({n: row for n, row in numbered.items() if n not in ended}, stage.folder)
        self.undisturbed(syncer, learner)
        return ended

    def undisturbed(self, syncer: Child, learner: Child) -> None:
        """The run goes on with the one learner that it had."""
        rounds, stage = self.stage.rounds(), self.stage
        stage.until(lambda: stage.rounds() > rounds, "one more round", syncer, learner)
        assert [each["name"] for each in stage.status()["learners"]] == ["live"]
        stage.end(learner, syncer)
        refused = [line for line in syncer.errors.splitlines() if "is turned away" in line]
        assert len(refused) == sum(row.section == "A run at work" for row in ROWS)

    def real(self, row: Row) -> Row:
        """The row with the ports of this run."""
        words, says = row.words, row.says
        for told, port in self.ports.items():
            words = tuple(word.replace(f":{told}", f":{port}") for word in words)
            says = says.replace(f":{told}", f":{port}")
        says = says if row.words[:2] != ("status", "nowhere") else row.says
        return Row(section=row.section, what=row.what, words=words, code=row.code, says=says)


def checkpoint(run_dir: Path) -> None:
    """Leave a checkpoint of run-0123456789ab there."""
    store = Store(run_dir, keep=1)
    part = FragmentCut(
        fragment=0, revision=1, stamp=Stamp(Epoch(1, 1), 0), theta=torch.zeros(8), buf=None,
        value=torch.zeros(16, dtype=torch.uint8), codec="bf16", map_=(),
    )  # fmt: skip
    run_id = "run-0123456789ab"
    store.write(Cut(run_id=run_id, epoch=Epoch(1, 1), layout_digest="d", layout={"format": 1}, fragments=(part,)))
    store.close()


def seal(folder: Path) -> bool:
    """Make a folder that nobody can write to; False: not possible here."""
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o555)
        return True
    return mount_tmpfs(folder, "ro")


def fill(folder: Path) -> bool:
    """Make a folder on a disk without room; False: not possible here."""
    folder.mkdir()
    if not mount_tmpfs(folder, "size=64k"):
        return False
    (folder / "learners").mkdir()
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    return True


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, forks: Nursery) -> Iterator[Scene]:
    """The folder of all rows; afterwards whoever still runs is killed."""
    from tests.conftest import free_ports

    find: Callable[[int], int] = free_ports.__wrapped__()
    made = Scene(Stage(tmp_path_factory.mktemp("bad"), find(4), forks), find(4))
    yield made
    made.stage.close()
    for name in ("sealed", "full"):
        unmount(made.stage.folder / name)
    shutil.rmtree(made.stage.folder)


@pytest.fixture(scope="module")
def ended(scene: Scene) -> dict[int, Outcome]:
    """How each row ended, by its number."""
    return scene.play()


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[row.what for row in ROWS])
def test_a_row_holds(number: int, scene: Scene, ended: dict[int, Outcome]) -> None:
    """F-7: What a row says is what the process says; checkpoints that no command takes are among them (D-59)."""
    row, found = scene.real(ROWS[number]), ended[number]
    if any(re.search(r"=(sealed|full)", word) for word in row.words) and not scene.mounted:
        skip_unless_ci()
    *before, last = [line for line in found.err.splitlines() if not re.fullmatch(r"Try 'zdiloco.*'\.", line)]
    assert re.fullmatch(pattern_of(row.says), last), f"\nsaid: {last}\ntold: zdiloco: {row.says}"
    assert found.code == row.code
    assert found.out == ""
    assert all(LOG_LINE.match(line) for line in before), found.err


def test_the_table_is_large_enough_and_read_whole() -> None:
    assert len(ROWS) >= 60
    lines = [line for line in DOC.read_text().splitlines() if re.match(r"\|.*\| \d+ \| `", line)]
    assert len(lines) == len(ROWS)
    assert {row.code for row in ROWS} == {1, 2, 3}
    assert len({row.what for row in ROWS}) == len(ROWS)


def test_a_wrong_row_is_found() -> None:
    assert re.fullmatch(pattern_of("a … c"), "zdiloco: a b c")
    assert not re.fullmatch(pattern_of("a.c"), "zdiloco: abc")
    (row,) = rows_of(
        "## S\n| what | command after `zdiloco` | code | says |\n|---|---|---|---|\n| w | `a b` | 2 | `x` |\n"
    )
    assert row == Row(section="S", what="w", words=("a", "b"), code=2, says="x")
