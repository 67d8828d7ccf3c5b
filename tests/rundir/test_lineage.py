"""Which merges of a journal survived its syncers: by hand, and against what virtual fleets really hold."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.rundir.lineage import compare
from zdiloco.sim.recorded import RecordedWorld
from zdiloco.units import Epoch, Merged, Stamp


def cut_of(epoch: int, version: int, *map_: Merged) -> Any:
    part = SimpleNamespace(fragment=0, stamp=Stamp(Epoch(epoch, 7), version), map_=map_)
    return SimpleNamespace(fragments=(part,))


def opened(epoch: int, version: int) -> dict[str, Any]:
    return {"kind": "opened", "epoch": epoch, "versions": [version]}


def merge(epoch: int, version: int, tokens: int, name: str = "a") -> dict[str, Any]:
    members = [[name, "a", tokens // 10, tokens]]
    return {"kind": "merge", "epoch": epoch, "fragment": 0, "version": version, "members": members}


TWO_LIVES = [opened(1, 0), merge(1, 1, 10), merge(1, 2, 20), merge(1, 3, 30), opened(2, 2), merge(2, 3, 70)]
"""The third version of the first epoch died with its syncer; its work was merged again, with more."""


def test_what_died_with_a_syncer_is_left_out() -> None:
    found = compare(cut_of(2, 3, Merged("a", 10, 4, 10, 100)), TWO_LIVES)
    assert (set(found.differences.values()), found.silent) == ({0}, {})


def test_a_merge_that_the_map_lacks_is_found() -> None:
    found = compare(cut_of(2, 3, Merged("a", 10, 4, 10, 100)), [*TWO_LIVES[:-1], merge(2, 3, 69), merge(2, 4, 5)])
    assert found.differences == {"a:000000000000000a fragment 0": 1}
    other = compare(cut_of(2, 3, Merged("a", 10, 4, 10, 100)), [*TWO_LIVES[:-1], merge(2, 3, 70, "b")])
    assert other.differences == {"a:000000000000000a fragment 0": 70, "b:000000000000000a fragment 0": -70}


def test_of_two_merges_for_one_version_the_first_came_to_nothing() -> None:
    lines = [opened(1, 0), merge(1, 1, 99), merge(1, 1, 10)]
    assert set(compare(cut_of(1, 1, Merged("a", 10, 1, 1, 10)), lines).differences.values()) == {0}


def test_the_last_version_of_a_run_merges_nothing() -> None:
    """It is Theta as it is; what it was made of stands in the one before. A run that ended may be taken up again."""
    ended = [*TWO_LIVES, {"kind": "sealed", "epoch": 2, "versions": [4]}]
    found = compare(cut_of(2, 4, Merged("a", 10, 4, 10, 100)), ended)
    assert (set(found.differences.values()), found.silent) == ({0}, {})
    found = compare(cut_of(3, 5, Merged("a", 10, 5, 11, 110)), [*ended, opened(3, 4), merge(3, 5, 10)])
    assert (set(found.differences.values()), found.silent) == ({0}, {})
    assert compare(cut_of(2, 5), ended).silent == {0: "the journal lacks version 5 of epoch 2"}


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        (1, "the journal lacks version 1 of epoch 1"),
        (5, "the journal lacks version 3 of epoch 2"),
        (0, "the journal does not say where epoch 1 began"),
        (4, "the journal does not say where epoch 2 began"),
    ],
)
def test_a_journal_that_has_lost_a_line_is_no_witness(lost: int, says: str) -> None:
    lines = [line for number, line in enumerate(TWO_LIVES) if number != lost]
    found = compare(cut_of(2, 3, Merged("a", 10, 4, 10, 100)), lines)
    assert (found.differences, found.silent) == ({}, {0: says})


def test_a_line_that_was_lost_and_does_not_matter_is_not_missed() -> None:
    lines = [line for line in TWO_LIVES if line != merge(1, 3, 30)]
    assert set(compare(cut_of(2, 3, Merged("a", 10, 4, 10, 100)), lines).differences.values()) == {0}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_journal_and_values_agree_whenever_syncers_die(seed: int) -> None:
    """After each of some kills at random moments, what the journal says survived is what the new values hold."""
    rng = random.Random(seed)
    world = RecordedWorld(SyncParams(sync_period=8, checkpoint_every_s=8.0, recover_wait_s=1.0), 2, seed=seed)
    for name in ("a", "b", "c"):
        world.join(name, rng.choice((0.05, 0.1)))
    at = 0.0
    for turn in range(5 if seed else 2):
        at += rng.uniform(4.0, 9.0)
        world.run(at)
        parts = [
            SimpleNamespace(fragment=index, stamp=state.stamp, map_=tuple(state.map))
            for index, state in enumerate(world.site.body.states)
        ]
        cut: Any = SimpleNamespace(fragments=parts)
        found = compare(cut, [trace.facts_of(record) for record in world.told])
        assert found.silent == {}
        assert len(found.differences) > 3
        assert set(found.differences.values()) == {0}
        world.kill_syncer(world.site)
        if not turn % 2:
            for actor in list(world.actors.values()):
                world.kill(actor)  # so that nobody hands back what is newer than the disk
        at += 1.0
        world.run(at)
        world.start_syncer(world.sites[-1].disk)
        world.join(f"n{at:.0f}", 0.05)
        at += 3.0
        world.run(at)
    survived = sum(state.stamp.version for state in world.site.body.states)
    assert len(world.of(trace.Merge)) > survived, "nothing was rolled back: the test shows nothing"
