"""Every broken rule is noticed: by random histories beside the model, and by what is looked at in time."""

from collections.abc import Callable

import pytest

from tests.core.test_oracle import History
from tests.sim.mutations import MUTATIONS, DoesNotFit, Mutation, mutated, mutated_code
from tests.sim.watch import watched
from zdiloco.core.progress import Intake

SEEDS = 50
CALM_S = 20.0
AT_LEAST = 12


class Calm(History):
    """The fleet of a history without loss and misfortune."""

    def lose(self, road: str, message: object) -> bool:
        return False

    def run(self) -> None:  # type: ignore[override]
        self.world.run(CALM_S)


def fault_of(seed: int) -> str:
    """By what the history of this seed fails, calm or not; empty: it does not."""
    for kind in (Calm, History):
        try:
            with watched():
                kind(seed).run()
        except Exception as fault:
            text = str(fault).partition("\n")[0] or "the model differs"
            return f"{'a calm fleet' if kind is Calm else 'a history'}: {type(fault).__name__}: {text}"[:110]
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
