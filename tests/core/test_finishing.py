"""The end of a run in virtual time: everybody goes with the very last values, and nobody is waited for without end."""

import itertools
from typing import Any

import pytest

from zdiloco.core import ending
from zdiloco.core.finishing import NO_LAST_VALUES
from zdiloco.core.machine import Finish, LeaveRequested, Received, Restamp
from zdiloco.core.messages import Body, Farewell, Heartbeat, Receipt, Update
from zdiloco.core.params import SyncParams
from zdiloco.core.syncer import SyncerMachine
from zdiloco.sim.actors import Actor
from zdiloco.sim.audit import Audit
from zdiloco.sim.links import Link
from zdiloco.sim.world import World
from zdiloco.units import Stamp

BODY = Body(transfer="t", nbytes=8, chunk_bytes=1024, digest=1)


def fleet(
    *names: str, fragments: int = 3, chunked: bool = False, **params: Any
) -> tuple[World, list[Actor], SyncerMachine]:
    """A run with a target that these learners reach in a few seconds; audited."""
    world = World(SyncParams(sync_period=8, **params), fragments, chunked=chunked, target_tokens=3000)
    Audit(world)
    actors = [world.join(name) for name in names]
    assert world.site is not None
    return world, actors, world.site.machine


def until_told(world: World, syncer: SyncerMachine) -> None:
    world.run_until(lambda: syncer.farewell is not None, 120.0)


def last_values(world: World) -> list[int]:
    return [state.value for state in world.sites[-1].disk.states]


@pytest.mark.parametrize("chunked", [False, True])
def test_everybody_goes_with_the_values_of_the_last_checkpoint(chunked: bool) -> None:
    """D-64: the target is reached; all hold the same, their unmerged rest is left, and the syncer goes last."""
    world, actors, syncer = fleet("a", "b", "c", chunked=chunked)
    until_told(world, syncer)
    told = world.now
    world.run_until(lambda: not world.sites[0].alive, 10.0)
    assert world.now - told < 2.0
    assert [actor.body.values for actor in actors] == [last_values(world)] * 3
    assert {state.stamp for state in world.sites[0].disk.states} == {desk.stamp for desk in syncer.desk}
    assert {fallen.state for fallen in world.fallen} == {"left"}
    assert any("everybody has left" in stop for stop in world.stops)
    assert sum(fallen.rows[0].unmerged for fallen in world.fallen) > 0


def test_nothing_is_said_before_the_last_checkpoint_is_durable() -> None:
    world, _, syncer = fleet("a")
    said: list[Any] = []
    act = world.do_syncer

    def do(site: Any, action: Any) -> None:
        said.append(action)
        act(site, action)

    world.do_syncer = do
    until_told(world, syncer)
    names = [type(action).__name__ for action in said]
    restamp = next(i for i, action in enumerate(said) if isinstance(action, Restamp) and action.exact)
    farewell = next(i for i, action in enumerate(said) if isinstance(getattr(action, "message", None), Farewell))
    assert names.index("Save", restamp) < farewell
    assert "Merge" not in names[restamp:]


def test_what_is_left_of_another_branch_is_not_waited_for() -> None:
    """A difference lies here that follows nothing, such as of a syncer that died: the last version is asked for."""
    world, (actor,), syncer = fleet("a")
    until_told(world, syncer)
    for duty in actor.machine.duties:
        stamp = Stamp(syncer.epoch, duty.progress.seen.version + 50)
        update = Update(fragment=duty.index, stamp=stamp, full=False, codec="fp32", value_bytes=8, body=BODY)
        duty.ready[stamp] = (update, ())
    world.run_until(lambda: not actor.alive, 30.0)
    assert actor.body.values == last_values(world)


