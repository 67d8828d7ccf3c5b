"""State as JSON and tensors: it comes back equal in value and in type, and what cannot is named."""

import collections
import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zdiloco.errors import ConfigError
from zdiloco.rundir.tensorfile import TYPE_NAMES
from zdiloco.rundir.tree import MAX_DEPTH, pack, unpack


def there_and_back(value: Any) -> Any:
    tensors: dict[str, Tensor] = {}
    text = json.dumps(pack(value, "part", tensors))
    return unpack(json.loads(text), {name: tensor.clone() for name, tensor in tensors.items()})


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, NaN to NaN, bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype is other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


PLAIN: list[Any] = [
    None, True, False, 0, -1, 2**64, -(2**1000), 0.1, -0.0, 1e300, math.inf, -math.inf, math.nan, "", "ü\0\ud800",
    b"", b"\0\xff", [], (), {}, [1, (2.0, [None])], {"a": {1: {"1": 2}}, -5: "b"}, collections.OrderedDict(b=1, a=2),
    collections.Counter({30: 1, 80: 2}), {"tensor": 1}, {"dict": [["a", 1]]}, [{"float": "nan"}],
]  # fmt: skip


def test_plain_values_come_back() -> None:
    for value in PLAIN:
        assert same(there_and_back(value), value), value


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_come_back(shape: tuple[int, ...]) -> None:
    for dtype in TYPE_NAMES:
        tensor = torch.ones(shape).to(dtype)
        assert same(there_and_back([tensor, {"x": tensor.t() if len(shape) == 2 else tensor}])[0], tensor)


def test_arrays_and_their_numbers_come_back() -> None:
    for array in (np.arange(6, dtype=np.uint32).reshape(2, 3), np.array([True]), np.zeros(()), np.zeros((0,), np.int8)):
        assert same(there_and_back(array), array)
    assert same(there_and_back([np.float64(0.5), np.int8(3), np.bool_(True), np.str_("a")]), [0.5, 3, True, "a"])
    fixed = np.arange(3)
    fixed.setflags(write=False)
    assert same(there_and_back(fixed), fixed)


def test_keys_that_look_alike_have_tensors_of_their_own() -> None:
    value = {1: torch.zeros(1), "1": torch.ones(2), "a.b": torch.ones(3), "a": {"b": torch.ones(4)}}
    assert same(there_and_back(value), value)


def test_states_of_the_ecosystem_come_back() -> None:
    model = torch.nn.Linear(3, 2)
    for make in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adafactor):
        optimizer = make(model.parameters(), lr=0.1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 9])
        for state in (optimizer.state_dict(), scheduler.state_dict()):
            assert same(there_and_back(state), state), make
    chance = [random.getstate(), np.random.get_state(legacy=False), np.random.default_rng(1).bit_generator.state]
    assert same(there_and_back(chance), chance)


class Odd(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, lambda: 0]}, r"part\.a\.1 cannot be saved: it is a builtins\.function"),
        ({"a": {1, 2}}, r"part\.a cannot be saved: it is a builtins\.set"),
        ({(1, 2): 3}, r"part cannot be saved: it has the key \(1, 2\)"),
        ({True: 3}, "part cannot be saved: it has the key True"),
        (Odd(a=1), r"part cannot be saved: it is a .*\.Odd"),
        (2**2000, r"part cannot be saved: it is a builtins\.int"),
        (torch.ones(2).to_sparse(), r"part cannot be saved: it is a Tensor of torch\.float32, torch\.sparse_coo"),
        (torch.ones(2, dtype=torch.complex128), r"of torch\.complex128"),
        (torch.ones(2, device="meta"), "part cannot be saved"),
        (torch.nn.Module(), "part cannot be saved"),
        (np.array(["a"]), "part cannot be saved: it is an array of <U1"),
        (np.array([None]), "part cannot be saved: it is an array of object"),
    ],
    ids=range(12),
)
def test_what_cannot_be_saved_is_named(value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        pack(value, "part", {})


def test_what_holds_itself_is_named() -> None:
    own: list[Any] = []
    own.append(own)
    with pytest.raises(ConfigError, match=f"nested more than {MAX_DEPTH} times, or holds itself"):
        pack(own, "part", {})


@pytest.mark.parametrize(
    "packed",
    [
        {}, {"a": 1}, {"tuple": 1}, {"dict": {}}, {"dict": [[1]]}, {"dict": [[1, 2], [1, 3]]}, {"dict": [[True, 2]]},
        {"dict": [[[], 2]]}, {"tensor": "x"}, {"tensor": 1}, {"array": "half"}, {"float": "1.0"}, {"float": 1},
        {"bytes": "%"}, {"bytes": "é"}, {"tuple": [], "dict": []}, {"counter": 5},
    ],
    ids=str,
)  # fmt: skip
def test_what_nobody_packs_is_refused(packed: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(packed, {"half": torch.ones(1, dtype=torch.bfloat16)})
    with pytest.raises(ValueError, match=r"."):
        unpack([{"tuple": [packed]}], {"half": torch.ones(1, dtype=torch.bfloat16)})


def test_depth_is_bounded_on_the_way_back() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        unpack(deep, {})
