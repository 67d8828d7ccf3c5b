"""A run of real processes in a folder of its own: `zdiloco` commands, users' scripts, and what they leave on the disk.

Rule: every wait has an end and says what it waited for, with what the processes said; nobody outlives the test.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.accept.pace import assert_within
from zdiloco.chaos.forked import Forked, Nursery
from zdiloco.config import RunConfig, from_tree, to_toml
from zdiloco.core.ledger import Fates, settle
from zdiloco.errors import LinkError
from zdiloco.node.keys import load_public, make_pair
from zdiloco.node.query import Query
from zdiloco.rundir.archive import Cut
from zdiloco.rundir.counters import Counters, read_counters
from zdiloco.rundir.store import Store

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 120.0
"""For whatever a loaded machine may make slow, such as starting a process; not a figure that is claimed."""
SLOW_MACHINE_S = 600.0
"""Limit of one whole test; on a quiet machine each takes a few seconds."""
LEAVE_S = 5.0
"""Whoever is asked to leave has left by then."""
AT_ONCE_S = 1.0
"""Whoever is asked twice has."""
WATCHER = "watcher"
"""Whose key asks for the status, in a run with keys."""
ASKS = 10
"""So often a syncer that runs is asked for its status, a second each time."""
BASE: dict[str, dict[str, Any]] = {
    "sync": {
        "sync_period": 8, "num_fragments": 4, "checkpoint_every_s": 0.5, "recover_wait_s": 2.5, "beat_every_s": 0.2,
        "suspect_after_s": 1.0, "gone_after_s": 2.0, "report_every_s": 0.02, "drain_s": 10.0,
    },
    "learner": {"silent_after_s": 1.0, "answer_timeout_s": 0.5},
    "net": {"stall_s": 0.5},
    "task": {"context": 32, "batch_size": 2, "min_data_bytes": 1000, "num_shards": 1, "validation_batches": 1},
}  # fmt: skip


class Program:
    """A Python program in a process of its own, as a shell starts it."""

    def __init__(self, folder: Path, arguments: Sequence[str], out: Path, errors: Path) -> None:
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
        }  # fmt: skip
        with out.open("wb") as output, errors.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=said,
                env=environment,
                cwd=folder,
            )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)

    def wait(self, limit_s: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        return None


class Child:
    """One process. Standard output and error go to files, so that it never waits for a reader."""

    def __init__(self, label: str, process: Program | Forked, out: Path, errors: Path) -> None:
        self.label, self._process = label, process
        self._out, self._err = out, errors
        self.pid = process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None: it runs; below zero: minus the signal that killed it."""
        return self._process.exit_code

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self._process.kill()

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """The exit code, once it has ended."""
        code = self._process.wait(limit_s)
        assert code is not None, f"{self.label} has not ended within {limit_s:g} s; it said:\n{self.errors}"
        return code

    def leave(self, *numbers: signal.Signals, within_s: float) -> int:
        """Send these signals; its exit code, once it has ended, which takes so long at most where nothing is busy.

        Of several, all are there when it acts upon the first.
        """
        together = len(numbers) > 1
        for number in (signal.SIGSTOP, *numbers, signal.SIGCONT) if together else numbers:
            self.send(number)
        asked_at = time.monotonic()
        code = self.wait()
        assert_within(within_s, asked_at)
        return code

    @property
    def errors(self) -> str:
        """Standard error so far."""
        return self._err.read_text(encoding="utf-8") if self._err.exists() else ""

    @property
    def output(self) -> str:
        """Standard output so far."""
        return self._out.read_text(encoding="utf-8") if self._out.exists() else ""

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The lines of JSON on standard output so far."""
        return [json.loads(line) for line in self.output.splitlines(keepends=True) if line.endswith("\n")]


class Stage:
    """A folder with its run.toml and everybody who plays there: forks of `forks`, or new programs where it is None."""

    def __init__(self, folder: Path, port: int, forks: Nursery | None = None) -> None:
        self.folder, self.toml, self.port, self.forks = folder, folder / "run.toml", port, forks
        self._children: list[Child] = []
        self.config = RunConfig()
        (folder / "texts").mkdir()
        for chapter in range(200):  # whole files are held out of the training data
            text = f"Chapter {chapter}. It was the best of times, it was the worst of times; nobody waited. "
            (folder / "texts" / f"{chapter}.txt").write_text(text * 20)
        self.write()

    def write(self, **sections: dict[str, Any]) -> None:
        """Write run.toml anew: BASE with these changes."""
        own = {
            "run": {"dir": str(self.folder / "run")},
            "net": {"port": self.port},
            "task": {"data_dir": str(self.folder / "texts")},
        }
        names = {*BASE, *own, *sections}
        tree = {n: {**BASE.get(n, {}), **own.get(n, {}), **sections.get(n, {})} for n in sorted(names)}
        self.config = from_tree(tree)
        self.toml.write_text(to_toml(self.config), encoding="utf-8")

    def made_keys(self, *learners: str) -> Path:
        """A folder with a pair for the syncer, for these and for who asks for the status, and the list of them."""
        folder = self.folder / "keys"
        for name in ("syncer", *learners, WATCHER):
            make_pair(folder, name)
        entries = [f'[{name}]\nkey = "{load_public(folder, name).decode()}"\n' for name in (*learners, WATCHER)]
        (folder / "allowed.toml").write_text("".join(entries))
        return folder

    @property
    def run_dir(self) -> Path:
        return self.config.run.path

    # ---- who plays

    def command(self, *arguments: str, label: str = "") -> Child:
        """Start a `zdiloco` command."""
        name = label or arguments[0]
        return self._fork(name, arguments) if self.forks else self.start(name, ["-m", "zdiloco.cli", *arguments])

    def sync(self, *options: str) -> Child:
        """Start `zdiloco sync`."""
        return self.command("sync", str(self.toml), *options)

    def cold_sync(self) -> Child:
        """Start `zdiloco sync` as a new program, whose memory is its own from the first byte on."""
        return self.start("sync", ["-m", "zdiloco.cli", "sync", str(self.toml)])

    def learner(self, name: str, *options: str) -> Child:
        """Start `zdiloco learner`."""
        return self.command("learner", str(self.toml), "--name", name, *options, label=f"learner-{name}")

    def script(self, name: str, *, seed: int = 1, pace_s: float = 0.005, toml: Path | None = None) -> Child:
        """Start a user's own script. `pace_s`: how long it rests after each step; `toml`: another run.toml."""
        words = (str(toml or self.toml), name, str(seed), str(pace_s))
        return self.run(f"script-{name}", self._own("own_script.py"), *words)

    def spoiled(self, name: str, fault: str, steps: int, *, seed: int = 9, pace_s: float = 0.005) -> Child:
        """Start a user's script that is broken, as `spoiled_script.py` says, in its first `steps` steps."""
        self._own("own_script.py")
        words = (str(seed), str(pace_s), fault, str(steps))
        return self.run(f"script-{name}", self._own("spoiled_script.py"), str(self.toml), name, *words)

    def held_syncer(self) -> Child:
        """Start `zdiloco sync` with merges that wait, as `held_syncer.py` says."""
        return self.start("held", [str(self._own("held_syncer.py")), "sync", str(self.toml)])

    def _own(self, name: str) -> Path:
        """The script of this name, copied once: who has just been started may be reading it."""
        own = self.folder / name
        if not own.exists():
            shutil.copy(Path(__file__).parent / name, own)
        return own

    def run(self, label: str, script: Path, *words: str) -> Child:
        """Start a Python script with these words behind it."""
        arguments = [str(script), *words]
        return self._fork(label, arguments) if self.forks else self.start(label, arguments)

    def start(self, label: str, arguments: Sequence[str]) -> Child:
        """Start a new Python program with these arguments, whatever the others are."""
        name = f"{len(self._children)}-{label}"
        out, errors = self.folder / f"{name}.out", self.folder / f"{name}.err"
        self._children.append(Child(name, Program(self.folder, arguments, out, errors), out, errors))
        return self._children[-1]

    def _fork(self, label: str, words: Sequence[str], namespace: str = "") -> Child:
        assert self.forks
        name = f"{len(self._children)}-{label}"
        errors = self.folder / f"{name}.err"
        forked = self.forks.start(name, [str(self.folder), str(errors), namespace, *words], self.folder, free=True)
        self._children.append(Child(name, forked, forked.log, errors))
        return self._children[-1]

    def end(self, *children: Child) -> None:
        """Ask them to leave in order, one after the other; each must, with exit code 0."""
        for child in children:
            child.send(signal.SIGTERM)
            assert child.wait() == 0, child.errors

    def close(self) -> None:
        """Kill whoever still runs."""
        for child in self._children:
            if child.code is None:
                child.kill()

    # ---- what is seen

    def until(self, condition: Callable[[], Any], what: str, *living: Child, limit_s: float = LIMIT_S) -> Any:
        """Wait until a condition holds and return what it said; meanwhile those `living` must live."""
        ends = time.monotonic() + limit_s
        pause = threading.Event()
        while not (found := condition()):
            for child in living:
                assert child.code is None, f"{child.label} ended with {child.code}:\n{child.errors}"
            if time.monotonic() > ends:
                said = "\n".join(f"--- {child.label}\n{child.errors[-3000:]}" for child in self._children)
                raise AssertionError(f"never came: {what}\n{said}")
            pause.wait(0.05)
        return found

    def status(self) -> dict[str, Any]:
        """What the syncer answers, which may be busy and is asked again while it runs; empty: nobody does."""
        with Query(self.config.net, name=WATCHER) as query:
            for _ in range(ASKS):
                with suppress(LinkError):
                    return query.ask(1.0)
                if not any(child.code is None for child in self._children if child.label.endswith("-sync")):
                    break
        return {}

    def rounds(self) -> int:
        """Rounds that the present syncer process has merged."""
        return int(self.status().get("rounds", 0))

    def member(self, name: str) -> dict[str, Any]:
        """What the syncer says of a learner; empty: it knows none of that name."""
        found = (each for each in self.status().get("learners", ()) if each["name"] == name)
        return next(found, {})

    def counters(self, name: str = "") -> list[Counters]:
        """The counter files of every process of this name (of all learners, where it is empty)."""
        paths = sorted((self.run_dir / "learners").glob(f"{name or '*'}-*.counters"))
        return [read_counters(path) for path in paths]

    def steps(self, name: str) -> int:
        """Steps of all processes of this name together."""
        return sum(each.step for each in self.counters(name))

    def trained(self) -> int:
        """Tokens trained by everybody so far."""
        return sum(each.trained_tokens for each in self.counters())

    def cut(self) -> Cut:
        """The newest checkpoint; the syncer has ended."""
        store = Store(self.run_dir, keep=1_000_000)
        try:
            cut = store.load()
        finally:
            store.close()
        assert cut is not None
        return cut

    def fates(self) -> dict[str, list[Fates]]:
        """By process ('name:incarnation'), the fate of its tokens on every fragment; everybody has ended."""
        merged = {(m.key, part.fragment): m for part in self.cut().fragments for m in part.map_}
        found: dict[str, list[Fates]] = {}
        for each in self.counters():
            rows = []
            for index, row in enumerate(each.rows):
                entry = merged.get((each.key, index))
                seq, tokens = (entry.seq, entry.tokens) if entry else (0, 0)
                rows.append(settle(each.trained_tokens, row, seq, tokens, "left" if each.left else "dead"))
            found[f"{each.key.name}:{each.key.incarnation:016x}"] = rows
        return found


def assert_balanced(fates: dict[str, list[Fates]]) -> None:
    """Every token of every process and fragment has exactly one fate."""
    assert fates
    for process, rows in fates.items():
        for index, row in enumerate(rows):
            assert row.gap == 0, (process, index, row)
            assert row.trained > 0, (process, index, row)
