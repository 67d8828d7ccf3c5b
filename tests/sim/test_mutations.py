"""Every broken rule is noticed: by random histories beside the model, and by what is looked at in time."""

from collections.abc import Callable
from typing import ClassVar

import pytest

from tests.core.test_oracle import History
from tests.sim.mutations import MUTATIONS, DoesNotFit, Mutation, mutated, mutated_code
from tests.sim.watch import watched
from zdiloco.core.params import SyncParams
from zdiloco.core.progress import Intake
from zdiloco.errors import ZdilocoError
from zdiloco.sim.audit import Audit
from zdiloco.sim.links import Link
from zdiloco.sim.world import World

SEEDS = 50
CALM_S = 20.0
ENDS = 3
"""Ends of runs that are played: they differ little."""
AT_LEAST = 12
NOTICED = (AssertionError, ZdilocoError, ValueError, KeyError)
"""What a check, a machine or the bounds of a message say. Whatever else is raised is a mutation that cannot run."""


class Calm(History):
    """The fleet of a history without loss and misfortune."""

    def lose(self, road: str, message: object) -> bool:
        return False

    def run(self) -> None:
        self.world.run(CALM_S)


class Borrowers(History):
    """One in which whoever joins borrows inner state."""

    learner: ClassVar[dict[str, str]] = {"warm_start": "peer"}


class Repeated(History):
    """One in which many a contribution arrives again, long after newer ones of its learner."""

    repeats: ClassVar[float] = 0.3


class Ended:
    """A run that reaches its target while a checkpoint is being written; everybody leaves in order, at once or with one
    whose link is slow."""

    def __init__(self, seed: int) -> None:
        params = SyncParams(sync_period=8, checkpoint_every_s=1.0)
        self.world = World(params, 2, seed, chunked=True, target_tokens=1000)
        self.world.save_s = 0.8
        Audit(self.world)
        self.world.join("a")
        if seed % 2:
            self.world.join("b")
        else:
            self.world.join("b", 0.08, Link(0.05, down_bytes_s=1e4))

    def run(self) -> None:
        self.world.run_until(lambda: not self.world.sites[0].alive, 90.0)
        assert {fallen.state for fallen in self.world.fallen} == {"left"}
        assert any("everybody has left" in stop for stop in self.world.stops)


KINDS = {
    Calm: "a calm fleet",
    Ended: "the end of a run",
    History: "a history",
    Borrowers: "borrowers",
    Repeated: "repeats",
}


def fault_of(seed: int) -> str:
    """By what the stories of this seed fail, the calm ones first; empty: they do not."""
    for kind, name in KINDS.items():
        if kind is Ended and seed >= ENDS:
            continue
        try:
            with watched():
                kind(seed).run()
        except NOTICED as fault:
            text = str(fault).partition("\n")[0] or "the model differs"
            return f"{name}: {type(fault).__name__}: {text}"[:110]
    return ""


def caught(mutation: Mutation) -> str:
    """By what the mutation is caught first, and at which seed."""
    with mutated(mutation):
        for seed in range(SEEDS):
            fault = fault_of(seed)
            if fault:
                return f"seed {seed:2d}: {fault}"
    return ""


def test_a_mutation_that_fits_nowhere_fails() -> None:
    with pytest.raises(DoesNotFit):
        mutated_code(Mutation("none", Intake.judge, "no such text", ""))
    with pytest.raises(DoesNotFit):
        mutated_code(Mutation("many", Intake.judge, "return", "return "))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_every_mutation_fits_and_is_taken_back(mutation: Mutation) -> None:
    before = mutation.function.__code__
    with mutated(mutation):
        assert mutation.function.__code__ != before
    assert mutation.function.__code__ is before


def test_unsubtracted_work_is_noticed() -> None:
    (mutation,) = [each for each in MUTATIONS if each.rule == "û is not subtracted"]
    assert caught(mutation)


@pytest.mark.slow
def test_nothing_is_noticed_where_nothing_is_broken() -> None:
    assert not [fault for seed in range(SEEDS) if (fault := fault_of(seed))]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_mutation_is_caught(say: Callable[[str], None]) -> None:
    found = {mutation.rule: caught(mutation) for mutation in MUTATIONS}
    say(f"{len(found)} mutations of core rules, each played on up to {SEEDS} seeds:")
    for rule, how in found.items():
        say(f"  {rule:45s} {how or 'NOT CAUGHT'}")
    assert len(found) >= AT_LEAST
    assert not [rule for rule, how in found.items() if not how]
