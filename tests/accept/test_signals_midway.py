"""SIGTERM to whoever is in the middle of something (D-71): a syncer that asks its fleet, closes the last rounds or
awaits the last goodbye, a learner that loads its values: out within 5 s, in order; asked twice, at once."""

import signal
from collections.abc import Callable

import pytest

from tests.accept.stage import AT_ONCE_S, LEAVE_S, SLOW_MACHINE_S, Child, Stage
from zdiloco.chaos.proxy import Proxy

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.slow, pytest.mark.timeout(SLOW_MACHINE_S)]
BULK = 1


def leave(child: Child, *numbers: signal.Signals) -> None:
    """Ask once: it leaves in time, code 0, no traceback. Ask twice, before it could: it is gone at once, code 130."""
    code = child.leave(*numbers, within_s=LEAVE_S if len(numbers) == 1 else AT_ONCE_S)
    assert code == (0 if len(numbers) == 1 else 130), child.errors
    assert "Traceback" not in child.errors


ONCE, TWICE = (signal.SIGTERM,), (signal.SIGTERM, signal.SIGINT)


def test_a_learner_that_loads_and_a_syncer_that_asks(stage: Stage, free_ports: Callable[[int], int]) -> None:
    syncer, near = stage.sync(), stage.learner("near")
    stage.until(lambda: stage.member("near").get("rounds"), "merged work", syncer, near)
    port = free_ports(4)
    link = Proxy(port, stage.port)
    try:
        link.slow(BULK, 1000.0)
        for name, asked in (("late", ONCE), ("later", TWICE)):
            late = stage.learner(name, "--set", f"net.port={port}")
            stage.until(lambda name=name: stage.member(name), "its hello", syncer, near, late)
            leave(late, *asked)
    finally:
        link.close()
    syncer.kill()
    near.kill()
    for asked in (ONCE, TWICE):  # of those who took part nobody is there any more: it waits
        syncer = stage.sync("--set", "sync.recover_wait_s=60")
        stage.until(lambda: stage.status().get("phase") == "recovering", "a syncer that asks", syncer)
        leave(syncer, *asked)


@pytest.mark.parametrize("asked", [ONCE, pytest.param(TWICE, marks=pytest.mark.long)])
def test_a_syncer_that_closes_the_last_rounds(stage: Stage, asked: tuple[signal.Signals, ...]) -> None:
    """D-71: the only learner leaves while a merge is being made: what is closed is merged and saved."""
    stage.write(sync={"when_alone": "stop"})
    syncer, learner = stage.held_syncer(), stage.learner("a")

    def merging() -> bool:
        rounds = [fragment["round"] for fragment in stage.status().get("fragments", ())]
        return any((each or {}).get("state") == "merging" for each in rounds)

    stage.until(merging, "a round that is closed", syncer, learner)
    stage.end(learner)
    stage.until(lambda: stage.status().get("phase") == "draining", "the end of the run", syncer)
    if asked is ONCE:
        syncer.send(*asked)
        stage.until(lambda: "leaving " in syncer.errors, "a syncer that leaves", syncer)
        (stage.folder / "merges").touch()
        assert syncer.wait() == 0, syncer.errors
        assert max(part.stamp.version for part in stage.cut().fragments) == 1
    else:
        leave(syncer, *asked)


@pytest.mark.long
@pytest.mark.parametrize("asked", [ONCE, TWICE])
def test_a_syncer_that_awaits_the_last_goodbye(stage: Stage, asked: tuple[signal.Signals, ...]) -> None:
    """One learner sleeps while the other reaches the target: what the syncer waits for is only a goodbye."""
    stage.write(run={"target_tokens": 100_000}, sync={"gone_after_s": 60.0, "suspect_after_s": 30.0, "drain_s": 60.0})
    syncer, sleeper, other = stage.sync(), stage.script("sleeper"), stage.script("other", seed=2)
    stage.until(lambda: stage.member("sleeper").get("rounds"), "merged work", syncer, sleeper, other)
    sleeper.send(signal.SIGSTOP)
    assert other.wait() == 0, other.errors
    assert stage.status()["phase"] == "saving"
    leave(syncer, *asked)
    assert stage.cut().fragments[0].codec == "fp32", "the last checkpoint is there, whatever became of the goodbyes"
