"""Which tensors travel, of which kind, and which names are one and the same."""

import pytest
import torch
from torch import nn

from zdiloco.errors import ConfigError
from zdiloco.tensor.inventory import inventory


def kinds(model: nn.Module) -> dict[str, str]:
    return {spec.name: str(spec.kind) for spec in inventory(model).specs}


@pytest.mark.parametrize("name", ["head", "lm_head", "wte", "wpe", "embed", "embed_tokens", "embedding", "Head"])
def test_embeddings_and_heads_are_known_by_name(name):
    model = nn.Module()
    model.add_module(name, nn.Linear(2, 3))
    assert set(kinds(model).values()) == {"embedding"}
    alone = nn.Module()
    alone.register_parameter(name, nn.Parameter(torch.zeros(3, 2)))
    assert set(kinds(alone).values()) == {"embedding"}


@pytest.mark.parametrize("name", ["heads", "num_head", "ahead", "tembed"])
def test_names_that_only_look_alike_are_not_embeddings(name):
    model = nn.Module()
    model.add_module(name, nn.Linear(2, 3))
    assert kinds(model) == {f"{name}.weight": "matrix", f"{name}.bias": "vector"}


def test_a_container_called_head_does_not_make_its_inside_an_embedding():
    model = nn.Module()
    model.head = nn.Sequential(nn.Linear(2, 3))
    assert kinds(model)["head.0.weight"] == "matrix"


def test_embeddings_are_known_by_type():
    model = nn.ModuleDict({"a": nn.Embedding(3, 2), "b": nn.EmbeddingBag(3, 2)})
    assert set(kinds(model).values()) == {"embedding"}


def test_weights_that_share_memory_are_tied_even_as_two_parameters():
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = nn.Parameter(model["a"].weight.detach())
    found = inventory(model)
    assert found.ties == (("a.weight", "b.weight"),)
    assert [spec.name for spec in found.specs] == ["a.weight"]


def test_one_module_at_two_places_is_tied_in_all_its_tensors():
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"x": shared, "y": shared})
    assert inventory(model).ties == (("x.bias", "y.bias"), ("x.weight", "y.weight"))


def test_partly_shared_memory_is_refused():
    whole = torch.zeros(4, 3)
    model = nn.ParameterDict({"a": nn.Parameter(whole), "b": nn.Parameter(whole[1:])})
    with pytest.raises(ConfigError, match="'a' and 'b' share part of their memory"):
        inventory(model)
    with pytest.raises(ConfigError, match="overlaps itself"):
        inventory(nn.ParameterDict({"a": nn.Parameter(torch.zeros(3).expand(4, 3))}))


def test_frozen_integer_and_unsaved_tensors_stay_local():
    model = nn.BatchNorm1d(3)
    model.bias.requires_grad_(False)
    model.register_buffer("scratch", torch.zeros(2), persistent=False)
    assert kinds(model) == {"weight": "vector", "running_mean": "buffer", "running_var": "buffer"}


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (nn.ParameterDict({"a": nn.Parameter(torch.zeros(2, dtype=torch.complex64))}), "complex64"),
        (nn.Linear(2, 2, device="meta"), "dense tensors with data"),
        (nn.LazyLinear(3), "no shape yet"),
    ],
)
def test_tensors_that_cannot_travel_are_refused(model, word):
    with pytest.raises(ConfigError, match=word):
        inventory(model)


def test_an_owner_follows_a_tensor_that_was_replaced():
    model = nn.BatchNorm1d(3)
    owner = inventory(model).owners["running_mean"]
    model.running_mean = torch.full((3,), 7.0)
    assert owner.tensor().tolist() == [7.0, 7.0, 7.0]
