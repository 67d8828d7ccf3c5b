"""A syncer and the bundles of a relay: taken whole or not at all, whatever happens on the way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.core.bundle_syncer import BUNDLE_BYTES, NBYTES, PARAMS, RELAY, Syncer, acks, merges
from tests.core.samples import ANN, BOB, EVE
from zdiloco.core import machine as m
from zdiloco.core import messages as w
from zdiloco.core.bundles import bundle_id
from zdiloco.units import MemberKey


def test_a_bundle_takes_the_place_of_its_members_and_each_is_acked_by_itself() -> None:
    syncer = Syncer(replace(PARAMS, min_quorum=3))
    for key in (ANN, BOB):
        syncer.offer(key)
    message = syncer.offer(EVE)
    bundle = syncer.taken(ANN, BOB)
    actions = syncer.here(bundle)
    assert acks(actions) == {"ann": 1, "bob": 1}
    syncer.audit()
    actions += syncer.alone(EVE, message, 0.9)
    (merge,) = merges(actions)
    assert [(part.id.name, part.codec, part.weight, part.clip) for part in merge.parts] == [
        ("relay", "fp32", 2000.0, 1.0), ("eve", "bf16", 1000.0, 1.0)
    ]  # fmt: skip
    assert {entry.name: (entry.seq, entry.tokens) for entry in merge.merged} == {
        "ann": (1, 100), "bob": (1, 100), "eve": (1, 100)
    }  # fmt: skip
    update = w.Update(fragment=0, stamp=merge.stamp, full=False, codec="bf16", value_bytes=9, body=bundle.body)
    done = syncer.tell(m.MergeDone(update=update))
    assert [action.id for action in done if isinstance(action, m.Free)] == [part.id for part in merge.parts]
    assert syncer.machine.intakes.used_bytes == 0
    assert syncer.machine.merged_tokens == 300
    syncer.audit()


def test_a_void_merge_refuses_all_in_it() -> None:
    syncer = Syncer()
    for key in (ANN, BOB):
        syncer.offer(key)
    actions = syncer.here(syncer.taken(ANN, BOB))
    syncer.now += 60.0
    actions += syncer.tell(m.TimerDue())
    assert merges(actions)
    failed = syncer.tell(m.MergeFailed(fragment=0, reason="not finite"))
    words = [action.message for action in failed if isinstance(action, m.Send)]
    assert [word.reason for word in words if isinstance(word, w.Refused)] == ["non_finite"] * 2
    assert syncer.machine.intakes.used_bytes == 0
    syncer.audit()


def changed(**fields: Any) -> Callable[[Syncer], w.Bundle]:
    """A bundle of ann and bob in which bob's entry says something else."""

    def make(syncer: Syncer) -> w.Bundle:
        bundle = syncer.bundle(ANN, BOB)
        return replace(bundle, members=(bundle.members[0], bundle.members[1]._replace(**fields)))

    return make


def of_a_member_whose_body_is_here(syncer: Syncer) -> w.Bundle:
    (message,) = (incoming.message for place, incoming in syncer.machine.intakes.incoming.items() if place[0] == BOB)
    syncer.tell(m.Fetched(key=BOB, message=message))
    return syncer.bundle(ANN, BOB)


def of_a_member_that_is_held(syncer: Syncer) -> w.Bundle:
    (message,) = (incoming.message for place, incoming in syncer.machine.intakes.incoming.items() if place[0] == BOB)
    syncer.alone(BOB, message)
    return syncer.bundle(ANN, BOB)


def of_a_member_of_another_bundle(syncer: Syncer) -> w.Bundle:
    syncer.taken(ANN, BOB)
    syncer.said.clear()
    return syncer.bundle(ANN, BOB, number=2)


def under_the_name_of_one_that_is_awaited(syncer: Syncer) -> w.Bundle:
    first = syncer.taken(ANN, BOB)
    syncer.offer(EVE)
    syncer.said.clear()
    return syncer.bundle(EVE, number=2, body=replace(first.body, digest=8))


def under_the_name_of_one_that_is_here(syncer: Syncer) -> w.Bundle:
    first = syncer.taken(ANN, BOB)
    syncer.here(first)
    syncer.offer(EVE)
    syncer.said.clear()
    return syncer.bundle(EVE, number=2, body=first.body)


def where_none_are_taken(syncer: Syncer) -> w.Bundle:
    syncer.machine.intakes.bundles.allowed = False
    return syncer.bundle(ANN, BOB)


