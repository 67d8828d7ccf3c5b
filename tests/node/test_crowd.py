"""A crowd of joiners on real sockets: each gets the whole values in its turn, and all are in."""

from collections.abc import Callable
from typing import Any

import pytest

from zdiloco.node.states import WholeStates
from zdiloco.wire.pulls import AT_ONCE, Pulls

pytestmark = [pytest.mark.net, pytest.mark.slow]
JOINERS = 16
PACE_S = 0.1
"""Seconds a step: all share one interpreter, and those that are in are to leave it to those that join."""


def test_sixteen_join_at_once_a_few_at_a_time(
    run_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    run = run_of()
    syncer = run.start_syncer()
    states: WholeStates = syncer.acts.states
    states.pulls = Pulls(0)  # as if the values were large
    first = run.join("first", pace_s=PACE_S)
    run.until(lambda: syncer.machine.rounds >= 1, "a round")
    waited = [0]
    turn = states.turn

    def look(now: float) -> None:
        turn(now)
        waited[0] = max(waited[0], states.pulls.waiting)

    monkeypatch.setattr(states, "turn", look)
    joiners = [run.join(f"j{number:02}", pace_s=PACE_S) for number in range(JOINERS)]
    run.until(lambda: all(joiner.joined.is_set() for joiner in joiners), "everybody is in")
    rounds = syncer.machine.rounds
    run.until(lambda: syncer.machine.rounds > rounds, "rounds go on")
    say(f"{JOINERS} join at once: {waited[0]} waited at most, {AT_ONCE} move at once")
    assert waited[0] > 0, "else nothing was tried"
    run.until(lambda: states.pulls.waiting == 0, "nobody waits any more")
    for trainer in (first, *joiners):
        trainer.stopping.set()  # all leave at once
