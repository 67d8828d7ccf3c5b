"""A newcomer in the middle of a run of real processes takes the inner state of who has trained longest."""

import re

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Child, Stage

pytestmark = [
    pytest.mark.net,
    pytest.mark.proc,
    pytest.mark.beside,
    pytest.mark.slow,
    pytest.mark.timeout(SLOW_MACHINE_S),
]
TOOK = re.compile(r"took the inner state of (\d+) of (\d+) fragments from a peer")


def taken(child: Child) -> tuple[int, int] | None:
    """What its log says: of how many fragments, of how many; None: nothing yet. It says so once."""
    found = TOOK.findall(child.errors)
    assert len(found) <= 1
    return (int(found[0][0]), int(found[0][1])) if found else None


def test_a_newcomer_in_the_middle_of_a_run_takes_a_peer_s_inner_state(stage: Stage) -> None:
    stage.write(learner={"warm_start": "peer"})
    syncer, first = stage.sync(), stage.learner("first")
    stage.until(lambda: stage.member("first").get("step", 0) > 40, "steps of the first", syncer, first)
    assert taken(first) == (0, 4), "there was nobody yet who could lend"
    second = stage.learner("second")
    assert stage.until(lambda: taken(second), "its loans", syncer, first, second) == (4, 4)
    stage.until(lambda: stage.member("second").get("merged_tokens"), "its work is merged", syncer, first, second)
    loans = stage.status()["loans"]
    assert (loans["carried"], loans["failed"], loans["unasked"]) == (4, 0, 0)
    stage.end(second, first, syncer)
