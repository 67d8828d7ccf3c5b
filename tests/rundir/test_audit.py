"""The ledger of a run folder, worked out anew: of a run that is over, of one at work, and of one that is not right."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.demo.finished import KEYS, Finished
from tests.node.conftest import Run
from zdiloco.core.ledger import FragmentRow
from zdiloco.errors import ConfigError
from zdiloco.node.syncer import SyncerNode
from zdiloco.rundir import audit as audits
from zdiloco.rundir.audit import audit, by_learner
from zdiloco.rundir.counters import CounterFile, counters_path
from zdiloco.trace import FILE


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run of four processes, one of which was killed, and its whole journal."""
    run = Finished(tmp_path / "run")
    versions = [0, 0]
    lines: list[dict[str, Any]] = [{"kind": "opened", "epoch": 1, "versions": [0, 0]}]
    for line in run.rounds:
        versions[line["fragment"]] += 1
        lines.append({**line, "epoch": 1, "version": versions[line["fragment"]]})
    (run.run_dir / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run.run_dir


@pytest.fixture
def living(run_dir: Path) -> Iterator[CounterFile]:
    """A process that has joined the finished run, and trained 50 tokens of which nobody has heard."""
    file = CounterFile(run_dir, KEYS["b2"]._replace(incarnation=99), 2)
    file.write(5, 50, [FragmentRow(unmerged=50, dropped=0, lost=0, after=0)] * 2)
    yield file
    file.close()


def test_a_run_that_is_over_balances(run_dir: Path) -> None:
    found = audit(run_dir)
    assert found.balanced
    assert (len(found.books.gaps), len(found.comparison.differences), found.comparison.silent) == (8, 8, {})
    assert (found.syncer_lives, found.moves) == (False, False)
    states = {(process.key.name, process.key.incarnation): process.state for process in found.books.processes}
    assert states == {("a", 10): "left", ("b", 11): "dead", ("b", 12): "left", ("c", 13): "left"}
    sums = {name: (len(processes), fates.trained) for name, processes, fates in by_learner(found.books)}
    assert sums == {"a": (1, 200), "b": (2, 110), "c": (1, 80)}


def test_who_lives_is_known_by_its_lock(run_dir: Path, living: CounterFile) -> None:
    assert audit(run_dir).books.total.unmerged == 50
    before = audit(run_dir).books.total.lost
    living.close()
    found = audit(run_dir)
    assert found.balanced
    assert (found.books.total.unmerged, found.books.total.lost) == (0, before + 50)


def test_a_token_too_many_is_named_after_a_second_look(
    run_dir: Path, living: CounterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "LOOK_AGAIN_S", 0.0)
    looks: list[int] = []
    look = audits._look

    def counted(*where: Any) -> Any:
        looks.append(1)
        return look(*where)

    monkeypatch.setattr(audits, "_look", counted)
    living.write(5, 51, [FragmentRow(unmerged=50, dropped=0, lost=0, after=0)] * 2)
    found = audit(run_dir)
    assert found.gaps == {"b:0000000000000063 fragment 0": 1, "b:0000000000000063 fragment 1": 1}
    assert (found.balanced, found.moves, len(looks)) == (False, False, 2)


def test_a_checkpoint_written_meanwhile_asks_for_another_look(
    run_dir: Path, living: CounterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters of before a checkpoint need not fit the one after it: a reading in which it moved is not believed."""
    monkeypatch.setattr(audits, "LOOK_AGAIN_S", 0.0)
    folder = run_dir / "checkpoints"
    manifest = next(folder.glob("manifest-*"))
    read = audits.read_books
    tries: list[int] = []

    def moving(*arguments: Any) -> Any:
        tries.append(1)
        if len(tries) < 4:
            living.write(5, 50 + len(tries), [FragmentRow(unmerged=50, dropped=0, lost=0, after=0)] * 2)
            (folder / f"manifest-{len(list(folder.iterdir())):09d}-e1.json").write_bytes(manifest.read_bytes())
        else:
            living.write(6, 60, [FragmentRow(unmerged=60, dropped=0, lost=0, after=0)] * 2)
        return read(*arguments)

    monkeypatch.setattr(audits, "read_books", moving)
    found = audit(run_dir)
    assert (found.balanced, found.moves, len(tries)) == (True, False, 4)
    tries.clear()
    monkeypatch.setattr(audits, "LOOKS", 3)
    found = audit(run_dir)
    assert (found.balanced, found.moves) == (False, True)


def test_learners_of_other_machines_are_added(run_dir: Path, tmp_path: Path) -> None:
    far = tmp_path / "far" / "learners"
    far.mkdir(parents=True)
    path = counters_path(run_dir, KEYS["c"])
    path.rename(far / path.name)
    alone = audit(run_dir)
    assert alone.gaps == {"c:000000000000000d fragment 0": -80, "c:000000000000000d fragment 1": -80}
    assert [process.state for process in alone.books.processes] == ["left", "dead", "left", "absent"]
    for folder in (far.parent, far):
        assert audit(run_dir, [folder]).balanced
    (run_dir / "learners" / path.name).write_bytes((far / path.name).read_bytes())  # twice the same process: once
    assert audit(run_dir, [far]).books.total.trained == 390


def test_a_journal_that_says_otherwise_is_named_and_one_that_is_torn_is_not(run_dir: Path) -> None:
    journal = run_dir / FILE
    whole = journal.read_text()
    journal.write_text(whole.replace('"000000000000000c", 3, 30]', '"000000000000000c", 3, 31]'))
    assert audit(run_dir).differences == {"b:000000000000000c fragment 0": -1, "b:000000000000000c fragment 1": -1}
    journal.write_text(whole[:-40])
    found = audit(run_dir)
    assert found.balanced
    assert found.comparison.silent == {1: "the journal lacks version 2 of epoch 1"}
    for strange in ('{"kind": "merge"}', '{"kind": "opened", "versions": [1]}'):
        journal.write_text(whole + strange + "\n")
        found = audit(run_dir)
        assert found.balanced
        assert "a line that no syncer has written" in found.comparison.silent[0]
    journal.unlink()
    assert audit(run_dir).comparison.silent == {0: "there is no journal.jsonl", 1: "there is no journal.jsonl"}


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no folder", "there is no run folder"),
        ("no checkpoint", "holds no checkpoint"),
        ("counters", r"b-000000000000000b.counters has .* bytes"),
        ("no learners", "there is no folder"),
        ("layout", "fits no layout|makes no sense|layout"),
    ],
)
def test_what_cannot_be_read_is_the_users(run_dir: Path, tmp_path: Path, what: str, says: str) -> None:
    others: list[Path] = []
    if what == "no folder":
        run_dir = tmp_path / "none"
    elif what == "no learners":
        others = [tmp_path / "none"]
    elif what == "no checkpoint":
        for path in (run_dir / "checkpoints").iterdir():
            path.unlink()
    elif what == "layout":
        next((run_dir / "checkpoints").glob("layout-*")).write_text("{}")
    else:
        path = counters_path(run_dir, KEYS["b"])
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=says):
        audit(run_dir, others)


def passed(syncer: SyncerNode, rounds: int) -> bool:
    return syncer.machine.rounds > rounds


@pytest.mark.net
@pytest.mark.slow
def test_a_run_at_work_balances_whenever_it_is_asked(run_of: Callable[..., Run]) -> None:
    """Learners step every few milliseconds and checkpoints follow each other: what is read belongs together."""
    run = run_of()
    syncer = run.start_syncer()
    trainers = [run.join("a"), run.join("b")]
    for rounds in (4, 12, 20):
        run.until(partial(passed, syncer, rounds), "rounds")
        found = audit(run.config.run.path)
        assert found.balanced, (found.gaps, found.differences)
        assert [process.state for process in found.books.processes] == ["living", "living"]
        assert found.syncer_lives
    trainers[0].stop()
    found = audit(run.config.run.path)
    assert found.balanced
    assert [process.state for process in found.books.processes] == ["left", "living"]
    trainers[1].stop()
    run.stop_syncer()
    found = audit(run.config.run.path)
    assert found.balanced
    assert found.comparison.silent == {}
    assert (found.syncer_lives, found.books.total.unmerged) == (False, 0)
