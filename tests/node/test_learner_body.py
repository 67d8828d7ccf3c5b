"""A learner's values beside a real syncer body: statistics of BatchNorm, and an inner optimizer that starts over."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from zdiloco.core.machine import Merge, Part
from zdiloco.core.messages import Body, InitialOffer, LayoutOffer
from zdiloco.node.learner_body import LearnerBody, forget_inner, layout_for
from zdiloco.node.params import MergeParams
from zdiloco.node.syncer_body import Payload, SyncerBody
from zdiloco.tensor.binding import Binding
from zdiloco.units import ContributionId, Epoch, MemberKey, Merged, Stamp
from zdiloco.wire.bodies import encode_map

EPOCH = Epoch(1, 1)
BODY = Body(transfer="x", nbytes=0, chunk_bytes=1024, digest=0)
BUFFERS = 1
"""The index of the fragment of buffers: there is one fragment of parameters."""


def view(encoded: Tensor) -> memoryview:
    return memoryview(cast(Any, encoded.numpy()))


class Fleet:
    """Learners with a BatchNorm each, all on version 0 of one syncer."""

    def __init__(self, count: int, *, momentum: float = 0.5) -> None:
        self.models = [nn.BatchNorm1d(4) for _ in range(count)]
        layout = layout_for(self.models[0], 1, "balanced")
        self.bodies = [LearnerBody(Binding(model, layout), "4bit") for model in self.models]
        self.syncer = SyncerBody(MergeParams(outer_momentum=momentum, outer_lr=0.7))
        self.syncer.take_layout(LayoutOffer(digest=layout.digest, body=BODY), memoryview(encode_map(layout.to_obj())))
        for index in range(2):
            self.syncer.take_initial(InitialOffer(fragment=index, body=BODY), view(self.bodies[0].later_values(index)))
        self.syncer.restamp([Stamp(EPOCH, 0)] * 2)
        for body in self.bodies:
            body.fragments[BUFFERS].reference = self.theta.clone()

    @property
    def theta(self) -> Tensor:
        """The published statistics: running_mean (4,), then running_var (4,)."""
        return self.syncer.states[BUFFERS].theta

    def own(self, learner: int) -> Tensor:
        return torch.cat((self.models[learner].running_mean, self.models[learner].running_var))

    def train(self, learner: int, mean: float, spread: float) -> None:
        generator = torch.Generator().manual_seed(learner)
        for _ in range(24):
            self.models[learner](mean + spread * torch.randn(64, 4, generator=generator))

    def round(self, version: int, weights: dict[int, float]) -> None:
        """Merge what these learners have made of version 0; they adopt nothing."""
        parts, payloads, record = [], [], []
        for learner, weight in weights.items():
            body, key = self.bodies[learner], MemberKey(f"m{learner}", 1)
            encoded = body.later_encode(BUFFERS, version, *body.now_snapshot(BUFFERS))
            payload = Payload(view(encoded), "c")
            assert self.syncer.screen(BUFFERS, body.codec_of(BUFFERS), payload) == ("", 0.0, 0.0)
            name = ContributionId(*key, BUFFERS, version)
            parts.append(Part(id=name, codec=body.codec_of(BUFFERS), weight=weight))
            payloads.append(payload)
            record.append(Merged(*key, version, 24, 10))
        stamp = Stamp(EPOCH, version)
        self.syncer.merge(Merge(fragment=BUFFERS, stamp=stamp, parts=tuple(parts), merged=tuple(record)), payloads)


def test_statistics_that_come_late_never_add_up():
    """C-43: two learners cut on version 0 and are merged one after the other: a variance must not turn negative."""
    fleet = Fleet(2)
    for learner in range(2):
        fleet.train(learner, mean=5.0, spread=0.3)
        fleet.round(learner + 1, {learner: 1.0})
        assert torch.equal(fleet.theta, fleet.own(learner))
    assert bool((fleet.theta[4:] > 0).all())


def test_statistics_of_one_round_are_averaged_by_weight():
    """C-43: the plain weighted mean of the values, in fp32, whatever outer rate, momentum and codec are."""
    fleet = Fleet(3)
    for learner, mean in enumerate((1.0, 5.0, -2.0)):
        fleet.train(learner, mean=mean, spread=1.0 + learner)
    fleet.round(1, {0: 1.0, 1: 3.0, 2: 4.0})
    wanted = (fleet.own(0) + 3 * fleet.own(1) + 4 * fleet.own(2)) / 8
    assert torch.allclose(fleet.theta, wanted, rtol=1e-6)
    assert fleet.syncer.states[BUFFERS].buf is None


def test_statistics_of_any_size_are_taken():
    """C-43: features of a million times the initial scale are no fault of the learner."""
    fleet = Fleet(1)
    fleet.train(0, mean=1e6, spread=1e6)
    fleet.round(1, {0: 1.0})
    assert torch.equal(fleet.theta, fleet.own(0))


def test_counters_and_local_statistics_are_left_alone():
    """C-43: `num_batches_tracked` is a whole number of each learner's own."""
    fleet = Fleet(1)
    assert [spec.name for spec in fleet.bodies[0].layout.fragments[BUFFERS].tensors] == ["running_mean", "running_var"]
    fleet.train(0, mean=0.0, spread=1.0)
    fleet.bodies[0].now_drop(BUFFERS)
    assert torch.equal(fleet.own(0), fleet.theta)
    assert int(fleet.models[0].num_batches_tracked) == 24


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad", "RMSprop", "NAdam", "Rprop"])
def test_an_inner_optimizer_that_starts_over_is_as_new_in_every_group(kind):
    def build(model: nn.Module) -> torch.optim.Optimizer:
        groups = [{"params": [model.weight], "lr": 0.05}, {"params": [model.bias], "lr": 0.5}]
        options = {"SGD": {"momentum": 0.9}, "Adagrad": {"initial_accumulator_value": 0.1}}.get(kind, {})
        return getattr(torch.optim, kind)(groups, **options)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()

    torch.manual_seed(0)
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = build(model)
    for _ in range(3):
        step(model, optimizer)
    forget_inner(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.5]
    other.load_state_dict(model.state_dict())
    fresh = build(other)
    for _ in range(2):
        step(model, optimizer)
        step(other, fresh)
        assert all(torch.equal(x, y) for x, y in zip(model.parameters(), other.parameters(), strict=True))
