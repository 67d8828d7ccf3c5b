"""Runs the coverage-guided engine in a process of its own, and keeps what it finds: `python -m tests.fuzz.guided`.

    python -m tests.fuzz.guided [SECONDS] [PARSER ...]      fuzz, and keep the inputs that reached new code

Rule: the engine is a process, since an input may end it; every wait has an end.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parent.parent.parent
START_S = 60.0
"""For what a loaded machine may make slow: starting, and loading torch."""
_TRIED = re.compile(r"stat::number_of_executed_units:\s+(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How the engine ended: inputs tried, and what was wrong; an empty text where nothing was."""

    tried: int
    fault: str


class Engine:
    """The engine, which is loaded once and forks for each parser; `close` ends it, whatever it does."""

    def __init__(self) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.engine"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, start_new_session=True,
        )  # fmt: skip

    def run(self, target: Target, folder: Path, options: list[str], limit_s: float) -> tuple[int, str]:
        """Exit code and words of one run. Raises AssertionError where it takes longer than `limit_s`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        log = folder.with_name(f"{folder.name}.log")
        order = [target.name, str(folder), str(log), options]
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        told = select.select([self._process.stdout], [], [], limit_s)[0]
        assert told, f"{target.name} has not ended after {limit_s:g} s"
        code = self._process.stdout.readline()
        assert code, f"the engine has ended: {os.pread(self._words.fileno(), 2**20, 0).decode()[-4000:]}"
        lines = log.read_bytes().decode("utf-8", "replace").splitlines()
        return int(code), "\n".join(line for line in lines if not line.startswith("INFO: "))

    def close(self) -> None:
        """Leave nobody behind."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._words.close()


def guided(engine: Engine, target: Target, folder: Path, *, inputs: int, seconds: int) -> Ended:
    """Try so many inputs, for so long at most, from the seeds and the kept ones on. New finds lie in `folder`."""
    for at, data in enumerate([*target.seeds(), *corpus.kept(target)]):
        (folder / f"start-{at:04d}").write_bytes(data)
    options = [f"-runs={inputs}", f"-max_total_time={seconds}", "-print_final_stats=1", "-verbosity=0", str(folder)]
    code, said = engine.run(target, folder, options, START_S + 2 * seconds)
    tried = _TRIED.search(said)
    faults = [f"{path.name}: {path.read_bytes().hex()}" for path in sorted(folder.glob("fault-*"))]
    fault = "" if not code and tried and not faults else "\n".join([f"exit code {code}", *faults, said[-4000:]])
    return Ended(tried=int(tried[1]) if tried else 0, fault=fault)


def main(seconds: str = "20", *names: str) -> int:
    """Fuzz the named parsers (all where none is named) and rewrite their corpus; 1 where there was a fault."""
    faults = 0
    with closing(Engine()) as engine, tempfile.TemporaryDirectory(prefix="zdiloco-fuzz-") as folder:
        for name in names or TARGETS:
            target, inputs = TARGETS[name], Path(folder, name)
            inputs.mkdir()
            ended = guided(engine, target, inputs, inputs=-1, seconds=int(seconds))
            faults += bool(ended.fault)
            kept = 0 if ended.fault else corpus.keep(target, [path.read_bytes() for path in inputs.iterdir()])
            print(f"{name}: {ended.tried} inputs, {kept} kept {ended.fault}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
