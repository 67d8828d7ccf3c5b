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

from zdiloco.config import RunConfig, from_tree, to_toml
from zdiloco.core.ledger import Fates, settle
from zdiloco.errors import LinkError
from zdiloco.node.counters import Counters, read_counters
from zdiloco.node.query import Query
from zdiloco.node.store import Cut, Store

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 40.0
"""For whatever a loaded machine may make slow, such as starting a process; not a figure that is claimed."""
SLOW_MACHINE_S = 240.0
"""Limit of one whole test; on a quiet machine each takes a few seconds."""
LEAVE_S = 5.0
"""Whoever is asked to leave has left by then."""
BASE: dict[str, dict[str, Any]] = {
    "sync": {
        "sync_period": 8, "num_fragments": 4, "checkpoint_every_s": 0.5, "recover_wait_s": 2.5, "beat_every_s": 0.2,
        "suspect_after_s": 1.0, "gone_after_s": 2.0, "report_every_s": 0.02, "drain_s": 10.0,
    },
    "learner": {"silent_after_s": 1.0, "answer_timeout_s": 0.5},
    "net": {"stall_s": 0.5},
    "task": {"context": 32, "batch_size": 2, "min_data_bytes": 1000, "num_shards": 1, "validation_batches": 1},
}  # fmt: skip


class Child:
    """One process. Standard output and error go to files, so that it never waits for a reader."""

    def __init__(self, folder: Path, label: str, arguments: Sequence[str]) -> None:
        self._out, self._err = folder / f"{label}.out", folder / f"{label}.err"
        self.label = label
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
        }  # fmt: skip
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=folder,
            )

    @property
    def code(self) -> int | None:
        """The exit code; None: it runs; below zero: minus the signal that killed it."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self._process.kill()
        self._process.wait(LIMIT_S)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """The exit code, once it has ended."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        raise AssertionError(f"{self.label} has not ended within {limit_s:g} s; it said:\n{self.errors}")

    @property
    def errors(self) -> str:
        """Standard error so far."""
        return self._err.read_text(encoding="utf-8")

    @property
    def output(self) -> str:
        """Standard output so far."""
        return self._out.read_text(encoding="utf-8")

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The lines of JSON on standard output so far."""
        return [json.loads(line) for line in self.output.splitlines(keepends=True) if line.endswith("\n")]


class Stage:
    """A folder with its run.toml and everybody who plays there."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.toml, self.port = folder, folder / "run.toml", port
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

    @property
    def run_dir(self) -> Path:
        return self.config.run.path

    # ---- who plays

    def command(self, *arguments: str, label: str = "") -> Child:
        """Start a `zdiloco` command."""
        return self.start(label or arguments[0], ["-m", "zdiloco.cli", *arguments])

    def sync(self, *options: str) -> Child:
        """Start `zdiloco sync`."""
        return self.command("sync", str(self.toml), *options)

    def learner(self, name: str, *options: str) -> Child:
        """Start `zdiloco learner`."""
        return self.command("learner", str(self.toml), "--name", name, *options, label=f"learner-{name}")

    def script(self, name: str, *, seed: int = 1, pace_s: float = 0.005) -> Child:
        """Start a user's own script. `pace_s`: how long it rests after each step."""
        own = self.folder / "own_script.py"
        shutil.copy(Path(__file__).parent / "own_script.py", own)
        return self.start(f"script-{name}", [str(own), str(self.toml), name, str(seed), str(pace_s)])

    def spoiled(self, name: str, fault: str, steps: int, *, seed: int = 9, pace_s: float = 0.005) -> Child:
        """Start a user's script that is broken, as `spoiled_script.py` says, in its first `steps` steps."""
        for script in ("own_script.py", "spoiled_script.py"):
            shutil.copy(Path(__file__).parent / script, self.folder / script)
        own = str(self.folder / "spoiled_script.py")
        return self.start(f"script-{name}", [own, str(self.toml), name, str(seed), str(pace_s), fault, str(steps)])

    def start(self, label: str, arguments: list[str]) -> Child:
        """Start a Python process with these arguments."""
        self._children.append(Child(self.folder, f"{len(self._children)}-{label}", arguments))
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

    def until(self, condition: Callable[[], Any], what: str, *living: Child) -> Any:
        """Wait until a condition holds and return what it said; meanwhile those `living` must live."""
        ends = time.monotonic() + LIMIT_S
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
        """What the syncer answers; empty: nobody does."""
        with Query(self.config.net) as query, suppress(LinkError):
            return query.ask(1.0)
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
