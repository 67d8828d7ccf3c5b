"""A living syncer and members that mean harm: welcomed, since they told the right digest, they say anything."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import zmq

from tests.hostile.enemy import Enemy, nonsense
from tests.hostile.scene import EVE, Scene
from zdiloco.core import messages as w
from zdiloco.units import NO_EPOCH, Epoch, MemberKey, Stamp
from zdiloco.wire.transfer import Credit, Gone, checksums_of, make_body

pytestmark = [pytest.mark.net]
MakeRun = Callable[..., Any]
SEEDS = 3


def hello(scene: Scene, key: MemberKey = EVE) -> w.Hello:
    return w.Hello(
        name=key.name, incarnation=key.incarnation, layout_digest=scene.syncer.machine.layout_digest,
        run_id=scene.syncer.machine.run_id,
    )  # fmt: skip


def member(scene: Scene, key: MemberKey = EVE) -> tuple[Enemy, w.Welcome]:
    """An enemy that was welcomed, since it told the right digest."""
    enemy = scene.enemy(key)
    enemy.say(hello(scene, key))
    return enemy, enemy.hear(w.Welcome)


def test_credit_that_goes_backwards_repeats_itself_and_asks_for_everything(scene: Scene) -> None:
    """It asks for every state that there is, again and again, beyond its end, and reads nothing (E-77 by credit)."""
    enemy, _ = member(scene)
    seen: set[str] = set()
    largest = 0
    for turn in range(40):
        names = list(scene.syncer.transfers.outbox._held)
        seen |= set(names)
        for name in [*names, *list(seen)[:20], "nothing", ""]:
            enemy.say(
                Credit(transfer=name, upto=2**50, received=0, missing=((0, 2**50),)),
                Credit(transfer=name, upto=0, received=2**40 if turn % 2 else 0, missing=((3, 1), (2**40, 9))),
                Gone(transfer=name, by_sender=bool(turn % 2), reason="x" * 500),
            )
        enemy.say(w.Pull(fragment=turn % 3), w.StatusQuery())
        rounds = scene.syncer.machine.rounds
        scene.run.until(lambda rounds=rounds: scene.syncer.machine.rounds > rounds, "a round")
        waiting = scene.syncer.roads._bulk.get(EVE, {})
        largest = max(largest, scene.syncer.transfers.outbox.held_bytes)
        assert len(waiting) <= 400, "chunks of what is on offer, each once"
    state_bytes = sum(4 * numel for numel in scene.syncer.body.layout.numels)
    assert largest <= 12 * state_bytes + 2**20
    scene.end()


def offer(scene: Scene, welcome: w.Welcome, seq: int, payload: bytes) -> w.Contribution:
    """A contribution to fragment 0 that could be right, in fp32; its transfer is called c/SEQ."""
    version = scene.syncer.body.states[0].stamp.version
    return w.Contribution(
        fragment=0, seq=seq, after=0, stamp=Stamp(welcome.epoch, version), steps=1, tokens=4, cut_step=1,
        version=version + 1, codec="fp32", body=make_body(f"c/{seq}", payload, 1024),
    )  # fmt: skip


def test_chunks_without_credit_and_chunks_of_finished_transfers(scene: Scene) -> None:
    """User case E-89: late chunks of a transfer that was replaced, of one that is over, and of none, change nothing."""
    enemy, welcome = member(scene)
    nbytes = 4 * scene.syncer.body.layout.numels[0]
    finite, poison = bytes(nbytes), b"\xff" * nbytes
    counters = scene.syncer.transfers.inbox.counters
    before = sum(counters.chunks.values())

    def push(name: str, payload: bytes, indices: range) -> None:
        for index in indices:
            part = payload[1024 * index :][:1024]
            checksum = checksums_of(part, 1024)[0]
            enemy.chunk(name, index, checksum ^ 1, part)
            enemy.chunk(name, index + 2**40, checksum, part)
            enemy.chunk(name, index, checksum, part + b"\0")
            enemy.chunk(name, index, checksum, part)

    count = -(-nbytes // 1024)
    assert count >= 2
    push("c/1", finite, range(count))  # nobody has asked
    scene.run.until(lambda: sum(counters.chunks.values()) >= before + 4 * count, "they were judged")
    enemy.say(w.Report(step=1, trained_tokens=4, unmerged_tokens=4, dropped_tokens=0), offer(scene, welcome, 1, finite))
    assert enemy.hear(Credit).transfer == "c/1"
    push("c/1", finite, range(count - 1))
    enemy.say(offer(scene, welcome, 2, poison))  # replaces the first, half-way
    while enemy.hear(Credit).transfer != "c/2":
        continue
    push("c/1", finite, range(count))
    push("c/2", poison, range(count))
    assert enemy.hear(w.Refused).reason == "non_finite"
    push("c/2", finite, range(count))
    sent = 4 * (5 * count - 1)
    scene.run.until(lambda: sum(counters.chunks.values()) >= before + sent, "all chunks were judged")
    assert scene.syncer.transfers.inbox.reserved_bytes <= 2**20
    scene.end()


def test_a_member_that_offers_everything_and_delivers_nothing(scene: Scene) -> None:
    """P-10: Sizes, codecs, versions and names without sense; announced, never sent. Memory stays in the budget."""
    enemy, welcome = member(scene)
    numel, inbox = scene.syncer.body.layout.numels[0], scene.syncer.transfers.inbox
    for seq in range(1, 400):
        good = offer(scene, welcome, seq, bytes(4 * numel))
        other = {name: getattr(good, name) for name in good.__dataclass_fields__}
        for change in (
            {}, {"body": w.Body(transfer=f"c/{seq}", nbytes=2**53, chunk_bytes=1024, digest=1)}, {"fragment": 511},
            {"codec": "zip"}, {"after": seq}, {"steps": 0}, {"tokens": 2**53}, {"cut_step": 2**53},
            {"version": 2**53}, {"stamp": Stamp(Epoch(9, 9), 1)}, {"stamp": Stamp(NO_EPOCH, -1)},
            {"body": w.Body(transfer="", nbytes=4 * numel, chunk_bytes=1, digest=1)},
        ):  # fmt: skip
            enemy.say(w.Contribution(**{**other, **change}))
        assert inbox.reserved_bytes <= 2**20
    enemy.say(w.Goodbye(reason="", trained_tokens=0, left_tokens=0, dropped_tokens=0))
    scene.run.until(lambda: scene.syncer.machine.fleet.find(EVE).state == "finished", "its leave")
    scene.end()


def chatter(rng: random.Random, scene: Scene, welcome: w.Welcome) -> Any:
    """Something that is well-formed and perhaps even in place; nothing that a member may end a syncer with."""
    some, count = rng.choice, rng.choice([0, 1, 2, 3, 7, 2**20, 2**53])
    version = rng.choice([-1, 0, 1, *welcome.versions, 2**53])
    stamp = Stamp(some([welcome.epoch, NO_EPOCH]), version)
    name, whole = some(["c/1", "x", ""]), 4 * scene.syncer.body.layout.numels[0]
    body = some([
        make_body(name, bytes(whole), 1024), make_body(name, bytes(some([0, 1, 1024])), 1024),
        w.Body(transfer=name, nbytes=some([whole, count]), chunk_bytes=some([1, 1024, 2**20]), digest=1),
    ])  # fmt: skip
    fragment = some([0, 1, 2, 511])
    return some([
        hello(scene), w.Heartbeat(epoch=some([welcome.epoch, NO_EPOCH])), w.Pull(fragment=fragment),
        w.Report(step=count, trained_tokens=count, unmerged_tokens=count, dropped_tokens=count), w.StatusQuery(),
        w.Contribution(
            fragment=fragment, seq=max(1, count), after=some([0, count]), stamp=stamp, steps=count, tokens=count,
            cut_step=count, version=max(0, version), codec=some(["fp32", "bf16", "int8", "?"]), body=body,
        ),
        w.Receipt(),
        w.Decline(fragment=fragment, version=max(0, version), reason="no", eta_s=count / 2**30),
        w.LayoutOffer(digest="x", body=body), w.InitialOffer(fragment=fragment, body=body), w.Donate(),
        w.Handback(fragment=fragment, stamp=stamp, codec="fp32", value_bytes=count, body=body),
        w.Goodbye(reason="x", trained_tokens=count, left_tokens=count, dropped_tokens=count),
        w.Welcome(epoch=Epoch(9, 9), run_id="?", order=1, versions=(1,), progress=1.0),
        w.Update(fragment=fragment, stamp=stamp, full=True, codec="bf16", value_bytes=count, body=body),
        w.Borrow(fragment=fragment, kind="AdamW", stamp=stamp), w.LoanOver(fragment=fragment, number=count, reason=""),
        w.Loan(fragment=fragment, number=count, kind="AdamW", stamp=stamp, codec="fp32", body=body),
        Credit(transfer=some(["", "x", *scene.syncer.transfers.outbox._held]), upto=count, received=some([0, count])),
        Gone(transfer=some(["c/1", "x"]), by_sender=some([True, False]), reason="no"),
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
def test_members_that_say_anything(scene: Scene, seed: int) -> None:
    """P-15: Under two identities in turns, with chunks of what they offer and frames that are none."""
    rng = random.Random(seed)
    enemies = [member(scene, MemberKey("eve", 666)), member(scene, MemberKey("mallory", 5))]
    noise = nonsense(rng)
    for _ in range(1500):
        enemy, welcome = rng.choice(enemies)
        enemy.say(chatter(rng, scene, welcome))
        if rng.random() < 0.2:
            whole = 4 * scene.syncer.body.layout.numels[0]
            part = bytes(rng.choice([0, 1, 1024, 1024, whole % 1024, whole % 1024]))
            sums = checksums_of(part, 1024) if part else [0]
            enemy.chunk(rng.choice(["c/1", "x", ""]), rng.choice([0, 0, 1, 1, 2**50]), sums[0], part)
        if rng.random() < 0.05:
            road, frames = next(noise)
            if road in enemy.sockets:
                enemy.frames(road, *frames)
        assert scene.syncer.failure is None
    scene.goes_on()
    for key in (MemberKey("eve", 666), MemberKey("mallory", 5)):
        scene.run.until(lambda key=key: scene.syncer.roads.of(key).frames_down >= 500, "they were heard")
    for state in scene.syncer.body.states.values():  # tokens that they only claimed may count; values were all zero
        assert all(torch.isfinite(state.theta)), "nothing that is no number is merged"
    scene.honest_only = False
    scene.end()


@pytest.mark.slow
def test_a_flood_of_garbage_on_both_roads(scene: Scene) -> None:
    """As fast as this machine can, from three peers at once: rounds go on meanwhile, and afterwards."""
    over = threading.Event()
    keys = [MemberKey(f"eve-{number}", 7) for number in range(3)]
    enemies = [scene.enemy(key) for key in keys]

    def flood(enemy: Enemy, seed: int) -> None:
        noise = nonsense(random.Random(seed))
        prepared = [next(noise) for _ in range(500)]
        while not over.is_set():
            for road, frames in prepared:
                with suppress(zmq.Again, KeyError):
                    enemy.sockets[road].send_multipart(frames, zmq.NOBLOCK)

    threads = [
        threading.Thread(target=flood, args=(enemy, seed), name=f"flood-{seed}") for seed, enemy in enumerate(enemies)
    ]
    for thread in threads:
        thread.start()
    try:
        scene.goes_on()
        for key in keys:
            scene.until_malformed(key, 1000)
        scene.goes_on()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert len(scene.syncer.roads.strangers) <= 2
    scene.end()
