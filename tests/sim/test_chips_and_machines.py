"""The chips model is tied to the machines that run in production: both live through the same failures.

What must agree: all that the model counts as goodput is in the values that the machines have merged, but for what is
still under way at the end; and the machines merge in a round those learners that the model says can answer: at least
those that train when it is called, at most those that train before the longest grace window is over.
"""

import pytest

from tests.sim.chips_fleet import NUM_FRAGMENTS, Played, play
from zdiloco.core.params import SyncParams
from zdiloco.sim.chips import Outcome, Scenario, simulate

PARAMS = SyncParams()


def small(mtbf_s: float, hours: float, learners: int = 4) -> Scenario:
    """Learners of 512 chips that are interrupted every `mtbf_s` seconds, as those of a large fleet are."""
    return Scenario(
        chips=512 * learners, learners=learners, slice_chips=1, mtbi_hours=mtbf_s * 512 / 3600, hours=hours
    )


def compare(scenario: Scenario, outcome: Outcome, played: Played) -> None:
    """At the end up to a period and a round of each learner may be under way; a participant more or less in ten."""
    tail = (PARAMS.sync_period + 6) * scenario.step_s / scenario.seconds
    assert outcome.goodput - tail <= played.merged <= outcome.goodput + 1e-3
    # An update may be merged and not yet adopted: then it is in both.
    assert outcome.goodput - 2e-3 <= played.merged + played.unmerged <= outcome.goodput + tail
    assert outcome.participants - 0.1 <= played.participants <= outcome.in_grace + 0.1
    turns = played.rounds / NUM_FRAGMENTS
    least = outcome.uptime * scenario.seconds / scenario.step_s / (PARAMS.sync_period + 4)
    assert least - 2 <= turns <= scenario.seconds / scenario.step_s / PARAMS.sync_period + 2


def test_machines_and_model_agree_on_a_small_fleet() -> None:
    scenario = small(105.0, hours=0.2)
    outcome, trace = simulate(scenario, 3)
    assert outcome.failures > 10
    compare(scenario, outcome, play(scenario, trace, PARAMS))


def test_the_comparison_notices_a_model_that_is_wrong() -> None:
    """Machines that fail three times as often as the model says do not agree with it."""
    scenario = small(105.0, hours=0.1)
    outcome, _ = simulate(scenario, 3)
    _, other = simulate(small(35.0, hours=0.1), 3)
    with pytest.raises(AssertionError):
        compare(scenario, outcome, play(scenario, other, PARAMS))


@pytest.mark.slow
@pytest.mark.parametrize("mtbf_s", [52.0, 210.0])
def test_machines_and_model_agree_for_an_hour(mtbf_s: float) -> None:
    """As 2.4 million chips in 4 learners, and 1.2 million in 8."""
    scenario = small(mtbf_s, hours=1.0)
    outcome, trace = simulate(scenario, 4)
    compare(scenario, outcome, play(scenario, trace, PARAMS))
