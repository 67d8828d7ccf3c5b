"""A report of chaos that is over, made up: one deed of every kind."""

from pathlib import Path

from zdiloco.chaos.director import Done
from zdiloco.chaos.figures import Return
from zdiloco.chaos.script import SYNCER, Deed, Kind
from zdiloco.chaos.show import Plot, Report
from zdiloco.core.ledger import Fates
from zdiloco.demo.checks import Check

LEDGER = Fates(trained=100.0, merged=90.0, unmerged=0.0, lost=6.0, dropped=0.0, left=4.0)


def done_of(number: int, kind: Kind) -> Done:
    """A deed that took 2 s, three seconds after the one before it."""
    whom = (SYNCER, "a") if kind is Kind.KILL_BOTH else (SYNCER,) if kind is Kind.KILL_SYNCER else ("b",)
    deed = Deed(number=number, kind=kind, whom=whom, pause_s=0.0, for_s=2.0)
    return Done(deed, began_at=3.0 * number, healed_at=3.0 * number + 2, settled_at=3.0 * number + 2.5)


def report_of(folder: Path, *, passed: bool = True) -> Report:
    """A report with one claim that holds, or not."""
    return Report(
        run_dir=folder,
        plot=Plot(minutes=1.0, seed=4),
        seconds=42.0,
        loss_before=5.5,
        loss_after=2.5,
        ledger=LEDGER,
        rounds=300,
        done=tuple(done_of(number, kind) for number, kind in enumerate(Kind, 1)),
        returns=(Return(who="a", kind=Kind.KILL_LEARNER, phases={"is welcome": 0.25, "is merged": 0.5}),),
        checks=(Check(name="a claim", passed=passed, figure="a figure"),),
    )
