"""What is not the published value is never adopted: it is counted, said once, and pulled whole."""

from typing import Any

import pytest

from tests.core.samples import EPOCH, NEXT_EPOCH
from zdiloco.core.learner import LearnerMachine
from zdiloco.core.machine import (
    SYNCER,
    Boundary,
    Discard,
    Misfit,
    Note,
    Prepare,
    Prepared,
    Received,
    Send,
    Started,
    TimerDue,
    UpdateReady,
)
from zdiloco.core.messages import Body, Pull, Update, Welcome
from zdiloco.core.params import LearnerParams, SyncParams
from zdiloco.sim.actors import Actor
from zdiloco.sim.links import Link
from zdiloco.sim.work import ids_of
from zdiloco.sim.world import World
from zdiloco.units import MemberKey, Stamp


def update(version: int, *, full: bool = False, base: Stamp | None = None) -> Update:
    body = Body(transfer=f"{'s' if full else 'u'}/{version}", nbytes=4, chunk_bytes=1024, digest=0)
    stamp = Stamp(EPOCH, version)
    return Update(fragment=0, stamp=stamp, full=full, codec="int8", value_bytes=4, body=body, base=base)


def tell(learner: LearnerMachine, *events: Any, now: float = 0.0) -> list[Any]:
    """What it said to the last event."""
    return [learner.handle(event, now) for event in events][-1]


def come(learner: LearnerMachine, what: Update, now: float = 0.0) -> list[Any]:
    return tell(learner, Received(key=SYNCER, message=what), UpdateReady(update=what, records=()), now=now)


def trained() -> LearnerMachine:
    """A learner that has adopted version 0 and trains."""
    params = LearnerParams(answer_timeout_s=1.0)
    learner = LearnerMachine(MemberKey("a", 1), SyncParams(), params, shares=(1.0,), layout_digest="d")
    welcome = Welcome(epoch=EPOCH, run_id="r", order=1, versions=(0,), progress=0.0)
    tell(learner, Started(), Received(key=SYNCER, message=welcome))
    come(learner, update(0, full=True))
    tell(learner, Prepared(fragment=0, serial=1), Boundary())
    assert learner.duties[0].progress.seen == Stamp(EPOCH, 0)
    return learner


def pulls(actions: list[Any]) -> int:
    return sum(isinstance(action, Send) and isinstance(action.message, Pull) for action in actions)


def test_a_delta_that_leads_elsewhere_is_pulled_whole_and_said_once() -> None:
    learner, duty = (made := trained()), made.duties[0]
    first = update(1, base=Stamp(EPOCH, 0))
    (prepare,) = (action for action in come(learner, first) if isinstance(action, Prepare))
    said = tell(learner, Misfit(fragment=0, serial=prepare.serial, reason="another digest"))
    assert [type(action) for action in said] == [Note, Discard, Send]
    assert (said[0].level, said[0].why, said[1].update, pulls(said)) == ("warning", "another digest", first, 1)
    tell(learner, Boundary())
    assert duty.progress.seen == Stamp(EPOCH, 0), "nothing of it is adopted"
    second = update(1, full=True)
    (prepare,) = (action for action in come(learner, second) if isinstance(action, Prepare))
    said = tell(learner, Misfit(fragment=0, serial=prepare.serial, reason="again"), now=1.0)
    assert (said[0].level, pulls(said), learner.counts["misfit"]) == ("debug", 0, 2)
    wait = learner.params.answer_timeout_s
    assert pulls(tell(learner, TimerDue(), now=1.0 + wait / 2)) == 0, "a syncer that is wrong is not asked at once"
    assert learner.deadline() <= 1.0 + wait
    assert pulls(tell(learner, TimerDue(), now=1.0 + wait)) == 1
    (prepare,) = (action for action in come(learner, second, now=2.0 + wait) if isinstance(action, Prepare))
    tell(learner, Prepared(fragment=0, serial=prepare.serial), Boundary(), now=2.0 + wait)
    assert duty.progress.seen == Stamp(EPOCH, 1)


@pytest.mark.parametrize("base", [Stamp(EPOCH, -1), Stamp(NEXT_EPOCH._replace(counter=0), 7)])
def test_a_delta_to_another_state_is_not_even_worked_out(base: Stamp) -> None:
    learner = trained()
    said = come(learner, update(1, base=base))
    assert not any(isinstance(action, Prepare) for action in said)
    assert (learner.counts["misfit"], pulls(said)) == (1, 1)
    assert learner.duties[0].adoption is None


def test_the_misfit_of_an_older_preparation_says_nothing() -> None:
    learner = trained()
    (prepare,) = (a for a in come(learner, update(1, base=Stamp(EPOCH, 0))) if isinstance(a, Prepare))
    assert tell(learner, Misfit(fragment=0, serial=prepare.serial - 1, reason="old")) == []
    assert learner.duties[0].adoption is not None


def test_deltas_behind_one_that_does_not_fit_wait_for_the_whole_state() -> None:
    learner = trained()
    (prepare,) = (a for a in come(learner, update(1, base=Stamp(EPOCH, 0))) if isinstance(a, Prepare))
    come(learner, update(2, base=Stamp(EPOCH, 1)))
    tell(learner, Misfit(fragment=0, serial=prepare.serial, reason="another digest"))
    (prepare,) = (a for a in come(learner, update(2, full=True)) if isinstance(a, Prepare))
    assert prepare.stamp == Stamp(EPOCH, 2)
    tell(learner, Prepared(fragment=0, serial=prepare.serial), Boundary())
    (prepare,) = (a for a in come(learner, update(3, base=Stamp(EPOCH, 2))) if isinstance(a, Prepare))
    assert prepare.stamp == Stamp(EPOCH, 3), "and from there deltas fit again"


def spoil(world: World, actor: Actor) -> int:
    """Memory goes bad: one id is gone from R, and from the values that stand on it. Returns it."""
    body = actor.body
    lost = ids_of(body.reference[0])[0]
    body.reference[0] &= ~(1 << lost)
    body.values[0] &= ~(1 << lost)
    return lost


@pytest.mark.parametrize("chunked", [False, True])
def test_a_spoiled_reference_heals_by_a_pull(chunked: bool) -> None:
    world = World(SyncParams(sync_period=8), 1, chunked=chunked, delta_codec="4bit")
    actors = [world.join(name, link=Link(latency_s=0.02), codec="4bit") for name in ("a", "b")]
    world.run(4.0)
    assert [actor.machine.counts.get("misfit", 0) for actor in actors] == [0, 0]
    pulled = [actor.machine.counts["pulled"] for actor in actors]
    lost = spoil(world, actors[0])
    world.run(8.0)
    world.audit()
    assert [actor.machine.counts.get("misfit", 0) for actor in actors] == [1, 0]
    assert [actor.machine.counts["pulled"] for actor in actors] == [pulled[0] + 1, pulled[1]]
    assert actors[0].body.reference[0] >> lost & 1, "it holds what was published again"
    assert sum("does not fit" in note for note in world.notes) == 1
    assert world.site is not None
    assert world.site.machine.rounds > 8


def test_with_deltas_a_broadcast_is_as_short_as_the_codec_makes_it() -> None:
    moved = {}
    for delta_codec in ("none", "4bit"):
        world = World(SyncParams(sync_period=8), 1, delta_codec=delta_codec)
        actor = world.join("a")
        world.run(3.0)
        moved[delta_codec] = [u.value_bytes for u in (actor.machine.duties[0].adopted,) if u is not None]
    assert moved == {"none": [20_000], "4bit": [2_658]}
