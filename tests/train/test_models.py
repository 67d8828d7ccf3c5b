"""The model has the size it says, looks only backwards, and starts from its seed alone."""

import math

import pytest
import torch

from zdiloco.errors import ConfigError
from zdiloco.train.models import ByteGPT
from zdiloco.train.params import PRESETS, GPTConfig, preset

SMALL = GPTConfig(width=16, heads=2, layers=2)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("tiny", 0.2e6, 0.4e6), ("small", 2.5e6, 3.5e6), ("base", 24e6, 27e6), ("medium", 80e6, 90e6)],
)
def test_preset_sizes(name: str, least: float, most: float) -> None:
    with torch.device("meta"):  # shapes without memory; values do not exist there
        model = ByteGPT(PRESETS[name])
    assert least <= sum(p.numel() for p in model.parameters()) <= most


def test_unknown_preset_names_the_known() -> None:
    with pytest.raises(ConfigError, match="preset is 'huge', but known are tiny, small, base, medium"):
        preset("huge")


@pytest.mark.parametrize(
    ("shape", "text"),
    [({"width": 18, "heads": 4, "layers": 1}, "multiple of 8"), ({"width": 8, "heads": 2, "layers": 0}, "layers is 0")],
)
def test_shapes_that_cannot_work(shape: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        GPTConfig(**shape)


def test_logits_and_loss_shapes() -> None:
    model, tokens = ByteGPT(SMALL), torch.randint(256, (3, 11))
    assert model(tokens).shape == (3, 11, 256)
    loss = model.loss(tokens)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(math.log(256), abs=0.1)  # knows nothing yet


def test_every_parameter_gets_a_gradient_and_there_are_no_buffers() -> None:
    model = ByteGPT(SMALL)
    model.loss(torch.randint(256, (2, 9))).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert not list(model.buffers())
    assert "lm_head.weight" in dict(model.named_parameters())


@torch.no_grad()
def test_the_future_changes_nothing_and_the_past_does() -> None:
    model, tokens = ByteGPT(SMALL, seed=3), torch.randint(256, (1, 12))
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[0, :6], after[0, :6], atol=1e-6)
    assert all(not torch.allclose(before[0, t], after[0, t], atol=1e-6) for t in range(6, 12))


@torch.no_grad()
def test_order_matters() -> None:
    model = ByteGPT(SMALL, seed=3)
    a, b = model(torch.tensor([[1, 2, 3]])), model(torch.tensor([[2, 1, 3]]))
    assert not torch.allclose(a[0, 2], b[0, 2], atol=1e-6)


def test_values_follow_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    first, state = ByteGPT(SMALL, seed=9), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())  # the caller's random state is untouched
    torch.manual_seed(2)
    second, other = ByteGPT(SMALL, seed=9), ByteGPT(SMALL, seed=10)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embed.weight, other.embed.weight)
