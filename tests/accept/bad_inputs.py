"""The rows of docs/bad-input.md, and real processes that run them.

Rule: the document is the only source; what a row says is what the process has to say. Where loading torch would be most
of the work, one process loads it and forks one more for each row; that one runs the command line to its end.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOC = ROOT / "docs" / "bad-input.md"
HEAD = ["what", "command after `zdiloco`", "code", "says"]
LIMIT_S = 120.0
"""For one row, on a machine that others load, too."""
AT_ONCE = 4
FORKS = """
import gc, json, os, signal, sys
import torch
import zdiloco.demo.show, zdiloco.demo.trainer, zdiloco.node.syncer, zdiloco.train.tasks
from zdiloco.cli.main import main
from zdiloco.wire import encoding

torch.optim.AdamW([torch.zeros(1)], fused=True)  # loads what torch loads late
gc.collect()
gc.freeze()  # or each child would go through all of it at its end

def row(number, words, protocol):
    child = os.fork()
    if child:
        return child
    signal.alarm({limit:.0f})
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{{number}}.{{name}}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    encoding.PROTOCOL = protocol or encoding.PROTOCOL
    sys.argv = ["zdiloco", *words]
    main()

waiting, running, codes = json.loads(sys.argv[1]), {{}}, {{}}
while waiting or running:
    while waiting and len(running) < {at_once}:
        one = waiting.pop(0)
        running[row(*one)] = one[0]
    child, status = os.wait()
    codes[running.pop(child)] = os.waitstatus_to_exitcode(status)
print(json.dumps(codes))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of a table: `words` are the command line, `says` is the last line, without its `zdiloco: `."""

    section: str
    what: str
    words: tuple[str, ...]
    code: int
    says: str

    @property
    def protocol(self) -> int:
        """The protocol version that this process speaks; 0: its own."""
        found = re.search(r"protocol (\d+)", self.what)
        return int(found[1]) if found else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a process ended: its exit code, standard output, and standard error."""

    code: int
    out: str
    err: str


def rows_of(text: str) -> list[Row]:
    """Every row of every table with the heads of HEAD, in order."""
    found, section, at_rows = [], "", False
    for line in text.splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if not at_rows or not cells:
            at_rows = cells == HEAD
        elif len(cells) == len(HEAD):
            words = tuple(cells[1].strip("`").split(" "))
            found.append(Row(section=section, what=cells[0], words=words, code=int(cells[2]), says=cells[3][1:-1]))
    return found


def pattern_of(says: str) -> str:
    """The regular expression of a line of the document: `…` stands for anything, all else for itself."""
    return "zdiloco: " + ".*".join(re.escape(part) for part in says.split("…"))


def run_each(rows: dict[int, Row], folder: Path) -> dict[int, Outcome]:
    """Run these rows in `folder`, each as `python -m zdiloco.cli`, some at once."""

    def run(row: Row) -> Outcome:
        command = [sys.executable, "-m", "zdiloco.cli", *row.words]
        done = subprocess.run(
            command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(rows, pool.map(run, rows.values()), strict=True))


def run_forked(rows: dict[int, Row], folder: Path) -> dict[int, Outcome]:
    """Run these rows in `folder`, each as a fork of one process that has loaded everything."""
    each = [(number, row.words, row.protocol) for number, row in rows.items()]
    script = FORKS.format(limit=LIMIT_S, at_once=AT_ONCE)
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(each)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S * len(rows),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    texts = {n: [(folder / f"{n}.{kind}").read_text() for kind in ("out", "err")] for n in rows}
    return {n: Outcome(code=codes[str(n)], out=texts[n][0], err=texts[n][1]) for n in rows}


def environment() -> dict[str, str]:
    """What a command's process inherits: this checkout, one thread of torch."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
