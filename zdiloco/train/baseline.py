"""What one learner alone reaches in N inner steps: the yardstick of the demo.

Each point is the *final* validation loss of a run of exactly N steps that walks the whole schedule, warm-up to the end
of the cosine. Reading one long run at its N-th step instead would set a finished model against one whose rate is still
high, and flatter the fleet. A lone learner has the same model, batch, context, rates and held-out bytes as each learner
of the fleet: read at the step count of the fastest learner, the curve says what that learner would have had alone.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from zdiloco.errors import ConfigError, StoreError
from zdiloco.train.params import TaskParams
from zdiloco.train.tasks import Task

SHIPPED = Path(__file__).with_name("baseline.json")
SEEDS = (0, 1, 2)
TOTALS = (200, 300, 450, 700, 1000, 1500, 2200)
UNRELATED = frozenset({"seed", "device", "data_dir", "min_data_bytes"})  # keys that do not make another curve

Progress = Callable[[int, int], None]  # inner steps done, inner steps in all


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Final validation losses (nats/byte), one a seed, of lone runs of exactly `steps` inner steps."""

    steps: int
    losses: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.steps < 1 or len(self.losses) < 2 or not all(math.isfinite(x) for x in self.losses):
            raise ConfigError(
                f"a baseline point has {self.steps} steps and losses {self.losses}, "
                "but needs at least 1 step and 2 finite losses"
            )

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.losses)

    @property
    def noise(self) -> float:
        """Standard deviation over the seeds (n - 1 in the divisor)."""
        return statistics.stdev(self.losses)


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A curve and what it was measured under; `points` rise in steps."""

    settings: Mapping[str, object]
    corpus: str
    corpus_digest: str
    made_with: str
    seeds: tuple[int, ...]
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        steps = [p.steps for p in self.points]
        if len(steps) < 2 or sorted(set(steps)) != steps:
            raise ConfigError(f"a baseline needs two points or more with rising steps, but has steps {steps}")

    def at_step(self, steps: int) -> tuple[float, float]:
        """Loss and seed noise of a lone run of `steps` steps, linear in log(steps) between the points.

        Outside the points it errs against whoever is compared with it: below the first, the first one's loss (a
        shorter run would be worse); beyond the last, the line of the last two (a real curve bends upwards from it).
        """
        first, last = self.points[0], self.points[-1]
        if steps <= first.steps:
            return first.mean, first.noise
        right = min(bisect_left([p.steps for p in self.points], steps), len(self.points) - 1)
        a, b = self.points[right - 1], self.points[right]
        share = math.log(steps / a.steps) / math.log(b.steps / a.steps)
        noise = last.noise if share > 1 else a.noise + share * (b.noise - a.noise)
        return a.mean + share * (b.mean - a.mean), noise

    def differences(self, params: TaskParams) -> list[str]:
        """Name each setting in which `params` differ from those measured, such as 'lr 0.01, measured 0.004'."""
        mine = _settings(params)
        keys = sorted(mine.keys() | self.settings.keys())
        return [
            f"{key} {mine.get(key)}, measured {self.settings.get(key)}"
            for key in keys
            if mine.get(key) != self.settings.get(key)
        ]

    def save(self, path: Path) -> None:
        """Write the curve as JSON that `curve` reads back. Raises StoreError when the disk refuses."""
        body = asdict(self)
        for row, point in zip(body["points"], self.points, strict=True):
            row["losses"] = [round(x, 5) for x in point.losses]
            row |= {"mean": round(point.mean, 5), "noise": round(point.noise, 5)}
        try:
            path.write_text(json.dumps(body, indent=1) + "\n")
        except OSError as error:
            raise StoreError(f"cannot write the baseline to {path}: {error.strerror}") from error


def curve(path: Path | None = None) -> Baseline:
    """Read the shipped curve, or the one at `path`. Raises StoreError when it is missing or damaged."""
    source = SHIPPED if path is None else path
    try:
        body = json.loads(source.read_text())
        points = tuple(Point(steps=int(p["steps"]), losses=tuple(map(float, p["losses"]))) for p in body["points"])
        return Baseline(
            settings=dict(body["settings"]),
            corpus=str(body["corpus"]),
            corpus_digest=str(body["corpus_digest"]),
            made_with=str(body["made_with"]),
            seeds=tuple(map(int, body["seeds"])),
            points=points,
        )
    except OSError as error:
        raise StoreError(f"cannot read the baseline {source}: {error.strerror}; measure it again") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, ConfigError) as error:
        raise StoreError(f"the baseline {source} is damaged ({error!r}); measure it again") from error


def at_step(steps: int, path: Path | None = None) -> tuple[float, float]:
    """Loss and seed noise that one learner alone reaches in `steps` inner steps; see `Baseline.at_step`."""
    return curve(path).at_step(steps)


def measure(
    params: TaskParams,
    *,
    seeds: Sequence[int] = SEEDS,
    totals: Sequence[int] = TOTALS,
    progress: Progress | None = None,
) -> Baseline:
    """Train a lone learner for each total and seed, on one thread, and return their curve.

    Takes sum(totals) * len(seeds) inner steps; `progress` hears of each tenth of a run. Torch's thread count is put
    back afterwards.
    """
    everything, done = sum(totals) * len(seeds), 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    points = []
    try:
        for total in sorted(totals):
            losses = []
            for seed in seeds:
                before = done
                losses.append(_lone_run(replace(params, seed=seed), total, _shifted(progress, before, everything)))
                done += total
            points.append(Point(steps=total, losses=tuple(losses)))
    finally:
        torch.set_num_threads(threads)
    corpus = Task(params, shard=0).corpus
    return Baseline(
        settings=_settings(params),
        corpus=f"{corpus.files} files, {(len(corpus.train) + len(corpus.held_out)) / 1e6:.1f} MB",
        corpus_digest=corpus.digest,
        made_with=f"python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}, one thread",
        seeds=tuple(seeds),
        points=tuple(points),
    )


def _lone_run(params: TaskParams, total: int, progress: Progress | None) -> float:
    """Train alone for `total` steps through the whole schedule; return the validation loss at the end."""
    task = Task(params, shard=0)
    for step in range(total):
        task.train_step(task.schedule.rate(step / total, step))
        if progress is not None and (step + 1) % max(1, total // 10) == 0:
            progress(step + 1, total)
    return task.evaluate()


def _shifted(progress: Progress | None, before: int, everything: int) -> Progress | None:
    """Report one run's steps as steps of the whole measurement."""
    if progress is None:
        return None
    return lambda done, _total: progress(before + done, everything)


def _settings(params: TaskParams) -> dict[str, object]:
    """The settings that shape a curve."""
    return {key: value for key, value in asdict(params).items() if key not in UNRELATED}
