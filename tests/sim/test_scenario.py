"""Scenarios that cannot be: one clear line each, before anything happens."""

from typing import Any

import pytest

from zdiloco.errors import ConfigError
from zdiloco.sim.fault_names import FaultName
from zdiloco.sim.scenario import (
    Fault,
    LearnerSpec,
    RelaySpec,
    Scenario,
    scenario_from_dict,
    scenario_to_dict,
    scenarios_of,
)

TWO = [{"name": "a"}, {"name": "b", "region": "east"}]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"learners": TWO, "sync": {"min_quorum": 3}}, "sync.min_quorum is 3, but there are 2 learners"),
    ({"learners": []}, "a scenario has 0 learners; allowed is 1 to 100000"),
    ({"learners": [{"name": "a"}, {"name": "a"}]}, "two learners are named 'a'"),
    ({"learners": [{"name": "a b"}]}, "without spaces"),
    ({"learners": [{"name": "a", "loss": -0.1}]}, "learner a: loss is -0.1; allowed is 0 to 0.9"),
    ({"learners": [{"name": "a", "up_bytes_s": 0}]}, "learner a: up_bytes_s is 0"),
    ({"learners": [{"name": "a", "stalls": -1}]}, "learner a: stalls is -1; allowed is 0 to 1"),
    ({"learners": [{"name": "a", "region": "b c"}]}, "learner a: region is 'b c'; allowed are 1 to 64 letters"),
    ({"learners": [{"name": "a", "step_s": float("nan")}]}, "learner a: step_s is nan"),
    ({"learners": [{"name": "a", "step_s": "fast"}]}, "learner a: step_s is 'fast'"),
    ({"learners": [{}]}, "learners: "),
    ({"learners": TWO, "seed": 10**400}, "world: seed is 1000"),
    ({"learners": TWO, "seed": 10**5000}, "world: seed is a number of thousands of digits; allowed is 0 to"),
    ({"learners": TWO, "seconds": 10**400}, "world: seconds is 1000"),
    ({"learners": TWO, "sync": {"sync_period": 10**5000}}, "sync.sync_period is a number of thousands of digits"),
    ({"learners": TWO, "seconds": -1}, "world: seconds is -1; allowed is 0 to"),
    ({"learners": TWO, "fragments": 0}, "world: fragments is 0; allowed is 1 to 511"),
    ({"learners": TWO, "faults": [{"at_s": 1, "name": "explode"}]}, "no fault is called 'explode'"),
    ({"learners": TWO, "faults": [{"at_s": 1, "name": "kil", "who": "a"}]}, "did you mean 'kill'?"),
    ({"learners": TWO, "faults": [{"at_s": 1, "name": "kill", "who": "c"}]}, "'c' is no learner"),
    ({"learners": TWO, "faults": [{"at_s": 1, "name": "crash", "who": "a"}]}, "it is the syncer's"),
    ({"learners": TWO, "faults": [{"at_s": 1, "name": "cut_region", "who": "west"}]}, "'west' is no region"),
    ({"learners": TWO, "faults": [{"at_s": -1, "name": "kill", "who": "a"}]}, "fault kill: at_s is -1"),
    ({"learners": TWO, "faults": ["kill"]}, "faults is 'kill'; expected a map"),
    ({"learners": TWO, "sync": {"gama": 0.5}}, "sync has no key 'gama'; did you mean 'gamma'?"),
    ({"learners": TWO, "sync": {"gamma": 2}}, "sync.gamma is 2; allowed is 0 to 1"),
    ({"learners": TWO, "learner": {"codec": "x"}}, "learner.codec is 'x'"),
    ({"learners": TWO, "sed": 3}, "scenario has no key 'sed'; did you mean 'seed'?"),
    ({"learners": TWO, "seconds": 1e6}, "do not fit a body"),
    ({"learners": TWO, "relays": [{"name": "e"}, {"name": "e"}]}, "two relays are named 'e'"),
    ({"learners": TWO, "relays": [{"name": "e f"}]}, "relay.name is 'e f'; allowed is"),
    ({"learners": TWO, "relays": [{"name": "e", "cache_bytes": 5}]}, "relay e: cache_bytes is 5; allowed is 1024 to"),
    ({"learners": TWO, "relays": [{"name": "e", "region": "f"}]}, "relay e: region is 'f', which has no relay"),
    ({"learners": TWO, "relays": [{"name": "e", "region": "e"}]}, "relay e: it is behind itself (e > e)"),
    ({"learners": TWO, "relays": [{"name": "e", "region": "f"}, {"name": "f", "region": "e"}]}, "(e > f > e)"),
    ({"learners": TWO, "relays": [{"name": "e"}], "chunked": False}, "leave chunked at true"),
    ({"learners": TWO, "relays": [{"name": "e", "chache_bytes": 5}]}, "did you mean 'cache_bytes'?"),
    ({"learners": TWO, "faults": [{"at_s": 1, "name": "relay_kill", "who": "east"}]}, "'east' is no relay"),
]


@pytest.mark.parametrize(("plain", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_cannot_be_is_said_in_one_line(plain: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario_from_dict(plain)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_seed_is_named_once() -> None:
    scenario = scenario_from_dict({"learners": TWO})
    assert [each.seed for each in scenarios_of(scenario, [3, 4])] == [3, 4]
    with pytest.raises(ConfigError, match="the seed 3 is named twice"):
        scenarios_of(scenario, [3, 4, 3])


def test_a_scenario_comes_back_from_its_map() -> None:
    fault = Fault(at_s=3.0, name=FaultName.KILL, who="a", for_s=1.0)
    learners = (LearnerSpec(name="a"), LearnerSpec(name="b", loss=0.1))
    scenario = Scenario(
        seed=7, learners=learners, relays=(RelaySpec(name="east", loss=0.1),), faults=(fault,), sync={"gamma": 0.25}
    )
    assert scenario_from_dict(scenario_to_dict(scenario)) == scenario
    assert scenario.params().gamma == 0.25


def test_every_fault_has_a_deed_and_a_meaning() -> None:
    from zdiloco.core.tables import meanings
    from zdiloco.sim.faults import Faults

    assert set(Faults._DEEDS) == set(FaultName)
    assert all(meanings(FaultName).values())
