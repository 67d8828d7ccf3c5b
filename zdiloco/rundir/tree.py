"""State of any shape as JSON and named tensors, and back: what `state_dict()` gives, and nothing that could run.

Rule: what comes back is equal in value and in type, or it is refused by name when it is packed. JSON's own values stand
for themselves; whatever else is an object with one key, which says what it is: {"tuple": [...]}.
"""

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zdiloco.errors import ConfigError
from zdiloco.rundir.tensorfile import TYPE_NAMES

MAX_DEPTH = 64
MAX_BITS = 1024
"""Of a whole number; a random generator's have 128."""
NOT_OF_NUMPY = frozenset({torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2})
_MAPPINGS: Mapping[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_NAME_OF = {kind: name for name, kind in _MAPPINGS.items()}


def pack(value: Any, place: str, tensors: dict[str, Tensor], depth: int = MAX_DEPTH) -> Any:
    """Return `value` as JSON can hold it; the tensors in it are put into `tensors` as they are, by their places.

    `place` names the value, like "optimizer.state.0". Raises ConfigError naming the place of what cannot be saved.
    """
    if depth == 0:
        raise ConfigError(f"{place} cannot be saved: it is nested more than {MAX_DEPTH} times, or holds itself")
    if isinstance(value, Tensor):
        return {"tensor": _put(_checked(value, place), place, tensors)}
    if isinstance(value, np.ndarray):
        return {"array": _put(_of_array(value, place), place, tensors)}
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if kind in _NAME_OF:
        return {_NAME_OF[kind]: [_pair(key, each, place, tensors, depth - 1) for key, each in value.items()]}
    if kind in (list, tuple):
        packed = [pack(each, f"{place}.{at}", tensors, depth - 1) for at, each in enumerate(value)]
        return packed if kind is list else {"tuple": packed}
    return _plain(value, place)


def _pair(key: Any, value: Any, place: str, tensors: dict[str, Tensor], depth: int) -> list[Any]:
    if type(key) not in (str, int) or (type(key) is int and key.bit_length() > MAX_BITS):
        raise ConfigError(f"{place} cannot be saved: it has the key {key!r:.80}; allowed are text and whole numbers")
    return [key, pack(value, f"{place}.{key}", tensors, depth)]


def _plain(value: Any, place: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str) or (kind is int and value.bit_length() <= MAX_BITS):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    raise ConfigError(
        f"{place} cannot be saved: it is a {kind.__module__}.{kind.__qualname__}; allowed are tensors, arrays, "
        "numbers, text, bytes, None, and lists, tuples and dicts of these"
    )


def _checked(tensor: Tensor, place: str) -> Tensor:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_meta
    if not plain or tensor.dtype not in TYPE_NAMES:
        kind = f"{type(tensor).__name__} of {tensor.dtype}, {tensor.layout}"
        raise ConfigError(f"{place} cannot be saved: it is a {kind}; allowed are plain dense tensors")
    return tensor.detach().resolve_conj().resolve_neg()  # views that only say so have no bytes of their own


def _of_array(array: np.ndarray[Any, Any], place: str) -> Tensor:
    try:
        return _checked(torch.from_numpy(np.array(array, order="C")), place)  # a copy: the array may be read-only
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place} cannot be saved: it is an array of {array.dtype}; allowed are numbers") from error


def _put(tensor: Tensor, place: str, tensors: dict[str, Tensor]) -> str:
    name = place.encode("utf-8", "backslashreplace").decode()  # half a surrogate is no text in a file
    while name in tensors:  # a dict may have both 1 and "1" as a key
        name += "+"
    tensors[name] = tensor
    return name


def unpack(packed: Any, tensors: Mapping[str, Tensor], depth: int = MAX_DEPTH) -> Any:
    """Return what was packed. Raises ValueError for what `pack` does not make, and for tensors that are not there."""
    if depth == 0:
        raise ValueError(f"nested more than {MAX_DEPTH} times")
    if isinstance(packed, list):
        return [unpack(each, tensors, depth - 1) for each in packed]
    if not isinstance(packed, dict):
        return packed
    if len(packed) != 1:
        raise ValueError(f"an object with {len(packed)} keys where one is right")
    [(kind, content)] = packed.items()
    if kind in ("tensor", "array"):
        return _take(kind, content, tensors)
    if kind == "tuple" and isinstance(content, list):
        return tuple(unpack(each, tensors, depth - 1) for each in content)
    if kind in _MAPPINGS and isinstance(content, list):
        return _MAPPINGS[kind](_pairs(content, tensors, depth - 1))
    if kind == "bytes" and isinstance(content, str):
        return base64.b64decode(content, validate=True)
    if kind == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    raise ValueError(f"no value is written {{{kind!r:.40}: {type(content).__name__}}}")


def _pairs(content: list[Any], tensors: Mapping[str, Tensor], depth: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for pair in content:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int) or pair[0] in found:
            raise ValueError("a dict is written as pairs of a key, text or whole number, and a value")
        found[pair[0]] = unpack(pair[1], tensors, depth)
    return found


def _take(kind: str, name: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(name, str) or name not in tensors:
        raise ValueError(f"no tensor is called {name!r:.80}")
    tensor = tensors[name]
    if kind == "array" and tensor.dtype in NOT_OF_NUMPY:
        raise ValueError(f"no array holds numbers of {tensor.dtype}")
    return tensor if kind == "tensor" else tensor.numpy()
