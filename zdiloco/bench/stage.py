"""Who takes part in a measurement: a syncer and stand-in learners, real processes on loopback in a folder of their own.

Rule: every wait has an end, and says what for and what the logs say; `close` leaves no process behind, however the
measurement went.
"""

import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zdiloco.bench.loop import LAYERS
from zdiloco.config import from_tree, to_toml
from zdiloco.demo.processes import Child, free_port_base
from zdiloco.errors import LinkError, ZdilocoError
from zdiloco.node.keys import load_public, make_pair
from zdiloco.node.query import Query

START_S = 60.0
"""To start a process and join may take so long on a busy machine."""
EVENT_S = 60.0
"""Whatever is waited for in a run comes sooner."""
POLL_S = 0.1
ANSWER_S = 1.0
READ_BYTES = 2**20
LOG_LINES = 8
SYNC_PERIOD = 24
SAVE_EVERY_S = 10.0
"""Six times as often as usual: unless a measurement says otherwise, a learner saves its state within it."""


PLAYERS, WATCHER = ("a", "b", "slow"), "watcher"
"""Who may be a learner, and who asks how the run stands."""


class BenchFailed(ZdilocoError):
    """A measurement came to an end that it was not meant to come to; the text holds the last lines of the logs."""


class Player(Child):
    """A stand-in learner, which obeys (`zdiloco.bench.standin`)."""

    def __init__(self, name: str, run_toml: Path, parameters: int, step_s: float, log: Path) -> None:
        arguments = [str(run_toml), name, str(parameters), str(step_s)]
        super().__init__(name, arguments, log, module="zdiloco.bench.standin", pipes=True)
        self._unread = b""

    def tell(self, command: str) -> None:
        """Have it do something; `answer` waits until it is done."""
        assert self.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: `answer` says how
            self.stdin.write(f"{command}\n".encode())

    def answer(self, limit_s: float) -> dict[str, Any]:
        """What it says when the oldest command without an answer is done. Raises BenchFailed after `limit_s`."""
        assert self.stdout is not None
        ends = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.stdout], [], [], max(0.0, ends - time.monotonic()))
            data = os.read(self.stdout.fileno(), READ_BYTES) if ready else b""
            if not data:
                said = "has ended" if ready else f"says nothing for {limit_s:.0f} s"
                raise BenchFailed(f"learner {self.name} {said}; its log: {self.last_lines(LOG_LINES)}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return dict(json.loads(line))

    def do(self, command: str, limit_s: float = START_S) -> dict[str, Any]:
        """Tell and wait for the answer."""
        self.tell(command)
        return self.answer(limit_s)

    def kill(self) -> None:
        """SIGKILL, and its pipes closed. Returns when it is dead."""
        super().kill()
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()


class Stage:
    """A run folder with its run.toml, the processes of a run, and what its syncer answers. `keyed`: all that they say
    to each other is encrypted."""

    def __init__(
        self, parameters: int, step_s: float, sections: Mapping[str, Mapping[str, Any]], *, keyed: bool = False
    ) -> None:  # fmt: skip
        self._parameters, self._step_s = parameters, step_s
        self.folder = Path(tempfile.mkdtemp(prefix="zdiloco-bench-"))
        self._children: list[Child] = []
        tree: dict[str, dict[str, Any]] = {
            "run": {"name": "bench", "dir": str(self.folder / "run")},
            "sync": {"sync_period": SYNC_PERIOD, "num_fragments": LAYERS},
            "learner": {"codec": "int8", "save_every_s": SAVE_EVERY_S},
            "net": {"port": free_port_base()},
        }
        if keyed:
            tree["net"]["keys"] = str(self._made_keys())
        for section, keys in sections.items():
            tree.setdefault(section, {}).update(keys)
        self.config = from_tree(tree)
        self.toml = self.folder / "run.toml"
        self.toml.write_text(to_toml(self.config), encoding="utf-8")
        self._query: Query | None = None

    def _made_keys(self) -> Path:
        """A folder with a pair for everybody who may take part, and the list of them."""
        folder = self.folder / "keys"
        for name in ("syncer", *PLAYERS, WATCHER):
            make_pair(folder, name)
        lines = [f'[{name}]\nkey = "{load_public(folder, name).decode()}"\n' for name in (*PLAYERS, WATCHER)]
        (folder / "allowed.toml").write_text("".join(lines), encoding="utf-8")
        return folder

    def __enter__(self) -> "Stage":
        self._query = Query(self.config.net, name=WATCHER)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill whoever still runs, and remove the folder."""
        try:
            for child in self._children:
                child.kill()
        finally:
            if self._query is not None:
                self._query.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- who takes part

    def syncer(self) -> Child:
        """Start `zdiloco sync`."""
        log = self.folder / f"{len(self._children)}-syncer.log"
        self._children.append(Child("syncer", ["sync", str(self.toml)], log))
        return self._children[-1]

    def player(self, name: str, slowdown: float = 1.0) -> Player:
        """Start a stand-in whose steps are `slowdown` times longer; it is attached to nothing yet."""
        log = self.folder / f"{len(self._children)}-{name}.log"
        player = Player(name, self.toml, self._parameters, self._step_s * slowdown, log)
        self._children.append(player)
        return player

    def end(self, syncer: Child) -> None:
        """Have the syncer leave in order, so that all its rounds are in the journal."""
        syncer.send(signal.SIGTERM)
        if syncer.wait(EVENT_S) != 0:
            raise BenchFailed(f"the syncer ended with {syncer.exit_code}; its log: {syncer.last_lines(LOG_LINES)}")

    # ---- what is seen

    def status(self) -> dict[str, Any]:
        """What the syncer answers; empty: nobody does."""
        assert self._query is not None
        with suppress(LinkError):
            return self._query.ask(ANSWER_S)
        return {}

    def until(self, condition: Callable[[dict[str, Any]], bool], what: str, *living: Child) -> dict[str, Any]:
        """Ask for the status until it satisfies, and return it; meanwhile those `living` must live."""
        ends = time.monotonic() + EVENT_S
        while True:
            status = self.status()
            if status and condition(status):
                return status
            for child in living:
                if child.exit_code is not None:
                    raise BenchFailed(f"{child.name} ended with {child.exit_code}: {child.last_lines(LOG_LINES)}")
            if time.monotonic() > ends:
                logs = "\n".join(f"--- {child.name}\n{child.last_lines(LOG_LINES)}" for child in self._children)
                raise BenchFailed(f"never came: {what}; the logs: {logs}")
            time.sleep(POLL_S)


def member(status: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a status says of the learner of this name that joined last; empty: nothing."""
    found = [each for each in status.get("learners", ()) if each["name"] == name and each["state"] != "gone"]
    return found[-1] if found else {}
