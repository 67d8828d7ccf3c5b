"""SIGKILL of a learner in the middle of its work: the others go on, it comes back, and the books balance."""

import pytest

from tests.accept.stage import SLOW_MACHINE_S, Stage, assert_balanced
from zdiloco.rundir.audit import audit

pytestmark = [pytest.mark.net, pytest.mark.proc, pytest.mark.timeout(SLOW_MACHINE_S)]


def test_survivors_go_on_and_the_dead_comes_back(stage: Stage) -> None:
    syncer = stage.sync()
    survivor, victim = stage.script("survivor", seed=1), stage.script("victim", seed=2)
    everybody = (syncer, survivor)
    stage.until(lambda: stage.member("victim").get("merged_tokens"), "merged work of both", *everybody, victim)
    stage.until(lambda: stage.member("survivor").get("merged_tokens"), "merged work of both", *everybody, victim)
    victim.kill()

    steps, rounds = stage.steps("survivor"), stage.rounds()
    stage.until(lambda: stage.steps("survivor") >= steps + 60, "the survivor's steps", *everybody)
    stage.until(lambda: stage.rounds() >= rounds + 12, "rounds without the dead", *everybody)

    again = stage.script("victim", seed=3)
    dead = stage.counters("victim")[0]

    def came_back() -> bool:
        member = stage.member("victim")
        return member.get("incarnation") != f"{dead.key.incarnation:016x}" and member.get("merged_tokens", 0) > 0

    stage.until(came_back, "merged work of the one that came back", *everybody, again)
    assert stage.member("victim")["state"] == "live"
    at_work = audit(stage.run_dir)
    assert at_work.balanced, (at_work.gaps, at_work.differences)
    states = sorted((process.key.name, process.state) for process in at_work.books.processes)
    assert states == [("survivor", "living"), ("victim", "dead"), ("victim", "living")]
    stage.end(again, survivor, syncer)

    fates = stage.fates()
    assert len(fates) == 3
    assert_balanced(fates)
    assert audit(stage.run_dir).balanced
    of_the_dead = fates[f"victim:{dead.key.incarnation:016x}"]
    assert sum(row.merged for row in of_the_dead) > 0
    assert sum(row.left for row in of_the_dead) == 0
    alive = [row for process, rows in fates.items() if rows is not of_the_dead for row in rows]
    assert sum(row.lost + row.dropped for row in alive) == 0
