"""Deaths in the two moments of a run that happen only once: its beginning, and its ending."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.theatre import LEARNERS, settings
from zdiloco.chaos.fleet import Fault, Fleet
from zdiloco.chaos.forked import Nursery
from zdiloco.chaos.inside import HALF, LEARNER_PLACES, SYNCER_PLACES, Orders
from zdiloco.chaos.script import SYNCER
from zdiloco.chaos.verdict import Verdict, judge
from zdiloco.errors import LinkError
from zdiloco.node.query import Query
from zdiloco.rundir.books import read_cut

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(400)]
ANSWER_S = 0.3
END_S = 60.0
KILLED = -9
WHILE_AWAY = 30_000
"""Tokens that may be trained while a syncer starts again: it must not find its target reached."""


def places(name: str) -> list[str]:
    return sorted([HALF, *(SYNCER_PLACES if name == SYNCER else LEARNER_PLACES)])


def assert_sound(fleet: Fleet, verdict: Verdict) -> None:
    assert fleet.faults == [], f"logs in {fleet.folder}"
    assert verdict.checks[0].passed, f"{verdict.checks[0].figure}, logs in {fleet.folder}"


def start_again(fleet: Fleet, name: str) -> None:
    """A victim comes back, under no orders."""
    fleet.order(name, Orders())
    fleet.start(name)


def kill_in_the_beginning(fleet: Fleet, chance: random.Random) -> int:
    """Start all in any order, some to die at exact places, some soon; start again whoever is dead. Returns deaths."""
    order = [SYNCER, *fleet.names]
    chance.shuffle(order)
    for name in order:
        if chance.random() < 0.5:
            fleet.order(name, Orders(die_at=chance.choice(places(name)), passes=chance.randint(0, 3)))
        fleet.start(name)
        fleet.down.add(name)  # until all is well a death is no fault
        fleet.rest(chance.choice((0.0, 0.0, 0.1, 0.3)))
    for _ in range(chance.randint(1, 4)):
        fleet.rest(chance.uniform(0.0, 0.5))
        name = chance.choice(order)
        fleet.kill(name)
        fleet.start(name)
        fleet.down.add(name)
    ends = time.monotonic() + 3.0
    while time.monotonic() < ends:
        fleet.rest(0.05)
        for name in order:
            if fleet.children[name].exit_code is not None:
                start_again(fleet, name)
                fleet.down.add(name)
    for name in order:
        fleet.order(name, Orders())
        if fleet.children[name].exit_code is not None:
            fleet.start(name)
    fleet.down.clear()
    return sum(life.exit_code is not None for life in fleet.lives)


@pytest.mark.parametrize("seed", range(8))
def test_deaths_before_anything_was_merged(
    seed: int, forks: Nursery, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """Donors, newcomers and syncers die while the first values are handed over; the run begins all the same."""
    with Fleet(tmp_path / "chaos", LEARNERS, settings(tmp_path, seed), forks=forks) as fleet:
        deaths = kill_in_the_beginning(fleet, random.Random(seed))
        assert deaths > 0
        assert {life.exit_code for life in fleet.lives} <= {None, KILLED}
        fleet.settle(time.monotonic())
        fleet.end()
        verdict = judge(fleet, [])
    say(f"beginning, seed {seed}: {deaths} deaths; {verdict.checks[0].figure}")
    assert_sound(fleet, verdict)


def until_it_ends(fleet: Fleet, share: float) -> None:
    """Wait until the syncer says that so much of the target is merged, or has left."""
    ends = time.monotonic() + END_S
    merged = 0.0
    with Query(fleet.config.net) as query:
        while merged < share and fleet.children[SYNCER].exit_code is None:
            assert time.monotonic() < ends, "the target is never reached"
            fleet.rest(0.01)
            with suppress(LinkError):
                merged = query.ask(ANSWER_S)["progress"]


def kill_in_the_ending(fleet: Fleet, chance: random.Random) -> int:
    """Somebody dies at once, others at exact places or anywhere, and all come back. Returns deaths."""
    deaths = 0
    for number in range(chance.randint(1, 3)):
        name = chance.choice([SYNCER, SYNCER, *fleet.names])
        if number and chance.random() < 0.5:
            fleet.order(name, Orders(die_at=chance.choice(places(name)), passes=chance.randint(0, 4)))
            fleet.dies(name, 1.0)
        else:
            fleet.rest(chance.uniform(0.0, 0.4) if number else 0.0)
        fleet.kill(name)  # whoever has not passed the place; nothing to who has ended
        fleet.order(name, Orders())
        if fleet.children[name].exit_code == KILLED:
            deaths += 1
            fleet.rest(chance.choice((0.0, 0.5)))
            fleet.start(name)
        fleet.down.add(name)
    return deaths


@pytest.mark.parametrize("seed", range(8))
def test_deaths_while_the_target_is_reached(
    seed: int, forks: Nursery, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """D-64, D-65: all leave by themselves, with code 0. Who comes back too late waits, and leaves when asked."""
    chance = random.Random(seed)
    with Fleet(tmp_path / "chaos", LEARNERS, settings(tmp_path, seed), forks=forks) as fleet:
        fleet.begin()
        fleet.ask(SYNCER)
        target = int(read_cut(fleet.run_dir).progress_tokens) + WHILE_AWAY + chance.randint(10_000, 20_000)
        fleet.options = ("--set", f"run.target_tokens={target}")
        fleet.start(SYNCER)
        fleet.down |= {SYNCER, *fleet.names}  # from here on all may leave
        until_it_ends(fleet, chance.uniform(0.85, 0.97))
        deaths = kill_in_the_ending(fleet, chance)
        assert deaths > 0
        ends = time.monotonic() + END_S
        while fleet.children[SYNCER].exit_code is None and time.monotonic() < ends:
            fleet.rest(0.1)
        assert fleet.children[SYNCER].exit_code == 0, fleet.children[SYNCER].last_lines()
        fleet.rest(3.0)
        late = [name for name in fleet.names if fleet.children[name].exit_code is None]
        assert all("joins" not in fleet.children[name].last_lines() for name in late)
        for name in late:
            fleet.ask(name)
        assert {name: fleet.children[name].exit_code for name in fleet.names} == dict.fromkeys(fleet.names, 0)
        fleet.end()
        verdict = judge(fleet, [])
    say(f"ending, seed {seed}: {deaths} deaths, {len(late)} came too late; {verdict.checks[0].figure}")
    assert [fault for fault in fleet.faults if fault[0] is not Fault.END] == []
    assert_sound(fleet, verdict)
