"""What a run under chaos must show: each claim with its figure, from counted facts.

Rule: a claim that could not fail because nothing happened does not hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zdiloco.chaos.director import Done
from zdiloco.chaos.figures import Pauses
from zdiloco.chaos.fleet import Fault, Fleet
from zdiloco.core.ledger import Fates
from zdiloco.demo.checks import Check, all_hold, check_ledger
from zdiloco.rundir.audit import Audit, audit

P99_BOUND = 0.05
MAX_BOUND = 1.0
"""Of a step."""
MOST_TOLD = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The claims about one run that has ended, and its books."""

    checks: tuple[Check, ...]
    ledger: Fates

    @property
    def passed(self) -> bool:
        """Whether every claim holds that this run can tell."""
        return all_hold(self.checks)

    @property
    def failed(self) -> str:
        """What does not hold, in words."""
        return "; ".join(f"{check.name}: {check.figure}" for check in self.checks if check.passed is False)


def judge(fleet: Fleet, done: Sequence[Done]) -> Verdict:
    """Judge a run after `Fleet.end`. Raises ConfigError where what it has left cannot be read."""
    found = audit(fleet.run_dir)
    return Verdict(checks=checks_of(fleet, done, found), ledger=found.books.total)


def checks_of(fleet: Fleet, done: Sequence[Done], found: Audit) -> tuple[Check, ...]:
    """The claims that hold for every run under chaos."""
    listener, reader, adopted = fleet.listener, fleet.reader, fleet.adopted()
    stamps, epochs = listener.published.seen + listener.stable.seen, len(listener.published.epochs)
    slowest = max((each.settled_at - each.healed_at for each in done if each.settled_at), default=0.0)
    waited = sum(bool(each.settled_at) for each in done)
    return (
        check_ledger(found.books.gaps, found.comparison.differences, found.books.total.trained),
        _claim(
            fleet, Fault.STAMP, "no stamp ever goes back", bool(stamps and adopted),
            f"{stamps} broadcast ones in {epochs} epochs, {adopted} adopted ones",
        ),
        _claim(
            fleet, Fault.CHECKPOINT, "every checkpoint is whole, at any time", reader.reads > 0,
            f"{reader.reads} reads beside the syncers, {fleet.syncers} starts",
        ),
        _claim(
            fleet, Fault.STANDSTILL, "training always goes on", waited > 0,
            f"after {waited} of {len(done)} disturbances all learners were waited for, {slowest:.1f} s at most",
        ),
        _claim(fleet, Fault.END, "nobody ends but as told", True, f"{len(fleet.chronicle.merges)} rounds"),
    )  # fmt: skip


def _claim(fleet: Fleet, kind: Fault, name: str, told: bool, figure: str) -> Check:
    """It holds where something was seen (`told`) and no fault of this kind."""
    wrong = [what for each, what in fleet.faults if each is kind]
    return Check(name=name, passed=told and not wrong, figure="; ".join([figure, *wrong[:MOST_TOLD]]))


def check_pauses(pauses: Pauses | None) -> Check:
    """Survivors are not held up: what lies above an undisturbed run's longest call, in parts of a step."""
    name = "step() holds no survivor up"
    if pauses is None:
        return Check(name=name, passed=None, figure="nobody was undisturbed for long enough")
    return Check(
        name=name,
        passed=pauses.p99 <= P99_BOUND and pauses.longest <= MAX_BOUND,
        figure=(
            f"{pauses.calls} calls: p99 {pauses.p99:.1%} of a step above the control's longest ({pauses.control:.1%}), "
            f"bound {P99_BOUND:.0%}; longest {pauses.longest:.1%}, bound {MAX_BOUND:.0%}; as they are p99 "
            f"{pauses.raw_p99:.1%}, longest {pauses.raw_longest:.1%}"
        ),
    )
