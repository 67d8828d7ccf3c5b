"""A failing scenario becomes small: only what the failure needs is left, and it still fails in the same way."""

import pytest

from zdiloco.agenda import Broken
from zdiloco.sim.chaos import chaos
from zdiloco.sim.fault_names import FaultName
from zdiloco.sim.scenario import Scenario
from zdiloco.sim.shrink import explain, kind_of, shrink
from zdiloco.sim.transcript import scenario_from_text


def fails_with_a_crash_and_a_kill(scenario: Scenario) -> Exception | None:
    """A stand-in for playing: it fails where a crash comes before a kill."""
    names = [fault.name for fault in scenario.faults]
    if FaultName.CRASH in names and FaultName.KILL in names[names.index(FaultName.CRASH) :]:
        return Broken("planted", f"{len(names)} faults")
    return Broken("another", "too few learners") if len(scenario.learners) < 2 else None


@pytest.fixture
def failing() -> Scenario:
    return next(each for each in map(chaos, range(100)) if each.relays and kind(each) == "planted")


def kind(scenario: Scenario) -> str:
    error = fails_with_a_crash_and_a_kill(scenario)
    return kind_of(error) if error else ""


def test_only_what_the_failure_needs_is_left(failing: Scenario) -> None:
    error = fails_with_a_crash_and_a_kill(failing)
    assert error is not None
    small = shrink(failing, error, fails_with_a_crash_and_a_kill)
    assert [fault.name for fault in small.faults] == [FaultName.CRASH, FaultName.KILL]
    assert kind(small) == "planted", "not the other way to fail"
    assert len(small.learners) <= 2
    assert small.relays == ()
    assert small.fragments == 1
    assert small.seconds <= max(fault.at_s for fault in small.faults) + 1.5


def test_a_try_costs_and_tries_end(failing: Scenario) -> None:
    asked: list[Scenario] = []

    def fails(scenario: Scenario) -> Exception | None:
        asked.append(scenario)
        return fails_with_a_crash_and_a_kill(scenario)

    error = fails_with_a_crash_and_a_kill(failing)
    assert error is not None
    shrink(failing, error, fails, tries=7)
    assert len(asked) == 7


def test_what_is_printed_is_the_scenario(failing: Scenario) -> None:
    text = explain(failing, Broken("planted", "why"))
    assert text.startswith(f"# seed {failing.seed} fails: planted: why\n")
    assert scenario_from_text(text) == failing


def test_faults_alike_have_the_same_kind() -> None:
    assert kind_of(Broken("ledger", "l0")) == kind_of(Broken("ledger", "l1"))
    assert kind_of(KeyError("fragment 3")) == kind_of(KeyError("fragment 12"))
    assert kind_of(KeyError(3)) != kind_of(ValueError(3))
