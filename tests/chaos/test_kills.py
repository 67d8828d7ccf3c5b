"""kill -9 of everybody at random moments, half of them at exact places: in a save, a merge, a join, an adoption."""

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.theatre import LEARNERS, Played, play
from zdiloco.chaos.figures import Return, grouped, told
from zdiloco.chaos.forked import Nursery
from zdiloco.chaos.script import Kind, deeds
from zdiloco.chaos.verdict import MAX_BOUND, P99_BOUND

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.chaos]
RETURN_S = 5.0
"""Median from the start of the new process to its first merge, with default timeouts."""
SHORT = {Kind.KILL_SYNCER: 8, Kind.KILL_LEARNER: 8, Kind.KILL_BOTH: 4}
LONG = {Kind.KILL_SYNCER: 20, Kind.KILL_LEARNER: 20, Kind.KILL_BOTH: 5}
RUNS = 10
_returns: list[Return] = []


def kill(forks: Nursery, folder: Path, seed: int, counts: dict[Kind, int], say: Callable[[str], None]) -> Played:
    script = itertools.islice(deeds(seed, tuple(LEARNERS), counts), sum(counts.values()))
    played = play(forks, folder, seed, script)
    for line in played.lines():
        say(line)
    played.assert_sound()
    done = [each.deed.kind for each in played.done]
    assert {kind: done.count(kind) for kind in counts} == counts
    assert played.fleet.chronicle.merges
    return played


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_kills(forks: Nursery, tmp_path: Path, say: Callable[[str], None]) -> None:
    """A-8, B-29, D-62: whoever dies, training goes on, no stamp goes back, and every token is accounted for."""
    played = kill(forks, tmp_path, 1, SHORT, say)
    assert all(grouped(played.returns).values())


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 100 + RUNS))
def test_hundreds_of_kills(seed: int, forks: Nursery, tmp_path: Path, say: Callable[[str], None]) -> None:
    """D-61: 200 of the syncer, 200 of learners, 50 of both, in ten runs; returns are judged over all so far."""
    played = kill(forks, tmp_path, seed, LONG, say)
    _returns.extend(played.returns)
    assert played.pauses is not None
    assert played.pauses.p99 <= P99_BOUND
    assert played.pauses.longest <= MAX_BOUND
    for who, returns in grouped(_returns).items():
        say(f"so far, {who}: {told(returns)}")
    for who in ("syncers", "learners"):
        assert statistics.median([each.seconds for each in grouped(_returns)[who]]) <= RETURN_S
