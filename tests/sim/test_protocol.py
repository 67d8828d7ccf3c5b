"""The exactly-once protocol, looked at whole: every order, any loss, repetition and delay, and a crash of each side."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.mutations import MUTATIONS, Mutation, mutated
from tests.sim.protocol_search import Found, ProtocolSearch
from tests.sim.protocol_world import DEAD, Bounds, Numbers, Spent, World
from zdiloco.core import duty, progress, start

SMALL = Bounds(steps=2, contributions=2, learner_crashes=0)
FULL = Bounds()
"""Three steps and three contributions of two learners, one crash of each side."""
LONG = {
    "three contributions, a crash of each side, one drop": Bounds(drops=1),
    "three contributions, two crashes of the syncer": Bounds(learner_crashes=0, syncer_crashes=2),
    "four contributions, one crash of the syncer": Bounds(contributions=4, learner_crashes=0),
}
WITH_A_DROP = Bounds(steps=1, contributions=1, learner_crashes=0, drops=1)
SOURCES = ("Intake.", "LearnerProgress.", "Recovery.", "Reception.judge_recovery", "Duty.", "add_record")
OWN = (
    Mutation("map: a learner's does not follow a broadcast", duty.Duty.take_map,
             "add_record(self.map, records)", "self.map"),
    Mutation("map: it forgets what was merged before", progress.add_record,
             "tokens=entry.tokens + tokens", "tokens=entry.tokens"),
    Mutation("map: a broadcast's record is not read", duty.Duty.mine, "if entry:", "if False:"),
    Mutation("recovery: the fleet is not asked", start.Recovery._ask, "stamp > max(", "stamp < max("),
    Mutation("rollback: it is taken for nothing new", progress.LearnerProgress.judge, "mine < self.after", "False"),
)  # fmt: skip
BROKEN = [m for m in (*MUTATIONS, *OWN) if m.function.__qualname__.startswith(SOURCES)]
BRANCHES = {
    "merged", "carried", "rolled_back", "held", "known", "replaces", "refused: epoch", "refused: after", "refused: seq",
}  # fmt: skip


def explore(name: str, bounds: Bounds, say: Callable[[str], None]) -> None:
    """The bounds are used up, and every fate is met but one: nobody has to give up what it cannot tell."""
    search = ProtocolSearch(bounds)
    count = search.run()
    say(f"protocol, {name}: {count} states, {search.steps} steps between them, {len(search.things)} parts and words")
    fates = search.fates()
    say("  " + ", ".join(f"{times} {fate}" for fate, times in sorted(fates.items()) if fate))
    assert {fate for fate in fates if fate} == BRANCHES
    used_up = [max(counts) for counts in zip(*(world.spent for world in search.came), strict=True)]
    assert used_up == [getattr(bounds, name) for name in Spent._fields]


def how_found(mutation: Mutation) -> str:
    """How the smallest search that finds it tells that a rule is broken."""
    bounds = WITH_A_DROP if mutation.rule.startswith("drops") else SMALL
    with mutated(mutation), pytest.raises(Found) as fault:
        ProtocolSearch(bounds).run()
    return str(fault.value)


def test_every_order_of_two_contributions_and_a_syncer_crash(say: Callable[[str], None]) -> None:
    explore("two contributions, one syncer crash", SMALL, say)


@pytest.mark.parametrize(
    ("rule", "fault", "path"),
    [
        ("after: it need not fit", "it is merged twice", "a steps > a cuts > a cuts > an offer of a arrives"),
        ("kept: nothing is taken back", "the counters", "syncer dies > syncer returns, 0 reached"),
        ("held: they are merged twice", "it is merged twice", "an offer of a arrives > all goes well from here on"),
        ("drops: what is under way stays valid", "sent, and not in u", "a steps > a cuts > a drop"),
    ],
)
def test_a_broken_rule_is_found_with_the_path_to_it(rule: str, fault: str, path: str) -> None:
    (mutation,) = [each for each in BROKEN if each.rule == rule]
    told = how_found(mutation)
    assert fault in told
    assert path in told


@pytest.mark.slow
def test_every_broken_rule_is_found(say: Callable[[str], None]) -> None:
    assert len(BROKEN) >= 18
    say(f"protocol, {len(BROKEN)} broken rules, and the shortest path to each fault:")
    for mutation in BROKEN:
        fault, path = how_found(mutation).split("\n")
        say(f"  {mutation.rule}: {fault}")
        say(f"    {path}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_order_of_three_contributions_and_a_crash_of_each_side(say: Callable[[str], None]) -> None:
    explore("three contributions, a crash of each side", FULL, say)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LONG)
def test_every_order_of_more(name: str, say: Callable[[str], None]) -> None:
    explore(name, LONG[name], say)


class LeavesNothingOut(ProtocolSearch):
    """Whatever was said once may come for ever, whether or not anybody can make anything of it."""

    def lasts(self, part: int, number: int) -> bool:
        return True

    def newest(self, world: World, stable: int) -> Numbers:
        return tuple(sorted({*world.stables, stable}))


def met(search: ProtocolSearch) -> set[Any]:
    """Which learners, syncers and disks are met together, and with what is used up."""
    search.run()
    fingerprint = {number: key for key, number in search.numbers.items()}
    fingerprint[DEAD] = None
    return {
        (tuple(fingerprint[part] for part in (*world.learners, world.syncer)), world.spent) for world in search.came
    }


@pytest.mark.slow
def test_what_is_left_out_leads_nowhere(say: Callable[[str], None]) -> None:
    bounds = Bounds(steps=2, contributions=2)
    search, everything = ProtocolSearch(bounds), LeavesNothingOut(bounds)
    assert met(search) == met(everything)
    say(f"protocol: {len(search.came)} states instead of {len(everything.came)} meet the same sets of parts")
