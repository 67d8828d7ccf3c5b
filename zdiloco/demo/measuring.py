"""The curve of one learner alone, measured anew: the demo's yardstick on this machine's text."""

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from zdiloco.train.baseline import Baseline, measure
from zdiloco.train.params import TaskParams


def measure_baseline(params: TaskParams, path: Path) -> Baseline:
    """Train lone learners of several lengths and seeds on one thread, save their curve at `path`, and return it.

    Says on standard error how far it is. Raises ConfigError for the data, StoreError where the disk refuses.
    """
    began = time.monotonic()

    def say(done: int, everything: int) -> None:
        seconds = time.monotonic() - began
        left = seconds / done * (everything - done)
        print(f"{seconds:7.0f} s  {done:,} of {everything:,} steps, {left:.0f} s left", file=sys.stderr)

    found = measure(params, progress=say)
    found.save(path)
    return found


def print_baseline(found: Baseline, path: Path) -> None:
    """Print the curve as a table on standard output."""
    table = Table("steps", "loss", "noise", *(f"seed {seed}" for seed in found.seeds), box=None, pad_edge=False)
    for point in found.points:
        losses = (f"{loss:.4f}" for loss in point.losses)
        table.add_row(str(point.steps), f"{point.mean:.4f}", f"{point.noise:.4f}", *losses)
    console = Console(width=110, highlight=False)
    console.print(table)
    console.print(f"text {found.corpus} ({found.corpus_digest}); {found.made_with}\nsaved in {path}")
