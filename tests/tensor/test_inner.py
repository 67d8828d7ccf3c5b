"""Inner state as bytes and back: of any of torch's optimizers, exact in fp32, and nothing that cannot be."""

import math
from functools import partial
from typing import Any

import pytest
import torch

from tests.tensor.inner_samples import Trained
from zdiloco.errors import MalformedFrame
from zdiloco.tensor.inner import InnerValues

OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, ("exp_avg", "exp_avg_sq"), ("step",)),
    "fused": (partial(torch.optim.AdamW, fused=True), ("exp_avg", "exp_avg_sq"), ("step",)),
    "amsgrad": (partial(torch.optim.Adam, amsgrad=True), ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), ("step",)),
    "nadam": (torch.optim.NAdam, ("exp_avg", "exp_avg_sq"), ("mu_product", "step")),
    "adamax": (torch.optim.Adamax, ("exp_avg", "exp_inf"), ("step",)),
    "adagrad": (torch.optim.Adagrad, ("sum",), ("step",)),
    "adadelta": (torch.optim.Adadelta, ("acc_delta", "square_avg"), ("step",)),
    "rmsprop": (partial(torch.optim.RMSprop, momentum=0.9), ("momentum_buffer", "square_avg"), ("step",)),
    "sgd": (partial(torch.optim.SGD, momentum=0.9), ("momentum_buffer",), ()),
}


def payload(trained: Trained, codec: str = "fp32", fragment: int = 0) -> memoryview:
    copied = trained.inner.now_copy(fragment)
    assert copied is not None
    return memoryview(trained.inner.later_encode(copied, codec).numpy())


def state_of(trained: Trained) -> list[dict[str, Any]]:
    return [trained.optimizer.state[parameter] for parameter in trained.model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_in_fp32_a_lent_state_arrives_exactly_and_trains_on_like_the_lender_s(name: str) -> None:
    optimizer, moments, scalars = OPTIMIZERS[name]
    lender, borrower = Trained(optimizer, steps=5), Trained(optimizer, steps=1, seed=1)
    assert lender.inner.memory == borrower.inner.memory
    assert (lender.inner.memory.moments, lender.inner.memory.scalars) == (moments, scalars)
    borrower.inner.now_load(borrower.inner.later_decode(0, "fp32", payload(lender)))
    for mine, theirs in zip(state_of(borrower), state_of(lender), strict=True):
        for key in (*moments, *scalars):
            assert torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(theirs[key])), key
            assert type(mine[key]) is type(theirs[key])
    with torch.no_grad():
        for to, of in zip(borrower.model.parameters(), lender.model.parameters(), strict=True):
            to.copy_(of)
    borrower.generator = torch.Generator().manual_seed(9)
    lender.generator = torch.Generator().manual_seed(9)
    borrower.step()
    lender.step()
    for to, of in zip(borrower.model.parameters(), lender.model.parameters(), strict=True):
        assert torch.equal(to, of)


def test_bf16_halves_the_bytes_and_rounds_each_value_once() -> None:
    lender, borrower = Trained(steps=5), Trained(seed=1)
    values = borrower.inner.later_decode(0, "bf16", payload(lender, "bf16"))
    exact = lender.inner.now_copy(0)
    assert exact is not None
    assert torch.equal(values.scalars, exact.scalars)
    for rounded, moment in zip(values.moments, exact.moments, strict=True):
        assert torch.equal(rounded, moment.bfloat16().float())
    steps = 8 * 3
    assert lender.inner.nbytes(0, "bf16") - steps == (lender.inner.nbytes(0, "fp32") - steps) / 2


def test_each_fragment_is_its_own() -> None:
    lender, borrower = Trained(fragments=2, steps=5), Trained(fragments=2, steps=1, seed=1)
    assert lender.inner.now_fragments() == (0, 1)
    before = [each["exp_avg"].clone() for each in state_of(borrower)]
    borrower.inner.now_load(borrower.inner.later_decode(1, "fp32", payload(lender, fragment=1)))
    moved = [not torch.equal(now["exp_avg"], old) for now, old in zip(state_of(borrower), before, strict=True)]
    assert 0 < sum(moved) < 3


