"""SIGTERM and SIGINT, to whoever runs and whatever it does: out within 5 s, in order; asked twice, at once."""

import signal

import pytest

from tests.accept.stage import AT_ONCE_S, LEAVE_S, SLOW_MACHINE_S, Child, Stage, assert_balanced

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.timeout(SLOW_MACHINE_S)]
CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}


def leave(child: Child, number: signal.Signals) -> None:
    """Ask once: it leaves in time, with the code that belongs to the signal, and without a traceback."""
    assert child.leave(number, within_s=LEAVE_S) == CODES[number], child.errors
    assert "Traceback" not in child.errors


def syncer_and_learners(stage: Stage, *names: str) -> list[Child]:
    """A syncer and learners of the ready-made task, all at work."""
    everybody = [stage.sync(), *(stage.learner(name) for name in names)]
    for name in names:
        stage.until(lambda name=name: stage.member(name).get("rounds"), f"merged work of {name}", *everybody)
    return everybody


@pytest.mark.slow
def test_nobody_is_there(stage: Stage) -> None:
    """Learners that wait for a syncer; then a syncer that waits for a learner."""
    for learner, number in [(stage.learner(number.name), number) for number in CODES]:
        stage.until(lambda learner=learner: "waits for the syncer" in learner.errors, "a learner that waits", learner)
        leave(learner, number)
    for number in CODES:
        syncer = stage.sync()
        stage.until(lambda: stage.status().get("phase") == "empty", "a syncer that waits", syncer)
        leave(syncer, number)


def test_at_work(stage: Stage) -> None:
    """First the learners, whose work is pushed and whose leave is heard; then the syncer, which saves."""
    syncer, one, other = syncer_and_learners(stage, "one", "other")
    leave(one, signal.SIGTERM)
    leave(other, signal.SIGINT)
    for name in ("one", "other"):  # an answer may be a moment old
        stage.until(lambda name=name: stage.member(name).get("state") == "finished", f"word of {name}'s leave", syncer)
    leave(syncer, signal.SIGTERM)
    assert all(counters.left for counters in stage.counters())
    assert_balanced(stage.fates())


@pytest.mark.slow
def test_the_syncer_leaves_first(stage: Stage) -> None:
    """A syncer with a learner at work leaves all the same; the learner, now alone, too."""
    syncer, learner = syncer_and_learners(stage, "a")
    leave(syncer, signal.SIGINT)
    steps = stage.steps("a")
    stage.until(lambda: stage.steps("a") >= steps + 20, "steps without a syncer", learner)
    stage.until(lambda: "the syncer is silent" in learner.errors, "word of the syncer's absence", learner)
    leave(learner, signal.SIGTERM)


@pytest.mark.slow
def test_the_newer_of_two_of_one_name_wins_and_goes_at_once_when_asked_twice(stage: Stage) -> None:
    syncer, older = syncer_and_learners(stage, "a")
    known = stage.member("a")["incarnation"]
    newer = stage.learner("a")
    assert older.wait() == 3, older.errors
    told = [line for line in older.errors.splitlines() if " ERROR " in line]
    assert len(told) == 1, older.errors
    assert "newer process named 'a'" in told[0]
    assert "Traceback" not in older.errors
    stage.until(lambda: stage.member("a").get("merged_tokens"), "merged work of the newer one", newer, syncer)
    assert stage.member("a")["incarnation"] != known

    syncer.send(signal.SIGSTOP)  # to a frozen syncer, a learner pushes until its time is over
    newer.send(signal.SIGTERM)
    stage.until(lambda: "leaves (" in newer.errors, "a learner that leaves", newer)
    assert newer.leave(signal.SIGTERM, within_s=AT_ONCE_S) == 130
