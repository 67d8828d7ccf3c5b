"""The demo's task with 4 bits both ways is as good as with bf16 both ways: real models, real bodies, no clock.

Learners step in turn; each fragment is cut by all of them every H steps, staggered, and adopted FLIGHT steps later. So
two runs of one seed differ by their codecs alone, and every run of a seed is the same on one machine.
"""

import math
import statistics
from collections.abc import Callable
from typing import Any, cast

import pytest
from torch import Tensor

from zdiloco.core.machine import Merge, Part, Prepare
from zdiloco.core.messages import Body, InitialOffer, LayoutOffer
from zdiloco.node.incoming import IncomingUpdate
from zdiloco.node.learner_body import LearnerBody, layout_for
from zdiloco.node.params import MergeParams
from zdiloco.node.publishing import Published
from zdiloco.node.syncer_body import Payload, SyncerBody
from zdiloco.tensor.binding import Binding
from zdiloco.train.params import TaskParams
from zdiloco.train.tasks import Task
from zdiloco.units import ContributionId, Epoch, MemberKey, Merged, Stamp
from zdiloco.wire.bodies import encode_map

pytestmark = pytest.mark.usefixtures("one_thread")
H, P, FLIGHT = 24, 6, 2
EPOCH = Epoch(1, 1)
BODY = Body(transfer="t", nbytes=1, chunk_bytes=1024, digest=1)
FLAT, SMALL = ("bf16", "none"), ("4bit", "4bit")
"""How contributions and how broadcasts are encoded."""


def view(tensor: Tensor) -> memoryview:
    return memoryview(cast(Any, tensor.numpy()))


class Fleet:
    """Some learners with the demo's task, and their syncer, as bodies that are driven step by step."""

    robust = "none"

    def __init__(self, seed: int, learners: int, codecs: tuple[str, str]) -> None:
        self.codec, delta_codec = codecs
        self.tasks = [Task(TaskParams(seed=seed, num_shards=learners), shard=shard) for shard in range(learners)]
        layout = self.layout = layout_for(self.tasks[0].model, P, "balanced")
        self.bodies = [LearnerBody(Binding(task.model, layout), self.codec) for task in self.tasks]
        self.syncer = SyncerBody(MergeParams(delta_codec=delta_codec, robust=self.robust))
        self.syncer.take_layout(LayoutOffer(digest=layout.digest, body=BODY), memoryview(encode_map(layout.to_obj())))
        self.flying: dict[int, list[Published]] = {}
        for fragment in range(P):
            offer = InitialOffer(fragment=fragment, body=BODY)
            self.syncer.take_initial(offer, view(self.bodies[0].later_values(fragment)))
        self.syncer.restamp([Stamp(EPOCH, 0)] * P)
        for fragment in range(P):
            self.adopt(self.syncer.published(fragment))

    def run(self, steps: int) -> float:
        """Train so many steps each. Returns the validation loss of Theta at the end."""
        for step in range(1, steps + 1):
            for task in self.tasks:
                task.train_step(task.schedule.rate(step / steps, step))
            for published in self.flying.pop(step, []):
                self.adopt(published)
            for fragment in range(P):
                if step % H == (fragment + 1) * H // P % H:
                    self.flying.setdefault(step + FLIGHT, []).append(self.merge(fragment))
        values: dict[str, Tensor] = {}
        for fragment in self.layout.fragments:
            parts = self.syncer.states[fragment.index].theta.split([tensor.numel for tensor in fragment.tensors])
            values |= {t.name: part.view(t.shape) for t, part in zip(fragment.tensors, parts, strict=True)}
        return self.tasks[0].evaluate_values(values)

    def merge(self, fragment: int) -> Published:
        version = self.syncer.states[fragment].stamp.version + 1
        parts, payloads, merged = [], [], []
        for index, body in enumerate(self.bodies):
            payload = Payload(view(body.later_encode(fragment, version, *body.now_snapshot(fragment))), "t")
            assert self.syncer.screen(fragment, self.codec, payload)[0] == ""
            key = MemberKey(f"l{index}", 1)
            parts.append(Part(id=ContributionId(*key, fragment, version), codec=self.codec, weight=1.0))
            payloads.append(payload)
            merged.append(Merged(*key, version, H, H))
        parts, payloads = self.crossed(fragment, parts, payloads)
        stamp = Stamp(EPOCH, version)
        action = Merge(fragment=fragment, stamp=stamp, parts=tuple(parts), merged=tuple(merged))
        return self.syncer.merge(action, payloads)

    def crossed(
        self, fragment: int, parts: list[Part], payloads: list[Payload]
    ) -> tuple[list[Part], list[Payload]]:
        """What of these contributions comes to the syncer: they themselves."""
        return parts, payloads

    def adopt(self, published: Published) -> None:
        fragment, mine = published.fragment, 0 if published.full else published.stamp.version
        prepare = Prepare(
            fragment=fragment, stamp=published.stamp, subtract=mine, restore=(), reset=not mine, serial=1
        )  # fmt: skip
        for body in self.bodies:
            incoming = IncomingUpdate("u", published.codec, view(published.value), published.digest, published.base)
            assert body.later_prepare(prepare, incoming, body.fragments[fragment].reference) == ""
            body.now_adopt(fragment, published.stamp)
            body.later_forget(fragment, (mine,))


def compare(seeds: range, learners: int, steps: int, say: Callable[[str], None]) -> tuple[list[float], list[float]]:
    """Losses of flat and of small runs, by seed."""
    found: dict[tuple[str, str], list[float]] = {FLAT: [], SMALL: []}
    for seed in seeds:
        for codecs, losses in found.items():
            losses.append(Fleet(seed, learners, codecs).run(steps))
        flat, small = found[FLAT][-1], found[SMALL][-1]
        say(f"seed {seed}, {learners} learners, {steps} steps: bf16 {flat:.4f}, 4bit both ways {small:.4f} nats/byte")
    return found[FLAT], found[SMALL]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_run_with_four_bits_both_ways_is_as_good(say: Callable[[str], None]) -> None:
    (flat,), (small,) = compare(range(1), 2, 144, say)
    assert small < 1.02 * flat


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_four_bits_both_ways_are_within_the_noise_of_seeds(say: Callable[[str], None]) -> None:
    flat, small = compare(range(3), 3, 600, say)
    noise = statistics.stdev(flat)
    lost = statistics.fmean(small) - statistics.fmean(flat)
    say(f"bf16 {statistics.fmean(flat):.4f}, 4bit both ways {lost:+.4f}, stdev of seeds {noise:.4f}, of a difference "
        f"of means {noise * math.sqrt(2 / len(flat)):.4f}")  # fmt: skip
    assert lost <= noise
