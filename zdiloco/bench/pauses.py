"""How long `step()` holds a training loop up when somebody else dies or stalls.

Rule: a pause is the time inside `step()` less the longest call of an undisturbed control run, right before, of the same
processes. The run hears of deaths within two seconds here, so each disturbance shows all of its consequences: silence,
suspicion, somebody gone, the return. A disturbance lasts from the signal until its victim is merged again.
"""

import logging
import math
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from zdiloco.bench.loop import LAYERS, STEP_S, Record
from zdiloco.bench.results import Result
from zdiloco.bench.rounds import Rounds, Span, open_calls, rounds_within
from zdiloco.bench.stage import EVENT_S, SYNC_PERIOD, Stage, member
from zdiloco.demo.processes import Child
from zdiloco.rundir.journal import read_journal

log = logging.getLogger(__name__)

TIMES: dict[str, dict[str, Any]] = {
    "sync": {"beat_every_s": 0.2, "suspect_after_s": 1.0, "gone_after_s": 2.0, "recover_wait_s": 2.5},
    "learner": {"silent_after_s": 1.0, "answer_timeout_s": 0.5},
    "net": {"stall_s": 0.5},
}
"""Settings in which nothing takes longer than two seconds to be noticed."""
DOWN_S = 2.0
"""A killed syncer is away for so long: learners call it silent after half of it."""
SETTLE_S = 2.5 * SYNC_PERIOD * STEP_S
"""Between two disturbances: time for two turns of rounds, by which is judged whether the run is sound."""
P99_BOUND = 0.05
MAX_BOUND = 1.0
"""Of a step."""


@dataclass(slots=True)
class Case:
    """All disturbances of one kind. `spans`: each from the signal to the return; `sound`: what lies between them."""

    name: str
    spans: list[Span] = field(default_factory=list)
    sound: list[Span] = field(default_factory=list)


