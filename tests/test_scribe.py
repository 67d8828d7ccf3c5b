"""What the scribe tells of a machine, in a fleet in virtual time: it is what the machine did, and no more."""

import itertools

import pytest

from zdiloco import trace
from zdiloco.core.messages import Decline
from zdiloco.core.params import SyncParams
from zdiloco.lives import parts_of
from zdiloco.scribe import STEPS_PER_S
from zdiloco.sim.links import Link
from zdiloco.sim.recorded import RecordedWorld
from zdiloco.sim.sizes import NBYTES


@pytest.fixture(scope="module")
def world() -> RecordedWorld:
    """Three learners, one of them with a slow uplink; one is killed, and comes back; then all leave."""
    world = RecordedWorld(SyncParams(min_quorum=2, sync_period=8, beat_every_s=0.5), 3)
    world.join("a", 0.05)
    world.join("b", 0.08, Link(latency_s=0.02, up_bytes_s=NBYTES / 0.3))
    c = world.join("c", 0.1, region="west")
    world.run(8.0)
    world.kill(c)
    world.run(20.0)
    world.join("c", 0.1, region="east")
    world.run(26.0)
    return world


def test_the_run_is_told_in_the_order_of_its_times(world: RecordedWorld) -> None:
    times = [record.t for record in world.told]
    assert times == sorted(times)
    assert [type(record) for record in world.told[:2]] == [trace.Start, trace.Opened]
    assert world.of(trace.Opened)[0].shares == (1 / 3,) * 3


def test_every_call_is_told(world: RecordedWorld) -> None:
    assert [(call.t, call.fragment, call.version) for call in world.of(trace.Call)] == world.calls
    assert {call.why for call in world.of(trace.Call)} > {"2 learners have made 8 steps on it"}


def test_every_round_is_told_with_its_members_its_reason_and_its_waits(world: RecordedWorld) -> None:
    merges = world.of(trace.Merge)
    assert len(merges) > 20
    called = {(fragment, version): at for at, fragment, version in world.calls}
    asked = {(each.fragment, each.stamp.version): each.merged for each in world.sites[0].body.merges}
    for merge in merges:
        record = asked[merge_id(merge)]
        assert [(m.name, m.steps, m.tokens, m.seq) for m in merge.members] == [
            (r.name, r.steps, r.tokens, r.seq) for r in record
        ]
        assert merge.tokens == sum(r.tokens for r in record)
        assert merge.called_at == pytest.approx(called[merge_id(merge)])
        assert merge.why
    assert {m.staleness for merge in merges for m in merge.members} >= {0, 1}, "the slow one was late"


def merge_id(merge: trace.Merge) -> tuple[int, int]:
    return merge.fragment, merge.version


def test_what_is_published_says_how_long_it_took(world: RecordedWorld) -> None:
    published = world.of(trace.Published)
    assert len(published) in (len(world.of(trace.Merge)), len(world.of(trace.Merge)) - 1)
    assert all(record.sync_s == pytest.approx(0.002) for record in published)


def test_every_contribution_in_a_round_has_arrived_before(world: RecordedWorld) -> None:
    arrived = world.of(trace.Arrived)
    for merge in world.of(trace.Merge):
        before = [r for r in arrived if r.fragment == merge.fragment and r.t <= merge.t]
        for member in merge.members:
            record = [r for r in before if r.who == member.name][-1]
            assert (record.seq, record.steps, record.tokens) == (member.seq, member.steps, member.tokens)
            assert merge.version - 1 - record.base == member.staleness
    called = {(fragment, version): at for at, fragment, version in world.calls}
    for record in arrived:
        assert record.t - record.answer_s == pytest.approx(called[record.fragment, record.version])
        assert 0 < record.offer_s < record.answer_s
        assert record.nbytes > 0
    slow = [record.answer_s for record in arrived if record.who == "b"]
    assert min(slow) > 0.3, "its uplink takes so long"


def test_a_death_is_told_as_the_syncer_sees_it(world: RecordedWorld) -> None:
    told = [(type(r).__name__, getattr(r, "state", "")) for r in world.told if r.who == "c"]
    told = [each for each in told if each[0] in ("Joined", "Member")]
    assert told == [
        ("Joined", ""), ("Member", "live"), ("Member", "suspect"), ("Member", "gone"), ("Joined", ""),
        ("Member", "live"),
    ]  # fmt: skip
    gone = next(r for r in world.of(trace.Member) if r.state == "gone")
    assert gone.silent_s == pytest.approx(6.0)
    assert 7.4 < gone.t - gone.silent_s <= 8.01, "when it was last heard"
    first, second = (r.incarnation for r in world.of(trace.Joined) if r.who == "c")
    assert first != second
    regions = {name: [r.region for r in world.of(trace.Joined) if r.who == name] for name in "abc"}
    assert regions == {"a": [""], "b": [""], "c": ["west", "east"]}, "as each process says it"


