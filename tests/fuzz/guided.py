"""Runs the coverage-guided engine in processes of its own, and keeps what it finds: `python -m tests.fuzz.guided`.

    python -m tests.fuzz.guided [SECONDS] [PARSER ...]      fuzz, and keep the inputs that reached new code

Rule: the engine is a process, since an input may end it; every wait has an end.
"""

import re
import subprocess
import sys
import tempfile
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


def guided(target: Target, folder: Path, *, inputs: int, seconds: int) -> Ended:
    """Try so many inputs, for so long at most, from the seeds and the kept ones on. New finds lie in `folder`."""
    for at, data in enumerate([*target.seeds(), *corpus.kept(target)]):
        (folder / f"start-{at:04d}").write_bytes(data)
    options = [f"-runs={inputs}", f"-max_total_time={seconds}", "-print_final_stats=1", "-verbosity=0", str(folder)]
    code, said = _engine(target, folder, options, START_S + 2 * seconds)
    tried = _TRIED.search(said)
    faults = [f"{path.name}: {path.read_bytes().hex()}" for path in sorted(folder.glob("fault-*"))]
    fault = "" if not code and tried and not faults else "\n".join([f"exit code {code}", *faults, said[-4000:]])
    return Ended(tried=int(tried[1]) if tried else 0, fault=fault)


def _engine(target: Target, folder: Path, options: list[str], limit_s: float) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.fuzz.engine", target.name, str(folder), *options]
    ended = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
    )
    lines = (ended.stdout + ended.stderr).decode("utf-8", "replace").splitlines()
    return ended.returncode, "\n".join(line for line in lines if not line.startswith("INFO: "))


def main(seconds: str = "20", *names: str) -> int:
    """Fuzz the named parsers (all where none is named) and rewrite their corpus; 1 where there was a fault."""
    faults = 0
    for name in names or TARGETS:
        target = TARGETS[name]
        with tempfile.TemporaryDirectory(prefix="zdiloco-fuzz-") as folder:
            ended = guided(target, Path(folder), inputs=-1, seconds=int(seconds))
            faults += bool(ended.fault)
            found = [path.read_bytes() for path in Path(folder).iterdir()]
            kept = 0 if ended.fault else corpus.keep(target, found)
        print(f"{name}: {ended.tried} inputs, {kept} kept {ended.fault}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
