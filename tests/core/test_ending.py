"""How a syncer ends, and what it lets go: every wait has an end, every body that is not wanted is freed."""

import pytest

from tests.core.samples import BODY
from zdiloco.core import machine as m
from zdiloco.core.bounds import MAX_COUNT
from zdiloco.core.membership import MemberState
from zdiloco.core.messages import Heartbeat, Hello, InitialOffer, LayoutOffer, Welcome
from zdiloco.core.params import SyncParams
from zdiloco.core.syncer import SyncerMachine
from zdiloco.sim.world import World
from zdiloco.units import MAX_FRAGMENTS, Epoch, MemberKey


def test_a_last_checkpoint_that_never_comes_ends_with_1() -> None:
    world = World(SyncParams(drain_s=5.0), 2)
    world.join("a")
    world.run(10.0)
    site = world.site
    world.finish_save = lambda *saved: None  # a disk that hangs
    world.tell_syncer(site, m.LeaveRequested(reason="asked"))
    world.run(14.9)
    assert site.alive
    world.run(15.1)
    assert not site.alive
    assert "sync.drain_s (5 s)" in world.stops[-1]


def test_a_last_checkpoint_that_comes_late_is_waited_for() -> None:
    world = World(SyncParams(drain_s=5.0), 2)
    world.join("a")
    world.run(10.0)
    site, finish = world.site, world.finish_save
    world.finish_save = lambda *saved: world.at(4.0, lambda: finish(*saved))
    world.tell_syncer(site, m.LeaveRequested(reason="asked"))
    world.run(16.0)
    assert world.stops[-1] == "syncer: asked to leave; the state is saved"


@pytest.mark.parametrize(
    "message", [LayoutOffer(digest="layout", body=BODY), InitialOffer(fragment=0, body=BODY)]
)
def test_a_body_of_a_former_donor_is_let_go(message: m.Fetchable) -> None:
    machine = SyncerMachine(SyncParams(), run_id="run", ident=1, now=0.0)
    former, donor = MemberKey("a", 1), MemberKey("b", 2)
    for at, key in ((0.0, former), (10.0, donor)):
        machine.handle(m.Received(key=key, message=Hello(name=key.name, incarnation=key.incarnation)), at)
    machine.handle(m.TimerDue(), 10.0)
    assert machine.reception.donation.donor == donor
    assert m.CancelFetch(key=former, message=message) in machine.handle(m.Fetched(key=former, message=message), 10.1)


def test_a_syncer_that_was_held_up_reads_before_it_declares_anybody_dead() -> None:
    """A-23: what came meanwhile is handed over message by message, at one late moment; silence is judged after it."""
    world = World(SyncParams(), 2)
    keys = [world.join(name).key for name in ("a", "b", "c")]
    world.run(10.0)
    machine = world.site.machine
    late = world.now + 100.0
    for key in keys:
        machine.handle(m.Received(key=key, message=Heartbeat(epoch=machine.epoch)), late)
    machine.handle(m.TimerDue(), late)
    assert {member.state for member in machine.fleet} == {MemberState.LIVE}
    for after in (machine.params.suspect_after_s, machine.params.gone_after_s):
        machine.handle(m.TimerDue(), late + after)
    assert {member.state for member in machine.fleet} == {MemberState.GONE}


def test_as_many_fragments_as_a_run_may_have_fit_a_welcome() -> None:
    versions = (MAX_COUNT,) * MAX_FRAGMENTS
    welcome = Welcome(epoch=Epoch(1, 1), run_id="run", order=1, versions=versions, progress=0.0)
    assert len(welcome.versions) == MAX_FRAGMENTS
    with pytest.raises(ValueError, match=r"InitialOffer\.fragment is 512"):
        InitialOffer(fragment=MAX_FRAGMENTS, body=BODY)


def test_a_merge_that_comes_to_nothing_costs_its_contributions_and_nothing_else() -> None:
    """The value would be infinite, by whose fault nobody knows: whoever was in it starts over, and the run goes on."""
    world = World(SyncParams(), 1)
    actors = [world.join(name) for name in ("a", "b")]
    world.run(5.0)
    version, merge, failed = world.site.body.states[0].stamp.version, world.site.body._merge, []

    def once(action: m.Merge) -> object:
        if failed:
            return merge(action)
        failed.append(action)
        return m.MergeFailed(fragment=0, reason="infinite")

    world.site.body._merge = once
    before = world.site.machine.merged_tokens
    world.run(7.0)
    assert failed
    assert failed[0].stamp.version == version + 1
    world.run(30.0)
    assert world.site.body.states[0].stamp.version > version + 10
    assert world.site.machine.merged_tokens > before
    assert world.site.machine.intakes.refused["non_finite"] == len(failed[0].parts)
    assert all(actor.machine.phase == "training" for actor in actors)
    assert all(world.site.machine.fleet.find(actor.key).state == "live" for actor in actors)
    assert world.site.machine.intakes.used_bytes <= 2 * 20_000
    map_ = {entry.key: entry for entry in world.site.body.states[0].map}
    assert map_ == world.site.machine.desk.fragments[0].intake.map
    world.audit()
