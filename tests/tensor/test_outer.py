"""The outer step against hand-made numbers and an independent float64 reference."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from zdiloco.errors import ConfigError, MachineError
from zdiloco.tensor.outer import OuterParams, outer_step_


def test_two_steps_by_hand():
    params = OuterParams(lr=0.5, momentum=0.5)
    theta, gradient = torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0])
    buf = outer_step_(theta, None, gradient, params)
    assert buf.tolist() == [1.0, -2.0]
    assert theta.tolist() == [0.25, 3.5]  # 1 - 0.5 (1 + 0.5 * 1)
    kept = outer_step_(theta, buf, torch.zeros(2), params)
    assert kept is buf
    assert buf.tolist() == [0.5, -1.0]
    assert theta.tolist() == [0.125, 3.75]


def test_lr_1_without_momentum_is_theta_minus_the_gradient_and_keeps_no_buffer():
    theta = torch.tensor([3.0, -1.0])
    assert outer_step_(theta, None, torch.tensor([1.0, 2.0]), OuterParams()) is None
    assert theta.tolist() == [2.0, -3.0]
    assert outer_step_(theta, torch.ones(2), torch.zeros(2), OuterParams()) is None


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.0), (0.7, 0.9), (1.3, 0.3)])
def test_twenty_steps_stay_near_float64_and_near_torch(lr, momentum):
    rng = np.random.default_rng(1)
    start = rng.standard_normal(700_001).astype(np.float32)
    theta, buf, exact = torch.from_numpy(start.copy()), None, start.astype(np.float64)
    memory = np.zeros_like(exact)
    other = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.SGD([other], lr=lr, momentum=momentum, nesterov=momentum > 0)
    for _ in range(20):
        gradient = 0.01 * rng.standard_normal(start.size).astype(np.float32)
        memory = momentum * memory + gradient
        exact -= lr * (gradient + momentum * memory)
        buf = outer_step_(theta, buf, torch.from_numpy(gradient), OuterParams(lr=lr, momentum=momentum))
        other.grad = torch.from_numpy(gradient)
        optimizer.step()
    allowed = 1e-6 * np.abs(exact).max()
    assert np.abs(theta.numpy() - exact).max() <= allowed
    assert np.abs(theta.numpy() - other.detach().numpy()).max() <= allowed


@pytest.mark.parametrize(
    "bad",
    [{"lr": 0.0}, {"lr": -1.0}, {"lr": 11.0}, {"lr": math.nan}, {"lr": True}, {"lr": "1"}, {"momentum": 1.0},
     {"momentum": -0.1}, {"momentum": math.inf}],
)  # fmt: skip
def test_settings_out_of_bounds_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        OuterParams(**bad)


def test_every_setting_says_what_it_is():
    assert all({"doc", "unit"} <= field.metadata.keys() for field in dataclasses.fields(OuterParams))


def test_unlike_vectors_are_our_mistake():
    with pytest.raises(MachineError, match="outer_gradient"):
        outer_step_(torch.zeros(3), None, torch.zeros(2), OuterParams())
    with pytest.raises(MachineError, match="buf"):
        outer_step_(torch.zeros(3), torch.zeros(3, dtype=torch.float64), torch.zeros(3), OuterParams(momentum=0.5))
