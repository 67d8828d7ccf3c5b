"""The kept inputs of each parser: one text file a parser, one input a line, in hexadecimal digits.

Rule: an input stays because it was a fault once, or reached code that no other one reached. Seeds are made, not kept.
"""

from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.target import Target

FOLDER = Path(__file__).parent / "corpus"
MOST_INPUTS = 100
MOST_BYTES = 2048


def kept(target: Target) -> list[bytes]:
    """The kept inputs of a parser, shortest first; none where there is no file yet."""
    path = FOLDER / f"{target.name}.hex"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(target: Target, inputs: Iterable[bytes]) -> int:
    """Keep these inputs beside those that are kept already: the short ones, and so many at most. Returns how many."""
    old = kept(target)
    fresh = {data for data in inputs if len(data) <= MOST_BYTES} - {*old, *target.seeds()}
    room = max(0, MOST_INPUTS - len(old))
    every = sorted([*old, *sorted(fresh, key=_short)[:room]], key=_short)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target.name}.hex").write_text("".join(f"{data.hex()}\n" for data in every))
    return len(every)


def _short(data: bytes) -> tuple[int, bytes]:
    return len(data), data
