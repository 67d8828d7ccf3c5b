"""Relays that merge, in virtual time: what crosses, and that nothing counts twice or is lost, whatever happens."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from zdiloco.sim.chaos import chaos
from zdiloco.sim.play import Story
from zdiloco.sim.relay_places import Relay
from zdiloco.sim.scenario import Fault, Scenario
from zdiloco.sim.transcript import scenario_from_text

REGION = """world seed=5 seconds=6 fragments=2 sync.sync_period=10 sync.min_quorum=2
relay east latency_s=0.05 premerge=true
learner near step_s=0.1 latency_s=0.01
learner e0 step_s=0.1 region=east
learner e1 step_s=0.1 region=east
learner e2 step_s=0.1 region=east
"""


def plain(scenario: Scenario) -> Scenario:
    """The same without merging on the way."""
    return replace(scenario, relays=tuple(replace(relay, premerge=False) for relay in scenario.relays))


def relay_of(story: Story) -> Relay:
    return story.world.relays.by_name["east"]


def bundles(story: Story) -> Counter[str]:
    """What became of bundles at all syncers: taken, members of those, and refused by reason."""
    found: Counter[str] = Counter()
    for site in story.world.sites:
        found.update(site.machine.intakes.bundles.counts)
        found.update(site.machine.intakes.bundles.refused)
    return found


def test_three_of_a_region_send_one_body_where_nobody_is_late(say: Callable[[str], None]) -> None:
    """The ledger is that of the same run without it, to the token."""
    scenario = scenario_from_text(REGION)
    with_, without = Story(scenario), Story(plain(scenario))
    fates = [story.play().fates for story in (with_, without)]
    up = [relay_of(story).link.up.nbytes for story in (with_, without)]
    counts = bundles(with_)
    say(f"3 learners of a region, bytes up with pre-merge / without: {up[0] / up[1]:.3f}; {counts['taken']} bundles of "
        f"{counts['members'] / counts['taken']:.2f} contributions; fates {fates}")  # fmt: skip
    assert up[0] / up[1] < 0.45
    assert counts["members"] == 3 * counts["taken"] > 3 * 8
    assert fates[0] == fates[1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["relay_kill", "relay_stop", "far_half_open", "far_lossy", "crash", "take_over"])
def test_whatever_becomes_of_a_bundle_nothing_is_lost_or_doubled(fault: str) -> None:
    """At three moments of a period each; every rule is looked at."""
    scenario = scenario_from_text(REGION.replace("seconds=6", "seconds=9"))
    who = "" if fault in ("crash", "take_over") else "east"
    for tenth in (0, 3, 7):
        at_s = 4.0 + tenth / 10
        story = Story(replace(scenario, seed=tenth, faults=(Fault(at_s=at_s, name=fault, who=who, for_s=1.5),)))
        story.play()
        assert bundles(story)["taken"] > 10, (fault, tenth)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_chaos_of_relays_that_merge_keeps_every_rule(say: Callable[[str], None]) -> None:
    found: Counter[str] = Counter()
    for seed in range(400, 700):
        story = Story(chaos(seed))
        if any(relay.premerge for relay in story.scenario.relays):
            story.play()
            found += bundles(story)
    say(f"bundles in chaos: {dict(found)}")
    assert found["taken"] > 0
