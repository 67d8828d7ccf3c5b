"""A run whose learners and syncer are killed in the middle, beside one that nobody disturbs: losses, and the seams.

    python -m tests.accept.seam OUT.png [TOKENS]        plays, prints the table, draws the picture

Rule: the demo's task and model; what happens next follows from merged tokens, never from a guess of time. `fresh` is
the interrupted run whose learners come back without their inner optimizer's state.
"""

import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.accept.stage import Child, Stage
from zdiloco.demo.evaluation import evaluate_newest
from zdiloco.demo.processes import free_port_base
from zdiloco.plots import figure, save

SEEDS = (0, 1, 2)
MODES = ("undisturbed", "own", "fresh")
TOKENS = 800_000
WHEN = ((0.35, "a"), (0.50, "b"), (0.60, "syncer"), (0.70, "a"))
"""Who is killed at which part of the run; it is started again at once."""
AFTER = 50
"""Steps on both sides of a seam that are compared."""
LIMIT_S = 900.0


@dataclass(slots=True)
class Played:
    """One run. `curves`: by learner, (step over all its processes, progress, mean loss, steps) line by line; `seams`:
    (learner, step)."""

    validation: float
    curves: dict[str, list[tuple[int, float, float, int]]]
    seams: list[tuple[str, int]] = field(default_factory=list)
    first_merged_s: list[float] = field(default_factory=list)

    def seam_losses(self) -> list[tuple[float, float]]:
        """Mean training loss of the AFTER steps before and after each seam."""
        return [
            (_mean(self.curves[name], at - AFTER, at), _mean(self.curves[name], at, at + AFTER))
            for name, at in self.seams
        ]


def _mean(curve: list[tuple[int, float, float, int]], start: int, stop: int) -> float:
    """The mean loss of steps start to stop; lines at the ends count by their steps within."""
    parts = [(loss, max(0, min(stop, at) - max(start, at - steps))) for at, _, loss, steps in curve]
    return sum(loss * steps for loss, steps in parts) / max(1, sum(steps for _, steps in parts))


class Game:
    """One run on a stage of its own."""

    def __init__(self, folder: Path, seed: int, mode: str, tokens: int) -> None:
        self._stage = Stage(folder, free_port_base())
        self._mode = mode
        own = {"own": "own", "fresh": "none"}.get(mode, "own")
        self._stage.write(
            run={"target_tokens": tokens},
            sync={"sync_period": 24, "num_fragments": 0, "checkpoint_every_s": 2.0},
            learner={"save_every_s": 1.0, "warm_start": own},
            task={
                "data_dir": "", "context": 96, "batch_size": 8, "num_shards": 2, "seed": seed,
                "min_data_bytes": 5_000_000, "validation_batches": 8,
            },
        )  # fmt: skip
        self._children: dict[str, Child] = {}

    def play(self) -> Played:
        """Play to the end; nobody outlives this."""
        try:
            self._start("syncer")
            for name in ("a", "b"):
                self._start(name)
            self._story()
            for child in self._children.values():
                assert child.wait() == 0, child.errors
            return self._played()
        finally:
            self._stage.close()

    def _start(self, name: str) -> None:
        shard = "01"["ab".find(name)]
        self._children[name] = self._stage.sync() if name == "syncer" else self._stage.learner(name, "--shard", shard)

    def _story(self) -> None:
        left = [] if self._mode == "undisturbed" else list(WHEN)
        ends, pause = time.monotonic() + LIMIT_S, threading.Event()
        while self._children["syncer"].code is None:
            assert time.monotonic() < ends, "the run does not end"
            progress = float(self._stage.status().get("progress", 0.0))
            if left and progress >= left[0][0]:
                _, name = left.pop(0)
                self._children[name].kill()
                self._start(name)
            pause.wait(0.1)
        assert not left

    def _played(self) -> Played:
        found = evaluate_newest(self._stage.config).evaluations[0].loss
        played = Played(validation=found, curves={"a": [], "b": []})
        logs = [_lines(path) for path in sorted((self._stage.run_dir / "learners").glob("*.jsonl"))]
        for lines in sorted(logs, key=lambda lines: float(lines[0]["t"])):
            name, began = lines[0]["name"], lines[0]["step"]
            if began:
                played.seams.append((name, began))
            if lines[-1]["kind"] == "end" and began:
                played.first_merged_s.append(lines[-1]["phases"].get("first contribution merged", float("nan")))
            played.curves[name] += [
                (line["step"], line["progress"], line["loss"], line["steps"])
                for line in lines
                if line["kind"] == "steps"
            ]
        return played


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


Look = Callable[[dict[str, list[Played]]], None]


def play_all(tokens: int, look: Look = lambda found: None) -> dict[str, list[Played]]:
    """Every mode with every seed; `look` sees what there is after each run."""
    found: dict[str, list[Played]] = {mode: [] for mode in MODES}
    for seed, mode in itertools.product(SEEDS, MODES):
        with tempfile.TemporaryDirectory(prefix="zdiloco-seam-") as folder:
            found[mode].append(Game(Path(folder), seed, mode, tokens).play())
        look(found)
    return found


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else float("nan")


def table(found: dict[str, list[Played]]) -> list[str]:
    """Validation loss by mode and seed, and what a seam does to the training loss."""
    lines = []
    for mode, plays in found.items():
        losses = [play.validation for play in plays]
        if not losses:
            continue
        shown = " ".join(f"{loss:.4f}" for loss in losses)
        text = f"{mode:12} validation {shown}, mean {statistics.mean(losses):.4f} ± {_spread(losses):.4f}"
        seams = [after - before for play in plays for before, after in play.seam_losses()]
        if seams:
            error = _spread(seams) / len(seams) ** 0.5
            text += (
                f"; {len(seams)} seams: training loss of the {AFTER} steps after less that of the {AFTER} before "
                f"{statistics.mean(seams):+.4f} ± {error:.4f}, worst {max(seams):+.4f}"
            )
        lines.append(text)
    return lines


def _draw_one(panel: Any, play: Played, color: str) -> None:
    for name, curve in play.curves.items():
        style = "-" if name == "a" else ":"
        panel.plot([line[1] for line in curve], [line[2] for line in curve], lw=0.8, color=color, ls=style)
    for name, at in play.seams:
        progress = next(line[1] for line in play.curves[name] if line[0] > at)
        panel.axvline(progress, color=color, lw=0.6, ls="--")


def draw(found: dict[str, list[Played]], path: Path) -> None:
    """One panel a mode: training loss of each learner of every seed over the run's progress, dashed where one died."""
    with figure(11, 9) as made:
        axes = made.subplots(len(found), 1, sharex=True, sharey=True)
        for panel, (mode, plays) in zip(axes, found.items(), strict=True):
            for seed, play in enumerate(plays):
                _draw_one(panel, play, f"C{seed}")
            panel.set_ylabel(f"{mode}\nnats per byte")
            panel.set_ylim(1.5, 3.2)
        axes[-1].set_xlabel("merged tokens ÷ target")
        save(made, path)


def main(out: str, tokens: str = str(TOKENS)) -> None:
    """Play, and after each run print and draw what there is."""

    def look(found: dict[str, list[Played]]) -> None:
        print("\n".join(table(found)), flush=True)
        waits = [round(seconds, 2) for play in found["own"] for seconds in play.first_merged_s]
        print("last returns, from the learner's start to its first merged contribution:", waits, "s", flush=True)
        draw(found, Path(out))

    play_all(int(tokens), look)


if __name__ == "__main__":
    main(*sys.argv[1:])