@pytest.mark.parametrize(("optimizer", "options"), [
    (torch.optim.SGD, {}), (torch.optim.Adafactor, {}), (torch.optim.Rprop, {"steps": 0}),
])  # fmt: skip
def test_what_remembers_nothing_or_not_so_is_nobody_s(optimizer: Any, options: dict[str, Any]) -> None:
    trained = Trained(optimizer, **options)
    assert trained.inner.now_look() is None
    assert trained.inner.now_copy(0) is None


def test_what_is_made_before_the_first_step_is_not_remembered() -> None:
    for optimizer, *_ in OPTIMIZERS.values():
        assert not Trained(optimizer, steps=0).inner.now_remembers()
        assert Trained(optimizer, steps=1).inner.now_remembers()


def test_kinds_differ_where_class_or_names_do() -> None:
    kinds = {Trained(optimizer).inner.memory.kind for optimizer, *_ in OPTIMIZERS.values()}
    assert len(kinds) == len(OPTIMIZERS) - 1, "fused or not, it is the same"
    assert all(len(kind) <= 64 for kind in kinds)


def test_a_tensor_without_state_has_its_fragment_not_lent() -> None:
    trained = Trained()
    del trained.optimizer.state[trained.model["vector"]]
    assert trained.inner.now_fragments() == ()
    assert trained.inner.now_copy(0) is None


def test_an_optimizer_that_has_begun_anew_is_left_alone_where_it_knows_nothing() -> None:
    lender, borrower = Trained(steps=5), Trained(seed=1)
    values = borrower.inner.later_decode(0, "fp32", payload(lender))
    borrower.optimizer.state.clear()
    borrower.inner.now_load(values)
    assert not any(borrower.optimizer.state.values())


def changed(trained: Trained, change: Any) -> memoryview:
    """The lender's bytes after a change of its values."""
    values = trained.inner.now_copy(0)
    assert values is not None
    change(values)
    return memoryview(trained.inner.later_encode(values, "fp32").numpy())


def _set(where: str, at: int, value: float) -> Any:
    def change(values: InnerValues) -> None:
        target = values.scalars.view(-1) if where == "step" else values.moments[("exp_avg", "exp_avg_sq").index(where)]
        target[at] = value

    return change


@pytest.mark.parametrize(("where", "value", "reason"), [
    ("exp_avg", math.nan, "NaN or infinity in exp_avg"), ("exp_avg", math.inf, "NaN or infinity in exp_avg"),
    ("exp_avg_sq", -1e-30, "negative values in exp_avg_sq"), ("exp_avg_sq", math.inf, "NaN or infinity in exp_avg_sq"),
    ("exp_avg", 1e6, "first moments that its second moments cannot have"),
    ("step", 0.0, "step outside"), ("step", math.nan, "step outside"), ("step", 1e12, "step outside"),
    ("step", -1.0, "step outside"),
])  # fmt: skip
def test_what_cannot_be_is_refused_by_name(where: str, value: float, reason: str) -> None:
    data = changed(Trained(), _set(where, 1, value))
    with pytest.raises(MalformedFrame, match=f"inner state of fragment 0 holds {reason}"):
        Trained(seed=1).inner.later_decode(0, "fp32", data)


@pytest.mark.parametrize("codec", ["int8", "4bit", "zip", ""])
def test_another_codec_is_refused(codec: str) -> None:
    trained = Trained()
    with pytest.raises(MalformedFrame, match="no inner state"):
        trained.inner.later_decode(0, codec, payload(trained))


@pytest.mark.parametrize("length", [0, 1, 50, -1])
def test_any_other_length_is_refused(length: int) -> None:
    trained = Trained()
    data = payload(trained)
    wrong = data[:length] if length >= 0 else memoryview(bytes(data) + b"\0")
    with pytest.raises(MalformedFrame, match="no inner state"):
        trained.inner.later_decode(0, "fp32", wrong)
