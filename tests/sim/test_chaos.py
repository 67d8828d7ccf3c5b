"""Random chaos: fleets, links and misfortunes drawn from a seed, every check after every event, and what occurred."""

from collections import Counter
from collections.abc import Callable

import pytest

from zdiloco.errors import MachineError
from zdiloco.sim.chaos import chaos
from zdiloco.sim.fault_names import FaultName
from zdiloco.sim.play import play
from zdiloco.sim.shrink import KEEP, smallest

BRANCHES = (
    "rounds", "late held", "replaced", "declined", "parked", "rolled_back", "repaired", "fenced", "dropped", "gap",
    "recovered", "given up", "offered again", "update lost", "chunks asked again", "transfers given up", "lent",
    "borrowed", "loan lost",
    "refused: epoch", "refused: after", "refused: seq", "refused: layout", "refused: counters", "refused: non_finite",
    "refused: norm", "refused: budget", "refused: body", "refused: closed", "remark: clipped", "remark: zero",
    "fault: kill while no syncer was there", "fault: cut_region of a relay", "relay: chunks from its cache",
    "relay: lanes over", "relay: asked again", "relay: evicted", "bundles taken",
)  # fmt: skip


def play_all(seeds: range) -> Counter[str]:
    """Play the chaos of each seed; one that fails is made small and printed as a transcript."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        scenario = chaos(seed)
        try:
            seen += play(scenario).seen
        except MachineError as error:
            pytest.fail(f"{KEEP}\n{smallest(scenario, error)}", pytrace=False)
    return seen


def report(seen: Counter[str], say: Callable[[str], None], count: int) -> list[str]:
    """Print how often everything occurred; return what never did."""
    wanted = [*(f"fault: {name}" for name in FaultName), *BRANCHES]
    say(f"{count} seeds of chaos kept every rule; what occurred:")
    for what in sorted({*wanted, *seen}):
        say(f"  {seen[what]:8d}  {what}")
    return [what for what in wanted if not seen[what]]


def test_five_seeds_of_chaos() -> None:
    assert play_all(range(5))["rounds"] > 50


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fifty_seeds_of_chaos(say: Callable[[str], None]) -> None:
    assert not report(play_all(range(100, 150)), say, 50)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_five_hundred_seeds_of_chaos(say: Callable[[str], None]) -> None:
    assert not report(play_all(range(1000, 1500)), say, 500)
