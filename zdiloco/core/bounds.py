"""How much a peer may claim: the bounds of every field, and the checks that messages make of them when they are made.

Rule: what is out of bounds raises ValueError with the field, its value and what is allowed.
"""

from collections.abc import Sequence

from zdiloco.units import MAX_FRAGMENTS, Epoch, Stamp

MAX_NAME = 64
MAX_TEXT = 512
MAX_COUNT = 2**53
"""Largest counter (steps, tokens, bytes) that is believed: what a double holds exactly."""
MAX_EPOCH = 2**40
"""Largest epoch counter: no run restarts so often, so a peer that claims it is not believed."""


def check_range(owner: object, **bounds: tuple[float, float]) -> None:
    """Raise ValueError unless each named field of `owner` lies in its closed interval (NaN never does)."""
    for name, (low, high) in bounds.items():
        value = getattr(owner, name)
        if not low <= value <= high:
            raise ValueError(f"{type(owner).__name__}.{name} is {value!r}; allowed is {low} to {high}")


def check_text(owner: object, **limits: int) -> None:
    """Raise ValueError unless each named text field of `owner` has at most its number of characters."""
    for name, limit in limits.items():
        if len(getattr(owner, name)) > limit:
            raise ValueError(f"{type(owner).__name__}.{name} has more than {limit} characters")


def check_numbers(owner: object, field: str, numbers: Sequence[int], least: int = -1) -> None:
    """Raise ValueError unless there is at most one number per fragment and each is at least `least`."""
    if len(numbers) > MAX_FRAGMENTS:
        raise ValueError(f"{type(owner).__name__}.{field} has {len(numbers)} entries; allowed is {MAX_FRAGMENTS}")
    if numbers and not least <= min(numbers) <= max(numbers) <= MAX_COUNT:
        raise ValueError(f"{type(owner).__name__}.{field} holds numbers outside {least} to {MAX_COUNT}")


def check_stamps(owner: object, *stamps: Stamp) -> None:
    """Raise ValueError unless each stamp's numbers are in range (a version of -1 means: none yet)."""
    for stamp in stamps:
        check_epoch(owner, stamp.epoch)
        if not -1 <= stamp.version <= MAX_COUNT:
            raise ValueError(f"{type(owner).__name__} holds version {stamp.version}; allowed is -1 to {MAX_COUNT}")


def check_epoch(owner: object, epoch: Epoch) -> None:
    """Raise ValueError unless the epoch's numbers are in range."""
    if not (0 <= epoch.counter <= MAX_EPOCH and 0 <= epoch.ident < 2**64):
        raise ValueError(f"{type(owner).__name__} holds the epoch {epoch}; its numbers are out of range")
