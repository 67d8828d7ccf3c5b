"""A parameter that is frozen, set free or taken away after the start is named at one of the next looks."""

import pytest
import torch
from torch import nn

from zdiloco.errors import ConfigError
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.layout import layout_of
from zdiloco.tensor.trainable import PER_LOOK, Trainable


def model_of(layers: int) -> nn.Sequential:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    model[0].bias.requires_grad_(False)
    return model


def looks(trainable: Trainable, count: int) -> None:
    for _ in range(count):
        trainable.look()


def test_nothing_is_said_while_nothing_changes():
    model = model_of(100)
    trainable = Trainable(model)
    looks(trainable, 20)
    with torch.no_grad():
        model[3].weight = nn.Parameter(torch.ones(2, 2))  # another tensor of the same kind: fine
    looks(trainable, 20)


@pytest.mark.parametrize("layers", [1, PER_LOOK // 2, 200])
def test_a_parameter_that_is_frozen_is_named_within_one_turn(layers):
    model = model_of(layers)
    trainable = Trainable(model)
    trainable.look()
    model[layers - 1].weight.requires_grad_(False)
    turn = -(-2 * layers // PER_LOOK)
    with pytest.raises(ConfigError, match=rf"'{layers - 1}\.weight' has been frozen .*before that.*new run"):
        looks(trainable, turn)
    with pytest.raises(ConfigError, match="has been frozen"):  # and again: nobody gets past it
        trainable.look()
    model[layers - 1].weight.requires_grad_(True)
    looks(trainable, 2 * turn)


def test_a_parameter_that_is_set_free_is_named():
    model = model_of(2)
    trainable = Trainable(model)
    model.requires_grad_(True)
    with pytest.raises(ConfigError, match=r"'0\.bias' was frozen and is trainable now"):
        trainable.look()


def test_a_parameter_that_is_gone_is_named():
    model = model_of(2)
    trainable = Trainable(model)
    model[1].bias = None
    with pytest.raises(ConfigError, match=r"'1\.bias' has been taken out"):
        trainable.look()


def test_tied_and_shared_parameters_are_looked_at_once():
    model = model_of(2)
    model[1].weight = model[0].weight
    shared = nn.ModuleDict({"x": model, "y": model})
    trainable = Trainable(shared)
    trainable.look()
    model[0].weight.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"'x\.0\.weight' has been frozen"):
        trainable.look()


def test_a_binding_watches_its_model():
    model = model_of(2)
    binding = Binding(model, layout_of(model, num_fragments=1))
    model[1].bias.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"'1\.bias'"):
        binding.trainable.look()


def test_a_model_without_parameters_can_be_looked_at():
    Trainable(nn.ReLU()).look()