def without_room(syncer: Syncer) -> w.Bundle:
    syncer.machine.intakes.used_bytes += PARAMS.budget_bytes - 2 * NBYTES - BUNDLE_BYTES + 1
    return syncer.bundle(ANN, BOB)


def far_above_what_others_sent(syncer: Syncer) -> w.Bundle:
    message = syncer.offer(EVE)
    syncer.alone(EVE, message, 0.1)
    norms = syncer.machine.desk.fragments[0].norms
    usual = list(syncer.machine.desk.fragments[0].intake.held.values())
    norms.judge(usual, 1, PARAMS.clip, {"ann", "bob", "eve"})
    bundle = syncer.bundle(ANN, BOB)
    return replace(bundle, members=(bundle.members[0]._replace(norm=0.1), bundle.members[1]._replace(norm=50.0)))


CASES: dict[str, tuple[str, Callable[[Syncer], w.Bundle]]] = {
    "none are taken": ("off", where_none_are_taken),
    "another seq": ("member", changed(seq=2)),
    "another after": ("member", changed(after=3)),
    "other steps": ("member", changed(steps=11)),
    "other tokens": ("member", changed(tokens=99)),
    "another incarnation": ("member", changed(incarnation=77)),
    "nobody knows it": ("member", changed(name="zoe")),
    "its body is here": ("member", of_a_member_whose_body_is_here),
    "it is held": ("member", of_a_member_that_is_held),
    "it is in another bundle": ("member", of_a_member_of_another_bundle),
    "its name is that of one that is awaited": ("broken", under_the_name_of_one_that_is_awaited),
    "its name is that of one that is here": ("broken", under_the_name_of_one_that_is_here),
    "no such fragment": ("member", lambda syncer: syncer.bundle(ANN, BOB, fragment=9)),
    "another weight": ("weight", changed(weight=1001.0)),
    "no norm": ("norm", changed(norm=0.0)),
    "a norm that would be clipped": ("norm", far_above_what_others_sent),
    "no room": ("budget", without_room),
    "too many bytes": (
        "body", lambda syncer: syncer.bundle(
            ANN, BOB, body=w.Body(transfer="b/1", nbytes=9000, chunk_bytes=1 << 16, digest=7)
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused_changes_nothing(case: str) -> None:
    reason, make = CASES[case]
    syncer = Syncer()
    for key in (ANN, BOB):
        syncer.offer(key)
    bundle = make(syncer)
    used, awaited = syncer.machine.intakes.used_bytes, syncer.awaited()
    syncer.hear(RELAY, bundle)
    assert syncer.refused() == [reason]
    assert (syncer.machine.intakes.used_bytes, syncer.awaited()) == (used, awaited)


def test_a_name_that_is_free_again_may_be_used() -> None:
    syncer = Syncer()
    for key in (ANN, BOB, EVE):
        syncer.offer(key)
    first = syncer.taken(ANN, BOB)
    syncer.tell(m.FetchLost(key=RELAY, message=first, reason="no progress for 30 s"))
    again = syncer.bundle(ANN, EVE, number=2, body=first.body)
    assert m.Fetch(key=RELAY, message=again) in syncer.hear(RELAY, again)
    syncer.audit()


def test_a_learner_cannot_speak_for_others() -> None:
    syncer = Syncer()
    for key in (ANN, BOB):
        syncer.offer(key)
    syncer.hear(EVE, syncer.bundle(ANN, BOB))
    assert syncer.refused() == ["member"]


def lost(syncer: Syncer, bundle: w.Bundle) -> None:
    syncer.tell(m.FetchLost(key=RELAY, message=bundle, reason="no progress for 30 s"))


def unsound(syncer: Syncer, bundle: w.Bundle) -> None:
    syncer.here(bundle, reason="layout")


def too_large(syncer: Syncer, bundle: w.Bundle) -> None:
    syncer.here(bundle, norm=1.1)


def absurd(syncer: Syncer, bundle: w.Bundle) -> None:
    syncer.machine.desk.fragments[0].numel = 0
    syncer.tell(m.Fetched(key=RELAY, message=bundle))
    syncer.tell(m.Screened(id=bundle_id(RELAY, bundle), reason="", norm=1.0, values=1e-9))


@pytest.mark.parametrize("end", [lost, unsound, too_large, absurd])
def test_what_ends_a_bundle_has_its_members_bodies_awaited_again(end: Callable[[Syncer, w.Bundle], None]) -> None:
    syncer = Syncer()
    messages = {key: syncer.offer(key) for key in (ANN, BOB)}
    end(syncer, syncer.taken(ANN, BOB))
    assert syncer.refused() == ["norm" if end is absurd else "body"]
    assert set(syncer.awaited()) == {ANN, BOB}
    syncer.audit()
    syncer.machine.desk.fragments[0].numel = 500
    assert acks([action for key in messages for action in syncer.alone(key, messages[key])]) == {"ann": 1, "bob": 1}
    syncer.audit()


def goes(syncer: Syncer) -> None:
    syncer.hear(BOB, w.Goodbye(reason="done", trained_tokens=1, left_tokens=0.0, dropped_tokens=0.0))


def dies(syncer: Syncer) -> None:
    for _ in range(20):
        syncer.now += 1.0
        for key in (ANN, EVE):
            syncer.hear(key, w.Heartbeat(epoch=syncer.machine.epoch))
        syncer.tell(m.TimerDue())


def is_reborn(syncer: Syncer) -> None:
    dies(syncer)
    syncer.joins(MemberKey("bob", 900))


def sends_a_newer_one(syncer: Syncer) -> None:
    syncer.offer(BOB, seq=2)


@pytest.mark.parametrize("void", [goes, dies, is_reborn, sends_a_newer_one])
@pytest.mark.parametrize("looked_at", [False, True])
def test_a_member_that_becomes_void_ends_the_bundle_whole(void: Callable[[Syncer], None], looked_at: bool) -> None:
    syncer = Syncer()
    for key in (ANN, BOB):
        syncer.offer(key)
    bundle = syncer.taken(ANN, BOB)
    if looked_at:
        syncer.tell(m.Fetched(key=RELAY, message=bundle))
    void(syncer)
    assert syncer.refused() == ["broken"]
    assert ANN in syncer.awaited()
    assert RELAY not in syncer.awaited() or looked_at
    if looked_at:
        late = syncer.tell(m.Screened(id=bundle_id(RELAY, bundle), reason="", norm=1.0, values=1.0))
        assert m.Free(id=bundle_id(RELAY, bundle)) in late
        assert acks(late) == {}
    syncer.audit()


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_member_that_says_hello_again_is_not_awaited_in_a_bundle(looked_at: bool) -> None:
    """Its relay may be gone, with the bundle; what is here already needs no relay."""
    syncer = Syncer()
    for key in (ANN, BOB):
        syncer.offer(key)
    bundle = syncer.taken(ANN, BOB)
    if looked_at:
        syncer.tell(m.Fetched(key=RELAY, message=bundle))
    syncer.joins(BOB)
    assert syncer.refused() == ([] if looked_at else ["broken"])
    assert set(syncer.awaited()) == ({RELAY} if looked_at else {ANN, BOB})
    if looked_at:
        late = syncer.tell(m.Screened(id=bundle_id(RELAY, bundle), reason="", norm=1.0, values=1.0))
        assert acks(late) == {"ann": 1, "bob": 1}
    syncer.audit()


def test_a_bundle_said_twice_is_one_bundle() -> None:
    syncer = Syncer()
    for key in (ANN, BOB):
        syncer.offer(key)
    bundle = syncer.taken(ANN, BOB)
    used = syncer.machine.intakes.used_bytes
    assert m.Fetch(key=RELAY, message=bundle) in syncer.hear(RELAY, bundle), "its credit may have been lost"
    assert syncer.machine.intakes.used_bytes == used
    syncer.here(bundle)
    syncer.hear(RELAY, bundle)
    assert syncer.refused() == []
    syncer.audit()


def test_a_member_offered_again_is_awaited_in_its_bundle_alone() -> None:
    syncer = Syncer()
    message = syncer.offer(ANN)
    syncer.offer(BOB)
    syncer.taken(ANN, BOB)
    assert not [a for a in syncer.hear(ANN, message) if isinstance(a, m.Fetch)]


def test_who_is_gone_when_the_bundle_is_here_is_merged_as_if_its_own_bytes_had_come() -> None:
    syncer = Syncer()
    for key in (ANN, BOB):
        syncer.offer(key)
    syncer.here(syncer.taken(ANN, BOB))
    goes(syncer)
    syncer.now += 60.0
    actions = syncer.said + syncer.tell(m.TimerDue())
    assert {entry.name for merge in merges(actions) for entry in merge.merged} == {"ann", "bob"}


def test_a_newer_one_of_a_held_member_sends_the_others_of_its_bundle_back() -> None:
    """What is summed cannot be taken out of the sum: the others cut again, and nothing is lost."""
    syncer = Syncer(replace(PARAMS, min_quorum=3))
    for key in (ANN, BOB):
        syncer.offer(key)
    syncer.here(syncer.taken(ANN, BOB))
    actions = syncer.alone(BOB, syncer.offer(BOB, seq=2))
    words = [(action.key, action.message) for action in actions if isinstance(action, m.Send)]
    assert [(key, word.reason) for key, word in words if isinstance(word, w.Refused)] == [(ANN, "budget")]
    assert acks(actions) == {"bob": 2}
    assert set(syncer.machine.desk.fragments[0].intake.held) == {BOB}
    syncer.audit()


def test_room_is_made_when_all_in_a_bundle_are_held() -> None:
    """One that was sent back before the others were held would be in their sum, and cut again."""
    syncer = Syncer(replace(PARAMS, min_quorum=3))
    others = PARAMS.budget_bytes - 5000
    syncer.machine.intakes.used_bytes += others
    for key in (ANN, BOB):
        syncer.offer(key)
    bundle = syncer.taken(ANN, BOB)
    large = w.Body(transfer="c/0/1", nbytes=4000, chunk_bytes=1 << 20, digest=5)
    syncer.hear(EVE, replace(syncer.machine.intakes.incoming[ANN, 0].message, body=large))
    actions = syncer.here(bundle)
    words = [(action.key, action.message) for action in actions if isinstance(action, m.Send)]
    assert [(key, word.reason) for key, word in words if isinstance(word, w.Refused)] == [
        (BOB, "budget"), (ANN, "budget")
    ]  # fmt: skip
    assert [action.key for action in actions if isinstance(action, m.Fetch)] == [EVE]
    syncer.machine.intakes.used_bytes -= others
    syncer.audit()


def test_the_number_of_a_bundle_that_is_looked_at_is_not_used_again() -> None:
    """Its bytes would be taken for those of the next one, and freed while that is held."""
    syncer = Syncer()
    for key in (ANN, BOB, EVE):
        syncer.offer(key)
    bundle = syncer.taken(ANN, BOB)
    syncer.tell(m.Fetched(key=RELAY, message=bundle))
    syncer.offer(BOB, seq=2)
    again = syncer.bundle(ANN, EVE)
    syncer.said.clear()
    assert m.Fetch(key=RELAY, message=again) not in syncer.hear(RELAY, again)
    assert syncer.refused() == ["broken"]
    freed = syncer.tell(m.Screened(id=bundle_id(RELAY, bundle), reason="", norm=1.0, values=1.0))
    assert [action.id for action in freed if isinstance(action, m.Free)] == [bundle_id(RELAY, bundle)]
    assert m.Fetch(key=RELAY, message=again) in syncer.hear(RELAY, again)
    syncer.here(again, reason="layout")
    assert m.Fetch(key=RELAY, message=again) in syncer.hear(RELAY, again), "that it was refused leaves nothing"
    syncer.audit()


def test_one_that_is_clipped_at_close_has_all_in_its_bundle_clipped_alike() -> None:
    """What others send after the bundle was taken may show that one in it was too large."""
    syncer = Syncer(replace(PARAMS, min_quorum=3, clip=3.0))
    for key in (ANN, BOB):
        syncer.offer(key)
    bundle = syncer.bundle(ANN, BOB)
    large = replace(bundle, members=(bundle.members[0]._replace(norm=9.0), bundle.members[1]))
    syncer.hear(RELAY, large)
    assert syncer.refused() == [], "of two that differ nobody knows who is right"
    syncer.here(large, norm=5.0)
    norms = syncer.machine.desk.fragments[0].norms
    held = syncer.machine.desk.fragments[0].intake.held
    norms.judge([replace(held[ANN], norm=1.0), held[BOB]], 1, 3.0, {"ann", "bob", "eve"})
    actions = syncer.alone(EVE, syncer.offer(EVE), 1.0)
    (merge,) = merges(actions)
    parts = {part.id.name: part for part in merge.parts}
    assert parts["relay"].clip < 1.0
    assert parts["relay"].weight == pytest.approx(2000.0 * parts["relay"].clip)
    assert parts["eve"].clip == 1.0
    assert {entry.name: entry.tokens for entry in merge.merged} == {"ann": 100, "bob": 100, "eve": 100}
    remarks = [passed.remark for _, passed in syncer.machine.intakes.in_merge[0]]
    assert remarks == ["clipped", "clipped", None]