@pytest.mark.slow
def test_a_slow_link_is_waited_for_while_bytes_flow() -> None:
    """D-67: a last download of minutes, far beyond drain_s; its heartbeats go on, and it is never gone."""
    world, _, syncer = fleet("a", chunked=True, fragments=24, drain_s=12.0)
    slow = world.join("slow", 0.4, link=Link(0.01, down_bytes_s=1e6))
    beats: list[float] = []
    send = world.up

    def up(actor: Actor, message: Any) -> None:
        if actor is slow and isinstance(message, Heartbeat):
            beats.append(world.now)
        send(actor, message)

    world.up = up
    world.run_until(lambda: syncer.ending.exact, 60.0)
    slow.link.down.bytes_s = 4000.0  # 24 bodies of 20 kB
    until_told(world, syncer)
    told = world.now
    before = sum(nbytes for nbytes, _ in slow.link.down.waiting.values()) / 4000.0
    assert before > 3 * 12.0, "what was broadcast before takes much longer than drain_s, and goes first"
    world.run_until(lambda: not slow.alive, 900.0)
    assert world.now - told > 100.0 + before
    assert slow.body.values == last_values(world)
    late = [beat for beat in beats if beat > told]
    assert max(b - a for a, b in itertools.pairwise(late)) < 2.0
    assert not any("slow is gone" in note for note in world.notes)
    world.run_until(lambda: not world.sites[0].alive, 30.0)
    assert any("everybody has left" in stop for stop in world.stops)


def test_who_says_for_ever_that_bytes_come_is_waited_for_with_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "MOST_END_S", 40.0)
    world, (_, liar), syncer = fleet("a", "liar", drain_s=8.0)
    until_told(world, syncer)
    told = world.now
    world.stop(liar)
    while world.sites[0].alive and world.now < told + 100.0:
        world.tell_syncer(world.sites[0], Received(key=liar.key, message=Receipt()))
        world.run(world.now + 0.5)
    assert 40.0 <= world.now - told < 43.0


def test_receipts_come_in_time_though_reports_are_rare() -> None:
    """Reports every minute, and a syncer that waits for 12 s without a sign."""
    world, _, syncer = fleet("a", chunked=True, fragments=8, drain_s=12.0, report_every_s=60.0)
    slow = world.join("slow", 0.4, link=Link(0.01, down_bytes_s=1e6))
    world.run_until(lambda: syncer.ending.exact, 120.0)
    slow.link.down.bytes_s = 2000.0
    until_told(world, syncer)
    world.run_until(lambda: not world.sites[0].alive, 900.0)
    assert any("everybody has left" in stop for stop in world.stops)
    assert slow.body.values == last_values(world)


def test_who_gets_nothing_is_not_waited_for_and_says_what_it_lacks() -> None:
    world, (_, deaf), syncer = fleet("a", "deaf", drain_s=8.0)
    until_told(world, syncer)
    world.lose = lambda road, message: isinstance(message, Update)
    ended: dict[str, bool] = {}
    work = world.work_learner

    def work_learner(actor: Actor, action: Any) -> None:
        if isinstance(action, Finish):
            ended[actor.key.name] = action.finished
        work(actor, action)

    world.work_learner = work_learner
    told = world.now
    world.run_until(lambda: not world.sites[0].alive, 60.0)
    assert world.now - told < 8.0 + 2.0
    world.run_until(lambda: not deaf.alive, 30.0)
    assert any(NO_LAST_VALUES in stop for stop in world.stops)
    assert ended == {"a": False, "deaf": False}, "to who has not the last values the run is not a success"


@pytest.mark.parametrize("returns", [False, True])
def test_a_death_at_the_end_holds_nobody_up(returns: bool) -> None:
    """One dies before it has the last values; a process of its name that comes then gets them, and goes."""
    world, (one, other), syncer = fleet("a", "b")
    until_told(world, syncer)
    world.kill(other)
    told = world.now
    again = world.join("b") if returns else None
    world.run_until(lambda: not world.sites[0].alive, 60.0)
    assert world.now - told < 6.0 + 2.0
    assert one.body.values == last_values(world)
    if again is not None:
        assert not again.alive
        assert again.body.values == last_values(world)


def test_who_leaves_early_is_not_held_up() -> None:
    """D-65: one learner's loop ends early; the others go on to the target."""
    world, (early, other), syncer = fleet("early", "b")
    world.run_until(lambda: syncer.progress > 0.2, 60.0)
    world.tell(early, LeaveRequested(reason="its loop is done"))
    world.run_until(lambda: not early.alive, 6.0)
    until_told(world, syncer)
    world.run_until(lambda: not world.sites[0].alive, 10.0)
    assert other.body.values == last_values(world)
    assert sorted(fallen.key.name for fallen in world.fallen if fallen.state == "left") == ["b", "early"]