class Pauses:
    """A syncer, the learner `a` that is measured, and the learner `b` beside it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.syncer, self.a, self.b = stage.syncer(), stage.player("a"), stage.player("b")

    def start(self) -> None:
        """Have both learners join, and wait until rounds merge both."""
        self.a.tell("attach")
        self.b.tell("attach")
        for player in (self.a, self.b):
            player.answer(EVENT_S)
        self._merged("b")
        self._stage.until(lambda status: status["rounds"] >= 2 * LAYERS, "two turns of rounds", *self._all)
        time.sleep(SETTLE_S)

    @property
    def _all(self) -> tuple[Child, ...]:
        return self.syncer, self.a, self.b

    def _merged(self, name: str, since: int = 0) -> None:
        """Wait for more than `since` rounds with it; a process that stood still keeps those that it had."""
        self._stage.until(lambda status: member(status, name).get("rounds", 0) > since, f"{name} is merged", *self._all)

    def _rounds(self, name: str) -> int:
        status = self._stage.until(lambda status: bool(member(status, name)), f"{name} is there", *self._all)
        return int(member(status, name).get("rounds", 0))

    def _gone(self, name: str) -> None:
        self._stage.until(lambda status: not member(status, name), f"{name} counts as gone", self.syncer, self.a)

    def kill_learner(self) -> None:
        """b dies, counts as gone, and comes back as a new process."""
        self.b.kill()
        self._gone("b")
        self.b = self._stage.player("b")
        self.b.do("attach")
        self._merged("b")

    def stop_learner(self) -> None:
        """b stands still until it counts as gone, and goes on."""
        before = self._rounds("b")
        self.b.send(signal.SIGSTOP)
        try:
            self._gone("b")
        finally:
            self.b.send(signal.SIGCONT)
        self._merged("b", before)

    def kill_syncer(self) -> None:
        """The syncer dies, and another one goes on from disk and fleet."""
        self.syncer.kill()
        time.sleep(DOWN_S)
        self.syncer = self._stage.syncer()
        self._merged("a")
        self._merged("b")

    def case(self, name: str, disturb: Callable[[], None], times: int) -> Case:
        """Disturb so many times, and let the run settle after each."""
        case = Case(name)
        for number in range(times):
            log.info("%s: %d of %d", name, number + 1, times)
            began = time.monotonic()
            disturb()
            ended = time.monotonic()
            time.sleep(SETTLE_S)
            case.spans.append((began, ended))
            case.sound.append((ended, time.monotonic()))
        if name != "pause_kill_syncer":
            case.sound = [(case.spans[0][0], case.sound[-1][1])]  # the syncer opens rounds all the time
        return case


def measure_pauses(parameters: int, steps: int, times: int, *, keyed: bool) -> list[Result]:
    """One result for each kind of disturbance, each done `times` times."""
    with Stage(parameters, STEP_S, TIMES, keyed=keyed) as stage:
        play = Pauses(stage)
        play.start()
        log.info("measures the undisturbed control run")
        control = Record(**play.a.do(f"measure {steps}", EVENT_S + 10 * steps * STEP_S))
        play.a.do("begin")
        cases = [
            play.case("pause_kill_learner", play.kill_learner, times),
            play.case("pause_stop_learner", play.stop_learner, times),
            play.case("pause_kill_syncer", play.kill_syncer, times),
        ]
        still_open = open_calls(stage.status(), time.monotonic())
        record = Record(**play.a.do("end"))
        for player in (play.a, play.b):
            player.kill()
        stage.end(play.syncer)
        journal = list(read_journal(stage.config.run.path))
    step_s = (control.ended - control.began) / len(control.pauses)
    due = cases[-1].sound[-1][1] - SYNC_PERIOD * STEP_S
    settled = [called_at for called_at in still_open if called_at < due]  # the others have their time yet
    return [judge(case, control, record, rounds_within(journal, "a", case.sound, step_s, settled)) for case in cases]


def judge(case: Case, control: Record, record: Record, rounds: Rounds) -> Result:
    """The pauses within the spans of a case, against a step. p99 is over all calls in them."""
    longest = max(control.pauses)
    calls = list(zip(record.at, record.pauses, strict=True))
    # A call counts if it was under way within the span.
    inside = [[s for at, s in calls if began <= at + s and at <= ended] for began, ended in case.spans]
    pauses = [max(0.0, s - longest) for span in inside for s in span]
    p99, worst = quantile(pauses, 0.99), max(pauses)
    raw = [s for span in inside for s in span]
    missed = (f"longest pause {worst * 1e3:.1f} ms, at most one step is allowed",) if worst > MAX_BOUND * STEP_S else ()
    return Result(
        name=case.name, ours=1e3 * p99, reference=1e3 * STEP_S, unit="ms", better="lower", bound=P99_BOUND,
        void=rounds.void(SYNC_PERIOD), missed=missed,
        details={
            "times": len(case.spans), "calls": len(pauses),
            "pause_ms_p99": 1e3 * p99, "pause_ms_max": 1e3 * worst, "max_ratio": worst / STEP_S, "max_bound": MAX_BOUND,
            "worst_ms": [1e3 * max(0.0, max(span) - longest) for span in inside],
            "step_ms_p50": 1e3 * statistics.median(raw), "step_ms_p99": 1e3 * quantile(raw, 0.99),
            "step_ms_max": 1e3 * max(raw),
            "control_ms_p99": 1e3 * quantile(control.pauses, 0.99), "control_ms_max": 1e3 * longest,
            **rounds.to_obj(),
        },
        remark=f"{len(case.spans)} times, {len(raw)} calls, longest pause {worst * 1e3:.2f} ms; step() p99 "
        f"{1e3 * quantile(raw, 0.99):.2f}, max {1e3 * max(raw):.2f}, control max {1e3 * longest:.2f} ms; "
        f"{rounds.words}",
    )  # fmt: skip


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below so large a share of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
