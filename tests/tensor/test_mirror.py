"""Copies made piece by piece: the bits of what was there when each was made, and never more than a piece at once."""

from collections.abc import Mapping
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.tensor.fake_device import DEVICES, FakeDevices
from zdiloco.tensor import mirror
from zdiloco.tensor.mirror import TENSOR_COST, Mirror


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "PIECE", 64)


def entry(numel: int, value: float = 1.0) -> dict[str, Tensor]:
    moments = {"m": torch.full((numel,), value), "v": torch.full((numel,), value), "h": torch.ones(numel).half()}
    return {**moments, "step": torch.tensor(value)}


def moved(copied: Mapping[str, Tensor], of: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(copied[name], of[name]) for name in of)


@pytest.mark.parametrize("numel", [1, 5, 6, 7, 100])
def test_pieces_are_bounded_and_together_the_whole(numel: int) -> None:
    copies, tensors = Mirror(), entry(numel)
    copies.later_reserve(tensors)
    costs = list(copies.now_copy(tensors))
    assert max(costs) <= 64 + 4 * TENSOR_COST
    assert sum(costs) >= 10 * numel + 4
    assert moved(copies.copies(tensors), tensors)


def test_what_belongs_to_one_element_is_of_one_moment() -> None:
    copies, tensors = Mirror(), entry(50)
    for now, _ in enumerate(copies.now_copy(tensors)):
        for tensor in tensors.values():
            tensor.fill_(now + 2)
    found = copies.copies(tensors)
    assert torch.equal(found["m"], found["v"])
    assert torch.equal(found["m"], found["h"].float())
    assert len(set(found["m"].tolist())) == -(-50 // (64 // 10))  # so many moments


def test_strides_and_shapes_of_every_kind() -> None:
    copies = Mirror()
    tensors = {
        "turned": torch.arange(6.0).view(2, 3).t(), "empty": torch.empty(0, 2), "one": torch.tensor(True),
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "double": torch.randn(120).double(),
    }  # fmt: skip
    assert all(cost > 0 for cost in copies.now_copy(tensors))
    assert moved(copies.copies(tensors), tensors)
    for name in tensors:
        list(copies.now_copy({name: tensors[name]}))
        assert moved(copies.copies([name]), {name: tensors[name]})
    assert list(copies.now_copy({})) == []


def test_memory_is_used_again_unless_the_shape_is_another() -> None:
    copies = Mirror()
    list(copies.now_copy({"x": torch.ones(10)}))
    first = copies.copies({"x": torch.ones(10)})["x"].data_ptr()
    list(copies.now_copy({"x": torch.zeros(10)}))
    assert copies.copies({"x": torch.zeros(10)})["x"].data_ptr() == first
    list(copies.now_copy({"x": torch.ones(11)}))
    assert copies.copies({"x": torch.ones(11)})["x"].shape == (11,)


def on_devices(seed: int, forget: str) -> tuple[list[float], dict[str, list[float]]]:
    """What each element should be, and what its copies are: all changes after every piece, on streams that run late."""
    straw = FakeDevices(seed, forget=forget)
    copies, tensors = Mirror(straw), entry(40)
    for name, device in (("m", DEVICES[0]), ("v", DEVICES[0]), ("h", DEVICES[1])):
        straw.put(tensors[name], device)
    copies.later_reserve(tensors)
    pieces = copies.now_copy(tensors)
    for now in range(1 + -(-40 // 6)):
        with straw.training():
            assert next(pieces)
            copies.now_mark()
            for name in ("m", "v", "h"):
                straw.enqueue(straw.current(DEVICES[name == "h"]), partial(tensors[name].fill_, now + 2.0))
    assert next(pieces, None) is None
    copies.later_wait()
    found = copies.copies(tensors)
    return [2.0 + at // 6 for at in range(40)], {name: found[name].tolist() for name in ("m", "v", "h")}


def test_on_devices_the_copies_are_of_their_moments_and_the_training_thread_never_waits() -> None:
    for seed in range(20):
        want, found = on_devices(seed, "")
        assert found == {"m": want, "v": want, "h": want}, seed


def test_a_wait_that_is_left_out_is_noticed() -> None:
    wrong = sum(
        any(each != want for each in found.values())
        for want, found in (on_devices(s, "synchronize") for s in range(20))
    )
    assert wrong == 20
