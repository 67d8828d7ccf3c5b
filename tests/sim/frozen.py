"""Copies and fingerprints of whole machines, found by looking: nothing of a machine is left out unless it is named.

Rule: frozen values are shared, everything else is copied; machines with equal fingerprints are equal in every field.
"""

import dataclasses
from collections import deque
from enum import Enum
from types import FunctionType
from typing import Any

SHARED = (int, float, str, bytes, bool, type(None), Enum, type, FunctionType)


def is_shared(cls: type) -> bool:
    """Whether values of this type never change: plain ones, enums, frozen dataclasses and named tuples."""
    params = getattr(cls, "__dataclass_params__", None)
    return issubclass(cls, SHARED) or hasattr(cls, "_fields") or bool(params and params.frozen) or cls in (frozenset,)


_known: dict[type, bool] = {}
_names: dict[type, tuple[str, ...]] = {}


def names_of(thing: Any) -> tuple[str, ...]:
    """The names of an object's fields: slots where it has some, else its dictionary."""
    cls = type(thing)
    if cls not in _names:
        slots = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
        _names[cls] = tuple(slots or getattr(cls, "__slots__", ()))
    return _names[cls] or tuple(vars(thing))


def clone(thing: Any, memo: dict[int, Any]) -> Any:
    """A copy that shares what is frozen; references within it point into the copy, and dictionaries are in order.

    So parts with equal fingerprints act alike though their dictionaries were filled in another order.
    """
    cls = type(thing)
    if cls not in _known:
        _known[cls] = is_shared(cls)
    if _known[cls]:
        return thing
    if id(thing) in memo:
        return memo[id(thing)]
    if cls is dict:
        made = memo[id(thing)] = {key: clone(thing[key], memo) for key in sorted(thing)}
    elif cls is list:
        made = memo[id(thing)] = [clone(value, memo) for value in thing]
    elif cls is tuple:
        made = tuple([clone(value, memo) for value in thing])
    elif cls is set:
        made = memo[id(thing)] = set(thing)
    elif cls is deque:
        made = memo[id(thing)] = deque(thing, thing.maxlen)
    elif hasattr(thing, "__self__"):  # a bound method
        made = thing.__func__.__get__(clone(thing.__self__, memo))
    else:
        made = memo[id(thing)] = cls.__new__(cls)
        for name in names_of(thing):
            setattr(made, name, clone(getattr(thing, name), memo))
    return made


def freeze(thing: Any, path: set[int]) -> Any:
    """The fingerprint: a tuple that is equal where all fields are. An object is told once, where it is met first."""
    cls = type(thing)
    if cls not in _known:
        _known[cls] = is_shared(cls)
    if _known[cls]:
        return thing
    if hasattr(thing, "__self__"):  # whose it is can be seen from its place
        return thing.__name__
    if id(thing) in path:
        return None
    path.add(id(thing))
    if cls is dict:
        made = tuple([(key, freeze(thing[key], path)) for key in sorted(thing)])
    elif cls in (list, tuple, deque):
        made = tuple([freeze(value, path) for value in thing])
    elif cls is set:
        made = frozenset(thing)
    else:
        return (cls.__name__, *[freeze(getattr(thing, name), path) for name in names_of(thing)])
    path.discard(id(thing))
    return made
