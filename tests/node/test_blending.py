"""Two whole rounds of a model with one parameter, worked out by hand: signs, blending, what is carried over."""

import pytest
import torch
from torch import nn

from zdiloco.core.machine import Prepare
from zdiloco.node.incoming import IncomingUpdate
from zdiloco.node.learner_body import LearnerBody, layout_for
from zdiloco.node.publishing import digest_of
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.merge import Weighted, merge
from zdiloco.tensor.outer import OuterParams, outer_step_
from zdiloco.units import Epoch, Stamp

LR, MOMENTUM = 0.7, 0.5
FP32 = get_codec("fp32")


class Learner:
    """One parameter, fp32 on the wire. `value` is the local one, theta."""

    def __init__(self, start: float) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        self.layout = layout_for(self.model, 1, "balanced")
        self.body = LearnerBody(Binding(self.model, self.layout), "fp32")
        self.train_to(start)
        self.body.fragments[0].reference = torch.tensor([start])

    def train_to(self, value: float) -> None:
        with torch.no_grad():
            self.model.weight.fill_(value)

    @property
    def value(self) -> float:
        return self.model.weight.item()

    def contribute(self, seq: int) -> torch.Tensor:
        copied, reference = self.body.now_snapshot(0)
        return self.body.later_encode(0, seq, copied, reference)

    def adopt(self, version: int, theta: torch.Tensor, *, subtract: int, keep: float) -> None:
        stamp = Stamp(Epoch(1, 1), version)
        value = FP32.encode(theta)
        incoming = IncomingUpdate("t", "fp32", memoryview(value.numpy()), digest_of(value))
        prepare = Prepare(
            fragment=0, stamp=stamp, subtract=subtract, restore=(), reset=False, serial=version, keep=keep
        )
        self.body.fragments[0].incoming[stamp] = incoming
        self.body.later_prepare(prepare, incoming, self.body.fragments[0].reference)
        self.body.now_adopt(0, stamp)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_two_rounds_of_one_parameter_are_what_they_are_by_hand(alpha: float) -> None:
    """C-37: the sign of the outer gradient, momentum, and theta' = Theta' + alpha (u - merged), to 1e-6.

    From 1.0 learner A goes to 0.8 and B to 0.4; after their cuts A goes on to 0.7, B stays.
    """
    a, b = Learner(1.0), Learner(1.0)
    theta, buf = torch.tensor([1.0]), None
    a.train_to(0.8)
    b.train_to(0.4)
    sent = [a.contribute(1), b.contribute(1)]
    assert [FP32.decode(each, 1).item() for each in sent] == pytest.approx([0.2, 0.6], abs=1e-6)  # R - theta
    a.train_to(0.7)
    theta, buf = outer(a, sent, theta, buf)
    assert theta.item() == pytest.approx(1.0 - LR * (0.4 + MOMENTUM * 0.4), abs=1e-6)  # mean 0.4; buf = 0.4
    first = theta.item()
    for each in (a, b):
        each.adopt(1, theta, subtract=1, keep=alpha)
    assert a.value == pytest.approx(first + alpha * -0.1, abs=1e-6)  # what it did after its cut
    assert b.value == pytest.approx(first, abs=1e-6)

    before = a.value
    a.train_to(before - 0.2)
    sent = [a.contribute(2), b.contribute(2)]
    gradient = (first - (before - 0.2)) / 2  # B has done nothing
    theta, buf = outer(a, sent, theta, buf)
    wanted = first - LR * (gradient + MOMENTUM * (MOMENTUM * 0.4 + gradient))
    assert theta.item() == pytest.approx(wanted, abs=1e-6)
    for each in (a, b):
        each.adopt(2, theta, subtract=2, keep=alpha)
        assert each.value == pytest.approx(wanted, abs=1e-6)  # everything is merged: nobody holds a rest


def outer(
    learner: Learner, sent: list[torch.Tensor], theta: torch.Tensor, buf: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Merge with equal weights, and take the outer step."""
    inputs = [Weighted(data=each, codec=FP32, weight=1.0) for each in sent]
    gradient = merge(learner.layout.fragments[0], inputs, "avg")
    stepped = theta.clone()
    return stepped, outer_step_(stepped, buf, gradient, OuterParams(lr=LR, momentum=MOMENTUM))