def test_of_who_is_gone_nothing_is_told_before_it_is_welcome_again() -> None:
    """It was cut off and trains on: its report comes before its hello, and would begin another life."""
    soon = SyncParams(min_quorum=1, sync_period=8, beat_every_s=0.5, suspect_after_s=1.5, gone_after_s=3.0)
    world = RecordedWorld(soon, 2)  # before the learner itself takes the syncer for away
    world.join("a", 0.05)
    world.join("b", 0.05, Link(latency_s=0.01, trunk=world.trunk("west")), region="west")
    world.run(5.0)
    world.trunk("west").cut = True
    world.run(9.0)
    world.trunk("west").cut = False
    world.run(15.0)
    told = [type(r).__name__ if not isinstance(r, trace.Member) else r.state for r in world.told if r.who == "b"]
    assert told[told.index("gone") + 1] == "Joined"
    first, second = (r for r in world.of(trace.Joined) if r.who == "b")
    assert (first.incarnation, first.region) == (second.incarnation, "west")
    (life,) = (life for part in parts_of(world.told) for life in part.lives if life.who == "b")
    assert (life.silent, life.how) == ([pytest.approx((5, 9), abs=1.0)], "open")


def test_steps_are_told_once_a_second(world: RecordedWorld) -> None:
    steps = [r for r in world.of(trace.Step) if r.who == "a"]
    gaps = [late.t - early.t for early, late in itertools.pairwise(steps)]
    assert all(1.0 <= gap < 1.3 for gap in gaps)
    assert steps[-1].step == pytest.approx(26 / 0.05, abs=30)
    assert all(record.trained == 10 * record.step for record in steps)


def test_a_decline_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = RecordedWorld(SyncParams(min_quorum=1, sync_period=8), 1)
    a, b = world.join("a", 0.05), world.join("b", 0.05)
    world.lose = lambda road, message: road == "broadcast"  # nobody hears of the call
    world.run_until(lambda: bool(world.calls), 5.0)
    _, fragment, version = world.calls[-1]
    decline = Decline(fragment=fragment, version=version, reason="the uplink is busy", eta_s=1.0)
    for _ in range(3):
        world.up(a, decline)
    world.up(b, Decline(fragment=fragment, version=version + 7, reason="of another round", eta_s=1.0))
    world.run(world.now + 0.1)
    assert [(r.who, r.fragment, r.version, r.reason) for r in world.of(trace.Declined)] == [
        ("a", fragment, version, "the uplink is busy")
    ]


def test_a_goodbye_says_what_was_trained_and_who_watches_is_not_told() -> None:
    world = RecordedWorld(SyncParams(min_quorum=1, sync_period=8), 1, target_tokens=2000)
    world.join("a", 0.05)
    world.join("w", watching=True)
    world.run(60.0)
    finished = [r for r in world.of(trace.Member) if r.state == "finished"]
    assert [(r.who, r.trained) for r in finished] == [("a", 10 * finished[0].step)]
    assert finished[0].trained >= 2000
    assert {record.who for record in world.told} == {"syncer", "a"}
    (ending,) = world.of(trace.Ending)
    assert ending.phase in ("draining", "saving")
    assert max(call.t for call in world.of(trace.Call)) <= ending.t
    (sealed,) = world.of(trace.Sealed)
    merges = [(r.epoch, r.fragment, r.version) for r in world.of(trace.Merge)]
    newest = [max(v for _, f, v in merges if f == fragment) for fragment in range(len(sealed.versions))]
    assert (sealed.epoch, list(sealed.versions)) == (merges[-1][0], [version + 1 for version in newest])


def test_a_large_fleet_tells_its_steps_more_seldom() -> None:
    world = RecordedWorld(SyncParams(min_quorum=1, sync_period=200), 1)
    for number in range(80):
        world.join(f"l{number}", 0.25)
    world.run(6.0)
    assert len(world.of(trace.Step)) <= 80 + 6 * STEPS_PER_S
    a = [r.t for r in world.of(trace.Step) if r.who == "l7"]
    assert all(late - early >= 80 / STEPS_PER_S for early, late in itertools.pairwise(a))
