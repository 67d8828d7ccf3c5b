"""A syncer and its learners as forks of a nursery, each learner behind a link of its own, and those who look on.

Rule: whoever starts here is ended here. A process that ends without being told to is a fault, and so is whatever the
observers have to say; faults are kept, in words, for who judges.
"""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from zdiloco.chaos.chronicle import Chronicle
from zdiloco.chaos.forked import Forked, Nursery
from zdiloco.chaos.inside import Orders, adoptions
from zdiloco.chaos.observers import Listener, Reader, Stamps, newest_fault
from zdiloco.chaos.proxy import Proxy
from zdiloco.chaos.script import SYNCER
from zdiloco.config import from_tree, to_toml
from zdiloco.demo.processes import DemoFailed, free_port_base

BACK_S = 40.0
"""After a disturbance the work of every learner is merged again within this time, on a busy machine too."""
LEAVE_S = 8.0
"""Whoever is asked to leave has left by then."""
LOOK_S = 0.02
SERVING_ROADS = 4


class Fault(StrEnum):
    """What must not be."""

    STAMP = "a stamp goes back"
    CHECKPOINT = "a checkpoint is not whole"
    STANDSTILL = "training does not go on"
    END = "a process ends otherwise than it should"


class Fleet:
    """One run in `folder`. `learners`: name -> slowdown; `sections`: the settings that differ from the defaults.

    `lives`: every process that was started, `syncers`: how many of them were syncers; `down`: who is not to run now;
    `options`: further words for syncers that are started from now on.
    """

    def __init__(
        self, folder: Path, learners: Mapping[str, float], sections: Mapping[str, Mapping[str, Any]], *, forks: Nursery
    ) -> None:  # fmt: skip
        self.folder, self.run_dir, self._learners, self._forks = folder, folder / "run", dict(learners), forks
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        base = free_port_base(SERVING_ROADS * (1 + len(learners)))
        tree: dict[str, dict[str, Any]] = {"run": {"name": "chaos", "dir": str(self.run_dir)}, "net": {"port": base}}
        for section, keys in sections.items():
            tree.setdefault(section, {}).update(keys)
        self.config = from_tree(tree)
        self.toml = folder / "run.toml"
        self.toml.write_text(to_toml(self.config), encoding="utf-8")
        self.children: dict[str, Forked] = {}
        self.down: set[str] = set()
        self.syncers = 0
        self.options: tuple[str, ...] = ()
        self.lives: list[Forked] = []
        self.faults: list[tuple[Fault, str]] = []
        self.tick: Callable[[], None] = lambda: None
        self.chronicle = Chronicle(self.run_dir)
        self._cleanup = ExitStack()
        self.proxies: dict[str, Proxy] = {}
        self._ports = {name: base + SERVING_ROADS * place for place, name in enumerate(learners, 1)}
        for name, port in self._ports.items():
            self.proxies[name] = Proxy(port, base)
            self._cleanup.callback(self.proxies[name].close)
        self.listener, self.reader = Listener(self.config.net), Reader(self.run_dir)
        self._cleanup.callback(self.listener.close)
        self._cleanup.callback(self.reader.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everybody and let go of everything; harmless when repeated."""
        try:
            for child in self.children.values():
                if child.exit_code is None:
                    child.kill()
        finally:
            self._cleanup.close()

    @property
    def names(self) -> tuple[str, ...]:
        """The learners."""
        return tuple(self._learners)

    # ---- who plays

    def start(self, name: str, *, cold: bool = False) -> Forked:
        """Start the syncer, or a learner; a checkpoint that a syncer finds must be whole."""
        if name == SYNCER and (wrong := newest_fault(self.run_dir)):
            self.fault(Fault.CHECKPOINT, f"a syncer starts, and the newest checkpoint is not whole: {wrong}")
        self.syncers += name == SYNCER
        self.children[name] = self._forks.start(name, self._arguments(name), self.logs, cold=cold)
        self.lives.append(self.children[name])
        self.down.discard(name)
        return self.children[name]

    def _arguments(self, name: str) -> list[str]:
        if name == SYNCER:
            return ["sync", str(self.toml), *self.options]
        shard = self.names.index(name) % self.config.task.num_shards
        own = ["--name", name, "--shard", str(shard), "--slowdown", str(self._learners[name])]
        return ["learner", str(self.toml), *own, "--set", f"net.port={self._ports[name]}"]

    def order(self, name: str, orders: Orders) -> None:
        """From now on these orders stand for every process of this name."""
        orders.write(self.logs / f"{name}.orders")

    def kill(self, name: str) -> None:
        """SIGKILL; who is dead already stays so."""
        self.down.add(name)
        self.children[name].kill()

    def ask(self, name: str) -> None:
        """SIGTERM: it leaves in order, with code 0, soon; else that is a fault, and it is killed."""
        self.down.add(name)
        child = self.children[name]
        child.send(signal.SIGTERM)
        code = child.wait(LEAVE_S)
        if code != 0:
            said = f"has not left after {LEAVE_S:g} s" if code is None else f"ended with code {code}"
            self.fault(Fault.END, f"{name} was asked to leave and {said}: {child.last_lines(3)}")
            child.kill()

    # ---- what is seen

    def fault(self, kind: Fault, *what: str) -> None:
        """Keep what must not have been."""
        self.faults += [(kind, each) for each in what]

    def look(self) -> None:
        """Take in what has happened; a process that has ended unasked is a fault, and counts as down."""
        self.chronicle.look()
        for name, child in self.children.items():
            if name not in self.down and child.exit_code is not None:
                self.down.add(name)
                self.fault(Fault.END, f"{name} has ended unasked with code {child.exit_code}: {child.last_lines(6)}")
        self.tick()

    def rest(self, seconds: float) -> None:
        """Let so much time pass, looking on."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self._forks.listen(min(LOOK_S, left))
            self.look()

    def dies(self, name: str, limit_s: float) -> bool:
        """Wait for the death of a process that is to die; False: it lives after `limit_s`."""
        self.down.add(name)
        ends = time.monotonic() + limit_s
        while self.children[name].exit_code is None and time.monotonic() < ends:
            self._forks.listen(LOOK_S)
            self.look()
        return self.children[name].exit_code is not None

    def behind(self, since: float) -> list[str]:
        """The living learners of which nothing was merged yet after `since`."""
        living = [name for name in self.names if name not in self.down]
        return [n for n in living if self.chronicle.merged_of(n, since, self.children[n].started_at) is None]

    def settle(self, since: float, limit_s: float = BACK_S) -> bool:
        """Wait until work of every living learner was merged after `since`; otherwise it is a fault, and False."""
        ends = time.monotonic() + limit_s
        while behind := self.behind(since):
            if time.monotonic() > ends:
                told = "; ".join(f"{name}: {self.children[name].last_lines(3)}" for name in (*behind, SYNCER))
                self.fault(Fault.STANDSTILL, f"nothing of {', '.join(behind)} was merged for {limit_s:g} s: {told}")
                return False
            self.rest(LOOK_S)
        return True

    def begin(self) -> None:
        """Start everybody and wait until all are merged. Raises DemoFailed where that does not happen."""
        since = time.monotonic()
        for name in (SYNCER, *self.names):
            self.start(name)
        if not self.settle(since) or self.faults:
            raise DemoFailed(f"the run has not begun: {self.faults[0][1]}", self.children[SYNCER].last_lines())

    def end(self) -> None:
        """Have everybody leave in order, the syncer last, and stop looking on."""
        for name in (*self.names, SYNCER):
            if name not in self.down:
                self.ask(name)
        self.close()
        self.chronicle.look()
        self.fault(Fault.STAMP, *self.listener.faults, *self._adopted_backwards())
        self.fault(Fault.CHECKPOINT, *self.reader.faults)

    def adopted(self) -> int:
        """Adoptions that the learners themselves have written down."""
        return sum(len(adoptions(self.logs / f"{name}.orders")) for name in self.names)

    def _adopted_backwards(self) -> list[str]:
        """By the learners' own records: within one process the stamps of a fragment only grow."""
        seen: dict[tuple[str, int], Stamps] = {}
        for name in self.names:
            for pid, fragment, stamp in adoptions(self.logs / f"{name}.orders"):
                seen.setdefault((name, pid), Stamps(f"what {name} (process {pid}) adopted of")).see(fragment, stamp)
        return [fault for stamps in seen.values() for fault in stamps.faults]
