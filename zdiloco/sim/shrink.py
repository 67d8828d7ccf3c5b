"""A failing scenario made small: faults, learners, relays and time are taken away while it still fails in the same way.

Rule: the same way means the same rule broken (or the same kind of error); what fails otherwise is not taken. What is
left is printed as a transcript, which is a test when it is kept as a file.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from zdiloco.agenda import Broken
from zdiloco.errors import ConfigError, MachineError
from zdiloco.sim.fault_names import OF_RELAYS
from zdiloco.sim.play import failure
from zdiloco.sim.scenario import Fault, LearnerSpec, RelaySpec, Scenario
from zdiloco.sim.transcript import scenario_to_text

Fails = Callable[[Scenario], Exception | None]
MOST_TRIES = 200
KEEP = "to keep it as a test, save these lines as tests/sim/transcripts/NAME.txt:"


def kind_of(error: Exception) -> str:
    """In which way a scenario failed, without names and numbers."""
    if isinstance(error, Broken):
        return error.rule
    return f"{type(error).__name__} {re.sub(r'[0-9a-f.]*[0-9][0-9a-f.]*', '#', str(error))[:40]}"


def shrink(scenario: Scenario, error: Exception, fails: Fails = failure, tries: int = MOST_TRIES) -> Scenario:
    """The smallest scenario found within so many tries that fails in the way of `error`."""
    kind, left = kind_of(error), [tries]

    def still(smaller: Scenario) -> bool:
        left[0] -= 1
        found = fails(smaller)
        return found is not None and kind_of(found) == kind

    best, before = scenario, None
    while best is not before and left[0] > 0:
        before = best
        for way in (_fewer_faults, _less_time, _fewer_relays, _fewer_learners, _fewer_fragments, _plainer_learners):
            best = _try(way, best, still, left)
    return best


def _try(
    way: Callable[[Scenario], Iterator[Scenario]], best: Scenario, still: Callable[[Scenario], bool], left: list[int]
) -> Scenario:
    """Take a way of making smaller as far as it goes."""
    progress = True
    while progress and left[0] > 0:
        progress = False
        for smaller in way(best):
            if left[0] > 0 and still(smaller):
                best, progress = smaller, True
                break
    return best


def _fewer_faults(scenario: Scenario) -> Iterator[Scenario]:
    """Halves, quarters, and single faults are left out."""
    faults, size = scenario.faults, len(scenario.faults)
    while size > 1:
        size = (size + 1) // 2
        for start in range(0, len(faults), size):
            yield replace(scenario, faults=faults[:start] + faults[start + size :])
        if size == 1:
            return
    if len(faults) == 1:
        yield replace(scenario, faults=())


def _less_time(scenario: Scenario) -> Iterator[Scenario]:
    last = max((fault.at_s for fault in scenario.faults), default=0.0)
    for seconds in (last + 1.0, (last + scenario.seconds) / 2):
        if seconds < scenario.seconds - 0.5:
            yield replace(scenario, seconds=round(seconds, 1))


def _fewer_relays(scenario: Scenario) -> Iterator[Scenario]:
    """Without one relay, whose region then dials where it dialled."""
    for spec in scenario.relays:
        relays = tuple(
            replace(other, region=spec.region) if other.region == spec.name else other
            for other in scenario.relays
            if other is not spec
        )
        faults = tuple(fault for fault in scenario.faults if fault.name not in OF_RELAYS or fault.who != spec.name)
        yield from _allowed(scenario, scenario.learners, faults, relays)


def _fewer_learners(scenario: Scenario) -> Iterator[Scenario]:
    for spec in scenario.learners:
        others = tuple(other for other in scenario.learners if other is not spec)
        faults = tuple(fault for fault in scenario.faults if fault.who != spec.name)
        yield from _allowed(scenario, others, faults, scenario.relays)


def _allowed(
    scenario: Scenario, learners: tuple[LearnerSpec, ...], faults: tuple[Fault, ...], relays: tuple[RelaySpec, ...]
) -> Iterator[Scenario]:  # fmt: skip
    try:
        yield replace(scenario, learners=learners, faults=faults, relays=relays)
    except ConfigError:
        return  # too few for the quorum, or a region has gone


def _fewer_fragments(scenario: Scenario) -> Iterator[Scenario]:
    if scenario.fragments > 1:
        yield replace(scenario, fragments=1)
        yield replace(scenario, fragments=scenario.fragments - 1)


def _plainer_learners(scenario: Scenario) -> Iterator[Scenario]:
    """Links and paces without chance, one learner at a time."""
    for index, spec in enumerate(scenario.learners):
        plain = replace(spec, jitter=0.0, drift=0.0, stalls=0.0, stall_s=0.0, link_jitter_s=0.0, loss=0.0)
        if plain != spec:
            learners = (*scenario.learners[:index], plain, *scenario.learners[index + 1 :])
            yield replace(scenario, learners=learners)


def smallest(scenario: Scenario, error: MachineError) -> str:
    """The transcript to keep of a scenario that failed. What was only expected and did not occur is left as it is."""
    if kind_of(error) == "expected":
        return explain(scenario, error)
    small = shrink(scenario, error, tries=MOST_TRIES)
    return explain(small, failure(small) or error)


def explain(scenario: Scenario, error: MachineError) -> str:
    """A failing scenario as text: what does not hold, and the transcript to keep as a test."""
    return scenario_to_text(scenario, f"seed {scenario.seed} fails: {error}")
