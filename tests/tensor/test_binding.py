"""A binding copies fragments out of live tensors and back in, in place, whatever their shape, stride and dtype."""

import copy

import pytest
import torch
from torch import nn

from zdiloco.errors import ConfigError, MachineError
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.layout import layout_of


class Odd(nn.Module):
    """A transposed weight, a scalar, an empty tensor, a buffer and a tie."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.turned = nn.Parameter(torch.randn(3, 5, dtype=dtype).t())
        self.scalar = nn.Parameter(torch.randn((), dtype=dtype))
        self.empty = nn.Parameter(torch.randn(0, 4, dtype=dtype))
        self.norm = nn.BatchNorm1d(4, dtype=dtype)
        self.one = nn.Linear(4, 4, dtype=dtype)
        self.two = nn.Linear(4, 4, dtype=dtype)
        self.two.weight = self.one.weight


def expected(model: nn.Module, layout, index: int) -> torch.Tensor:
    state = model.state_dict()
    return torch.cat([state[tensor.name].reshape(-1).float() for tensor in layout.fragments[index].tensors])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_gather_add_and_load_reach_every_tensor_once(dtype):
    model = Odd(dtype)
    layout = layout_of(model, num_fragments=3)
    binding = Binding(model, layout)
    for index, fragment in enumerate(layout.fragments):
        before = binding.gather(index)
        assert before.dtype is torch.float32
        assert torch.equal(before, expected(model, layout, index))
        delta = torch.randn(fragment.numel)
        binding.add_(index, delta)
        coarse = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
        assert torch.allclose(binding.gather(index), before + delta, rtol=coarse, atol=1e-6)
        binding.load_(index, before)
        assert torch.equal(binding.gather(index), before)


def test_tied_weights_are_added_to_once():
    model = Odd()
    layout = layout_of(model, num_fragments=1)
    before = model.two.weight.detach().clone()
    Binding(model, layout).add_(0, torch.ones(layout.numels[0]))
    assert torch.equal(model.two.weight, before + 1)


def test_everything_happens_in_place_without_a_graph():
    model = Odd()
    binding = Binding(model, layout_of(model, num_fragments=1))
    address, stride = model.turned.data_ptr(), model.turned.stride()
    binding.add_(0, binding.gather(0))
    binding.load_(0, binding.gather(0))
    assert (model.turned.data_ptr(), model.turned.stride()) == (address, stride)
    assert model.turned.is_leaf
    assert not binding.gather(0).requires_grad


def test_gather_fills_the_given_vector():
    model = Odd()
    binding = Binding(model, layout_of(model, num_fragments=2))
    out = torch.empty(binding.layout.numels[1])
    assert binding.gather(1, out) is out
    assert torch.equal(out, binding.gather(1))


def test_a_tensor_that_was_replaced_is_found_again():
    model = nn.BatchNorm1d(2)
    binding = Binding(model, layout_of(model, num_fragments=1))
    model.running_mean = torch.tensor([5.0, 6.0])  # as model.to(device) does with buffers
    assert binding.gather(1).tolist() == [5.0, 6.0, 1.0, 1.0]


def test_gradients_flow_after_an_adoption():
    model = nn.Linear(2, 1)
    binding = Binding(model, layout_of(model, num_fragments=1))
    binding.add_(0, torch.ones(3))
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    "bad", [torch.zeros(3), torch.zeros(3, 2), torch.zeros(6, dtype=torch.float64), torch.zeros(6, device="meta")]
)
def test_a_vector_of_another_form_is_our_mistake(bad):
    model = nn.Linear(2, 2)
    binding = Binding(model, layout_of(model, num_fragments=1))
    with pytest.raises(MachineError, match="fragment 0 wants"):
        binding.add_(0, bad)


def _tied(model: nn.Module) -> nn.Module:
    model[1].weight = model[0].weight
    return model


def test_a_model_that_differs_is_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layout = layout_of(model, num_fragments=2)
    for other, word in (
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), r"'1\.bias' float32 \[3\]"),
        (nn.Sequential(nn.Linear(2, 2)), r"layout has tensor '1\.bias'"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(1, 1)), r"model has tensor '2\.bias'"),
        (copy.deepcopy(model).bfloat16(), "bfloat16"),
        (_tied(copy.deepcopy(model)), r"1\.weight"),
    ):
        with pytest.raises(ConfigError, match=word):
            Binding(other, layout)


def test_a_tie_that_only_one_side_knows_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layout = layout_of(_tied(model), num_fragments=2)
    model.register_parameter("third", model[0].weight)
    with pytest.raises(ConfigError, match=r"1\.weight are tied in the layout only"):
        Binding(model, layout)
