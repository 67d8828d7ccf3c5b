"""Error feedback falls out of the protocol: what the codec rounds off is sent later, so its error does not grow.

One learner and one syncer, int8 or 4bit, outer rate 1, no momentum, every message delivered at once: Theta should be
the initial values plus all work that was merged. The twin is that sum, in float64 and never encoded.
"""

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from zdiloco.core.machine import Merge, Part, Prepare
from zdiloco.core.messages import Body, Contribution, InitialOffer, LayoutOffer
from zdiloco.core.progress import Fate, Held, Intake, LearnerProgress
from zdiloco.node.incoming import IncomingUpdate
from zdiloco.node.learner_body import LearnerBody, layout_for
from zdiloco.node.params import MergeParams
from zdiloco.node.publishing import Published
from zdiloco.node.syncer_body import Payload, SyncerBody
from zdiloco.tensor.binding import Binding
from zdiloco.units import NO_STAMP, ContributionId, Epoch, MemberKey, Stamp
from zdiloco.wire.bodies import encode_map
from zdiloco.wire.frames import Buffer

ROUNDS = 240
EARLY = ROUNDS // 6
EPOCH = Epoch(1, 1)
KEY = MemberKey("a", 1)
TOKENS = 10


def view(encoded: Tensor) -> memoryview:
    return memoryview(cast(Buffer, encoded.numpy()))


class Pair:
    """A learner and its syncer: the bodies that the nodes use, and the two sides of the progress protocol."""

    def __init__(self, adopt: str, publish_codec: str, codec: str, delta_codec: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(64, 24, bias=False)
        self.twin = self.values()
        self._adopts, self._codec = adopt, codec
        layout = layout_for(self.model, 1, "balanced")
        self._learner = LearnerBody(Binding(self.model, layout), codec)
        self._syncer = SyncerBody(MergeParams(publish_codec=publish_codec, delta_codec=delta_codec))
        self._progress, self._intake = LearnerProgress(seen=NO_STAMP), Intake()
        body = Body(transfer="x", nbytes=0, chunk_bytes=1024, digest=0)
        offer = LayoutOffer(digest=layout.digest, body=body)
        self._syncer.take_layout(offer, memoryview(encode_map(layout.to_obj())))
        self._syncer.take_initial(InitialOffer(fragment=0, body=body), view(self._learner.later_values(0)))
        self._syncer.restamp([Stamp(EPOCH, 0)])
        self._prepare(self._syncer.published(0), 0)
        self._adopt()

    def values(self) -> Tensor:
        """The learner's values now, float64."""
        return self.model.weight.detach().double().flatten()

    @property
    def theta(self) -> Tensor:
        """The syncer's values, float64."""
        return self._syncer.states[0].theta.double()

    def train(self, delta: Tensor) -> None:
        """One inner step: the values move by `delta`, (n,) fp32."""
        with torch.no_grad():
            self.model.weight.add_(delta.view_as(self.model.weight))
        self._progress.step(TOKENS)

    def round(self, in_flight: list[Tensor]) -> None:
        """One round; the steps of `in_flight` are made between the snapshot and the adoption."""
        cut = self._progress.cut()
        encoded = self._learner.later_encode(0, cut.seq, *self._learner.now_snapshot(0))
        for delta in in_flight:
            self.train(delta)
        seen = self._progress.seen
        message = Contribution(
            fragment=0, seq=cut.seq, after=self._progress.after, stamp=seen, steps=cut.steps, tokens=cut.tokens,
            cut_step=1, version=seen.version + 1, codec=self._codec,
            body=Body(transfer="c", nbytes=encoded.numel(), chunk_bytes=1024, digest=0),
        )  # fmt: skip
        assert self._intake.judge(KEY, message, EPOCH) is None
        name = ContributionId(*KEY, 0, cut.seq)
        self._intake.hold(Held(id=name, message=message, arrived_at=0.0, norm=1.0))
        _, record = self._intake.close()
        parts = (Part(id=name, codec=self._codec, weight=1.0),)
        merge = Merge(fragment=0, stamp=Stamp(EPOCH, seen.version + 1), parts=parts, merged=record)
        self._prepare(self._syncer.merge(merge, [Payload(view(encoded), "c")]), cut.seq)
        self._adopt()

    def _prepare(self, published: Published, mine: int) -> None:
        self._adoption = self._progress.judge(published.stamp, mine, 0)
        assert self._adoption.fate is (Fate.MERGED if mine else Fate.CARRIED)
        prepare = Prepare(
            fragment=0, stamp=published.stamp, subtract=self._adoption.subtract, restore=(), serial=1, keep=1.0,
            reset=not mine or self._adopts == "overwrite",
        )  # fmt: skip
        incoming = IncomingUpdate("u", published.codec, view(published.value), published.digest, published.base)
        wrong = self._learner.later_prepare(prepare, incoming, self._learner.fragments[0].reference)
        assert not wrong, wrong

    def _adopt(self) -> None:
        self._learner.now_adopt(0, self._adoption.stamp)
        self._learner.later_forget(0, self._progress.adopt(self._adoption))
        self._learner.later_forget(0, self._progress.on_stable(self._adoption.stamp))


class Work:
    """Inner steps as they come in training: a steady direction of very unequal size per value, and noise."""

    def __init__(self, numel: int) -> None:
        self._generator = torch.Generator().manual_seed(1)
        size = torch.exp(2 * torch.randn(numel, generator=self._generator))
        self._steady = 1e-3 * size * torch.randn(numel, generator=self._generator).sign()

    def next(self) -> Tensor:
        return self._steady * (1 + 0.5 * torch.randn(self._steady.numel(), generator=self._generator))


def errors(adopt: str, publish_codec: str, in_flight: int, codec: str, delta_codec: str = "none") -> list[float]:
    """Distance of Theta from the twin after every round, in Euclidean norm."""
    pair = Pair(adopt, publish_codec, codec, delta_codec)
    work = Work(pair.twin.numel())
    found = []
    flying: list[Tensor] = []
    for _ in range(ROUNDS):
        fresh = work.next()
        pair.train(fresh)
        for delta in [*flying, fresh]:  # what is in the snapshot: the flight of the round before, and this step
            pair.twin += delta.double()
        flying = [work.next() for _ in range(in_flight)]
        pair.round(flying)
        found.append(float((pair.theta - pair.twin).norm()))
    rest = sum((delta.double() for delta in flying), torch.zeros_like(pair.twin))
    mine = float((pair.values() - pair.twin - rest).norm())
    rounding = float(pair.twin.norm()) * 2**-8 if publish_codec == "bf16" else 0.0
    if adopt == "carry":
        assert mine < max(found) + rounding, "the learner's own values have drifted"
    return found


@pytest.mark.parametrize("codec", ["int8", "4bit"])
@pytest.mark.parametrize("publish_codec", ["fp32", "bf16"])
@pytest.mark.parametrize("in_flight", [0, 3])
def test_what_is_merged_tends_to_what_was_trained(publish_codec: str, in_flight: int, codec: str) -> None:
    found = errors("carry", publish_codec, in_flight, codec)
    assert found[0] > 0
    assert max(found[EARLY:]) < 1.2 * max(found[:EARLY])


@pytest.mark.parametrize("codec", ["int8", "4bit"])
def test_without_the_residual_it_drifts(codec: str) -> None:
    carried, overwritten = errors("carry", "fp32", 0, codec), errors("overwrite", "fp32", 0, codec)
    assert overwritten[0] == carried[0]
    assert overwritten[-1] > 3 * overwritten[EARLY - 1]
    assert overwritten[-1] > 10 * max(carried)
