"""`zdiloco demo --chaos` from curtain to curtain: four unequal learners and a syncer under a seeded script.

Rule: what would make it fail at the end (no matplotlib) is asked for at the beginning. What happens is told line by
line while it happens, on whatever `tell` writes to.
"""

import math
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zdiloco import plots
from zdiloco.chaos import picture
from zdiloco.chaos.director import Director, Done
from zdiloco.chaos.figures import Return, grouped, pauses_of, returns_of, told
from zdiloco.chaos.fleet import Fleet
from zdiloco.chaos.forked import Nursery
from zdiloco.chaos.script import deeds
from zdiloco.chaos.verdict import check_pauses, judge
from zdiloco.core.ledger import Fates
from zdiloco.demo.checks import Check, all_hold
from zdiloco.demo.learner_log import read_notes
from zdiloco.demo.outcome import judge as evaluate
from zdiloco.demo.outcome import named_values
from zdiloco.errors import ConfigError
from zdiloco.rundir.books import read_cut
from zdiloco.rundir.fitting import layout_of_cut

LEARNERS = {"a": 3.0, "b": 4.0, "c": 5.0, "d": 8.0}
"""Name -> slowdown: all four together need one core."""
SECTIONS: dict[str, dict[str, Any]] = {"sync": {"checkpoint_every_s": 2.0}, "task": {"num_shards": len(LEARNERS)}}
QUIET_S = 6.0
"""Before the first disturbance: what `step()` takes in it is what the others are compared with."""
LAST_S = 8.0
"""No disturbance begins so shortly before the end."""
STATUS_S = 5.0
LEARNED = 0.5
"""Nats per byte that the merged model must have gained in so many rounds or more."""
MANY_ROUNDS = 50
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """What is to happen: `minutes` under the script of `seed`."""

    minutes: float = 5.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0.5 <= self.minutes <= 24 * 60:
            raise ConfigError(f"--minutes is {self.minutes:g}; allowed is 0.5 to {24 * 60}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A finished run under chaos."""

    run_dir: Path
    plot: Plot
    seconds: float
    loss_before: float
    loss_after: float
    ledger: Fates
    rounds: int
    done: tuple[Done, ...]
    returns: tuple[Return, ...]
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every claim holds that this run can tell."""
        return all_hold(self.checks)

    def to_obj(self) -> dict[str, Any]:
        """The report as builtins, for JSON."""
        return {
            "passed": self.passed,
            "seed": self.plot.seed,
            "minutes": self.plot.minutes,
            "seconds": self.seconds,
            "loss_before": self.loss_before,
            "loss_after": self.loss_after if math.isfinite(self.loss_after) else None,
            "ledger": self.ledger.rounded(),
            "rounds": self.rounds,
            "disturbances": [
                {"what": str(each.deed), "kind": each.deed.kind.name.lower(), "whom": list(each.deed.whom)}
                for each in self.done
            ],
            "returns": [{"who": r.who, "seconds": r.seconds, "phases": dict(r.phases)} for r in self.returns],
            "checks": [asdict(check) for check in self.checks],
            "run_dir": str(self.run_dir),
            "picture": str(picture_path(self.run_dir)),
        }


def picture_path(folder: Path) -> Path:
    """Where the picture lies."""
    return folder / "chaos.png"


def perform(folder: Path, plot: Plot, tell: Tell) -> Report:
    """Play in the empty `folder`, judge, and draw. Raises DemoFailed, ConfigError, StoreError."""
    plots.require()
    _empty(folder)
    began_at = time.monotonic()

    def say(line: str) -> None:
        tell(f"{time.monotonic() - began_at:6.1f} s  {line}")

    with closing(Nursery(folder)) as forks, Fleet(folder, LEARNERS, SECTIONS, forks=forks) as fleet:
        say(f"starts a syncer and {', '.join(LEARNERS)}; seed {plot.seed}, all logs in {fleet.logs}")
        fleet.begin()
        trains_at = time.monotonic()
        fleet.tick = _Ticker(fleet, say)
        fleet.rest(QUIET_S)
        quiet, director = (trains_at, time.monotonic()), Director(fleet, say)
        ends = began_at + 60 * plot.minutes - LAST_S
        director.play(deeds(plot.seed, fleet.names), until=lambda: time.monotonic() > ends)
        say("the last disturbance is over; all train on for a moment, then leave")
        fleet.settle(time.monotonic())
        fleet.rest(max(1.0, ends + LAST_S / 2 - time.monotonic()))
        fleet.end()
    say("evaluates the merged model")
    report = _report(fleet, plot, director.done, quiet)
    picture.draw(_scene(fleet, report, trains_at), picture_path(folder))
    return report


def _empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: a demo wants a folder of its own")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}") from error


def _report(fleet: Fleet, plot: Plot, done: list[Done], quiet: tuple[float, float]) -> Report:
    verdict, cut = judge(fleet, done), read_cut(fleet.run_dir)
    outcome = evaluate(fleet.config.task, named_values(cut, layout_of_cut(cut)), steps=0)
    gained = outcome.loss_before - outcome.loss_after
    rounds = len(fleet.chronicle.merges)
    learned = Check(
        name="and the model has learned meanwhile",
        passed=True if gained > LEARNED else False if rounds >= MANY_ROUNDS else None,
        figure=f"validation loss {outcome.loss_before:.3f} before, {outcome.loss_after:.3f} after {rounds:,} rounds",
    )
    return Report(
        run_dir=fleet.folder,
        plot=plot,
        seconds=done[-1].ended_at - quiet[0] if done else 0.0,
        loss_before=outcome.loss_before,
        loss_after=outcome.loss_after,
        ledger=verdict.ledger,
        rounds=rounds,
        done=tuple(done),
        returns=tuple(returns_of(done, fleet.chronicle)),
        checks=(*verdict.checks, learned, check_pauses(pauses_of(fleet.run_dir, done, quiet))),
    )


def _scene(fleet: Fleet, report: Report, trains_at: float) -> picture.Scene:
    lives = [(life.name, life.started_at, life.ended_at or life.started_at) for life in fleet.lives]
    return picture.Scene(
        names=fleet.names,
        notes=[read_notes(path) for path in sorted((fleet.run_dir / "learners").glob("*.jsonl"))],
        lives=lives,
        done=report.done,
        merged_at=fleet.chronicle.merges.times,
        began_at=trains_at,
        ended_at=max(until for _, _, until in lives),
        loss_after=report.loss_after,
        seed=report.plot.seed,
    )


class _Ticker:
    """Tells from time to time how the run stands."""

    def __init__(self, fleet: Fleet, tell: Tell) -> None:
        self._fleet, self._tell = fleet, tell
        self._told_at, self._rounds = time.monotonic(), len(fleet.chronicle.merges)

    def __call__(self) -> None:
        now, rounds = time.monotonic(), len(self._fleet.chronicle.merges)
        if now - self._told_at >= STATUS_S:
            self._tell(f"  {(rounds - self._rounds) / (now - self._told_at):.1f} rounds a second, {rounds:,} in all")
            self._told_at, self._rounds = now, rounds


def lines_of(report: Report) -> Iterable[str]:
    """The report for people."""
    count, seed = len(report.done), report.plot.seed
    yield f"{count} disturbances in {report.seconds:.0f} s, {report.rounds:,} rounds; seed {seed}"
    for who, returns in grouped(report.returns).items():
        yield f"killed {who} merged again: {told(returns)}"
    words = {True: "holds", False: "FAILED", None: "not judged"}
    for check in report.checks:
        yield f"{words[check.passed]:<11} {check.name}: {check.figure}"
    yield f"logs        {report.run_dir / 'logs'}"
    yield f"picture     {picture_path(report.run_dir)}"
