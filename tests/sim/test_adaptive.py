"""`sync.adaptive` in virtual time: what it makes of fleets and links, that chaos keeps every rule, and its replay."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.test_chaos import play_all
from zdiloco import trace
from zdiloco.core.params import SyncParams
from zdiloco.core.status import status
from zdiloco.sim.chaos import chaos
from zdiloco.sim.links import Link
from zdiloco.sim.recorded import RecordedWorld
from zdiloco.sim.scenario import Scenario
from zdiloco.sim.sizes import NBYTES
from zdiloco.whatif.compare import Grid, compare

PARAMS = SyncParams(
    adaptive=True, sync_period=6, beat_every_s=0.5, suspect_after_s=1.5, gone_after_s=3.0
)  # fmt: skip


def world_of(takes_s: list[float], steps_s: list[float], params: SyncParams = PARAMS) -> RecordedWorld:
    """Learners whose links take so many seconds for a contribution, and that need so many for a step."""
    world = RecordedWorld(params, 3)
    for number, (up_s, step_s) in enumerate(zip(takes_s, steps_s, strict=True)):
        world.join(f"l{number}", step_s, Link(latency_s=0.01, up_bytes_s=NBYTES / up_s))
    return world


def adapted(world: RecordedWorld) -> list[trace.Adapted]:
    return [record for record in world.told if isinstance(record, trace.Adapted)]


def merges(world: RecordedWorld, since: float) -> list[trace.Merge]:
    return [record for record in world.told if isinstance(record, trace.Merge) and record.t >= since]


def test_the_quorum_follows_a_fleet_and_who_leaves_it_holds_nobody_up() -> None:
    world = world_of([0.01] * 4, [0.05, 0.052, 0.054, 0.056])
    world.run(3.0)
    assert adapted(world)[-1].min_quorum == 4
    assert any("take part in a round" in record.why for record in adapted(world))
    world.kill(next(actor for actor in world.actors.values() if actor.key.name == "l3"))
    world.run(7.0)
    after = merges(world, 3.0)
    assert max(b.t - a.t for a, b in itertools.pairwise(after)) < 2 * 6 * 0.05 + 0.2, "a period, no more"
    assert adapted(world)[-1].min_quorum == 3
    assert world.site is not None
    told = status(world.site.machine, world.now)
    assert (told["sync_period"], told["adaptive"]["min_quorum"]) == (world.site.machine.desk.params.sync_period, 3)
    assert told["adaptive"]["why"] == adapted(world)[-1].why


@pytest.mark.slow
def test_nobody_waits_for_one_that_is_much_slower() -> None:
    """Its work is merged as before, and the others keep their pace."""
    steps_s = [0.05, 0.05, 0.05, 0.25]
    on, off = (world_of([0.01] * 4, steps_s, replace(PARAMS, adaptive=adaptive)) for adaptive in (True, False))
    for world in (on, off):
        world.run(6.0)
    assert {record.min_quorum for record in adapted(on)} <= {2, 3}
    assert len(merges(on, 0.0)) > 0.75 * len(merges(off, 0.0))
    slow = sum(part.tokens for merge in merges(on, 0.0) for part in merge.members if part.name == "l3")
    assert slow > 0
    assert adapted(off) == []


def test_a_run_that_adapts_is_decided_again_alike() -> None:
    """Its inputs are in the trace, and so what it measured."""
    world = world_of([0.01] * 3, [0.05, 0.055, 0.06])
    world.run(6.0)
    recorded, again = compare(world.told, Grid())
    assert again.figures.rounds == pytest.approx(recorded.figures.rounds, rel=0.05)
    assert again.figures.participants.mean == pytest.approx(recorded.figures.participants.mean, abs=0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_period_follows_links_that_are_too_slow_and_comes_back(say: Callable[[str], None]) -> None:
    """Contributions of a period need twice its time on every link; after a minute the links are fast."""
    world = world_of([0.2] * 4, [0.05] * 4)
    world.run(60.0)
    assert world.site is not None
    desk = world.site.machine.desk
    slow_period, share = desk.params.sync_period, desk.adaptive.answered if desk.adaptive else 0.0
    assert 9 <= slow_period <= 6 * 8
    for actor in world.actors.values():
        actor.link.up.bytes_s = 2e7
    world.run(170.0)
    say(f"H went from 6 to {slow_period} on slow links ({share:.0%} answered), and back to {desk.params.sync_period}")
    for record in adapted(world):
        say(f"  {record.t:6.1f} s: {record.why}")
    assert desk.params.sync_period == 6
    assert all(record.why for record in adapted(world))


def adaptive(seed: int) -> Scenario:
    """The chaos of a seed, with H and K that follow it."""
    story = chaos(seed)
    return replace(story, sync={**story.sync, "adaptive": True})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_chaos_keeps_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.test_chaos.chaos", adaptive)
    assert play_all(range(2000, 2006))["rounds"] > 60


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_chaos_keeps_every_rule_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.test_chaos.chaos", adaptive)
    assert play_all(range(2000, 2100))["rounds"] > 1000


SLOWER = replace(PARAMS, sync_period=12)


def share_of_last(params: SyncParams, up_s: float, fragments: int, **link: float) -> tuple[float, int, float]:
    """Three fast learners and one with this link for 60 s, of which the first 20 are left out: the share of rounds that
    it is in, the rounds, and the share of the slack that grace has learned."""
    world = RecordedWorld(params, fragments, exact=False)
    for number, each in enumerate([0.01, 0.01, 0.01, up_s]):
        more = link if number == 3 else {}
        road = Link(latency_s=0.01, up_bytes_s=NBYTES / each, **more)
        world.join(f"l{number}", 0.1 + 0.001 * number, road)
    world.run(60.0)
    found = merges(world, 20.0)
    last = sum(any(part.name == "l3" for part in merge.members) for merge in found)
    assert world.site is not None
    adaptive = world.site.machine.desk.adaptive
    return last / len(found), len(found), adaptive.grace.share if adaptive else 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("up_s", "fragments", "link", "gain"),
    [
        pytest.param(0.4, 1, {}, 0.2, id="slow link"),
        pytest.param(0.3, 2, {}, 0.2, id="two fragments"),
        pytest.param(0.1, 2, {"jitter_s": 0.2}, 0.15, id="jitter"),
        pytest.param(0.2, 2, {"loss": 0.02}, 0.1, id="lossy"),
        pytest.param(3.0, 1, {}, 0.0, id="out of reach"),
    ],
)
def test_grace_takes_in_whom_gamma_leaves_out(
    up_s: float, fragments: int, link: dict[str, float], gain: float, say: Callable[[str], None]
) -> None:
    """Whom no window would reach, nobody waits for either; rounds stay as frequent, within 8 in a hundred."""
    on, rounds, learned = share_of_last(SLOWER, up_s, fragments, **link)
    off, before, _ = share_of_last(replace(SLOWER, adaptive=False), up_s, fragments, **link)
    what = f"{up_s:g} s a contribution {link or ''}"
    say(f"{what}: in {on:.0%} of rounds, without {off:.0%}; grace {learned:.0%}, rounds {rounds} and {before}")
    assert on >= off + gain - 0.02
    assert rounds >= 0.92 * before