def test_who_leaves_pushes_nothing_that_would_be_refused_again() -> None:
    """Its newest merged work is in a state that it has not got: the same cut, again and again, would push out the bytes
    by which that state could be taken in."""
    world, (early, _), syncer = fleet("early", "b")
    world.run_until(lambda: syncer.progress > 0.2, 60.0)
    machine = early.machine
    for duty in machine.duties:
        duty.refused_on = (duty.progress.after, duty.progress.seen.epoch)
    cuts = machine.counts["cut"]
    world.tell(early, LeaveRequested(reason="its loop is done"))
    world.run_until(lambda: not early.alive, 6.0)
    assert sum(duty.progress.tokens for duty in machine.duties) > 0
    assert machine.counts["cut"] == cuts


def test_a_signal_during_the_last_checkpoint_ends_with_it() -> None:
    """D-71: no farewell, so learners train on; started again the syncer ends the run in order."""
    world, (one,), syncer = fleet("a")
    world.save_s = 2.0
    world.run_until(lambda: syncer.ending.exact, 60.0)
    world.tell_syncer(world.site, LeaveRequested(reason="SIGTERM"))
    world.run_until(lambda: not world.sites[0].alive, 4.5)
    assert one.alive
    world.start_syncer(world.sites[0].disk)
    world.run_until(lambda: not one.alive, 60.0)
    assert one.body.values == last_values(world)


def test_a_syncer_that_dies_while_the_last_values_go_out_and_returns_ends_the_run_again() -> None:
    """D-63: the end is told by what is merged, never by what a former syncer said."""
    world, (one,), syncer = fleet("a", chunked=True)
    until_told(world, syncer)
    world.kill_syncer(world.sites[0])
    world.run(world.now + 1.0)
    world.start_syncer(world.sites[0].disk)
    world.run_until(lambda: not one.alive, 60.0)
    assert one.body.values == last_values(world)


@pytest.mark.parametrize("when_alone", ["wait", "stop"])
def test_when_every_learner_has_left(when_alone: str) -> None:
    """D-65: it drains, saves and ends with the reason; or it waits for others, and says that nobody trains."""
    world = World(SyncParams(sync_period=8, when_alone=when_alone), 2)
    actors = [world.join(name) for name in "ab"]
    world.run(10.0)
    for actor in actors:
        world.tell(actor, LeaveRequested(reason="its loop is done"))
    world.run(20.0)
    site = world.sites[0]
    assert site.alive is (when_alone == "wait")
    if site.alive:
        assert site.machine.waiting.why().startswith("nobody trains")
    else:
        assert any("every learner has left" in stop for stop in world.stops)
        assert [state.stamp for state in site.disk.states] == [desk.stamp for desk in site.machine.desk]


def test_who_is_gone_may_return_before_a_syncer_that_is_alone_stops() -> None:
    world = World(SyncParams(sync_period=8, when_alone="stop", drain_s=10.0), 2)
    one = world.join("a")
    world.run(10.0)
    world.kill(one)
    world.run(24.0)
    assert world.sites[0].alive
    world.join("a")
    world.run(50.0)
    assert world.sites[0].alive


@pytest.mark.parametrize("give_up_after_s", [600.0, 0.0])
def test_a_learner_whose_syncer_never_returns_gives_up(give_up_after_s: float) -> None:
    """It warns on the way, less and less often; 0 means never."""
    world = World(SyncParams(sync_period=8), 2)
    one = world.join("a", 2.0, give_up_after_s=give_up_after_s)
    world.run(20.0)
    world.kill_syncer(world.sites[0])
    world.run(600.0)
    assert one.alive
    world.run(640.0)
    assert one.alive is not bool(give_up_after_s)
    assert 3 <= sum("is without a syncer" in note for note in world.notes) <= 6
    if give_up_after_s:
        assert any("learner.give_up_after_s is 600" in stop for stop in world.stops)
