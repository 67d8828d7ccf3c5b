"""What a fuzzed parser is: a function of bytes that returns, or raises one of the errors that are its answer.

Rule: a target says for itself what holds of a value that came out (it comes back from its own bytes, it is bounded);
an error that is not listed is a fault of the parser. A target keeps nothing from one input to the next.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One parser. `parse` takes an input and checks what comes of it; `seeds` are inputs that it accepts.

    `grows`: bytes of memory that an input may take for each of its own, beside MEMORY_FLOOR. `slow`: an input costs a
    millisecond, so fewer are tried where many are.
    """

    name: str
    parse: Callable[[bytes], None]
    allowed: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    grows: int = 400
    slow: bool = False


MEMORY_FLOOR = 2**20
"""Bytes that any input may take, however short: messages of errors, caches, a small budget of bodies."""


def accepts(target: Target, data: bytes) -> bool:
    """Give an input to a parser: True, it was taken; False, it was refused as it should be. Raises what is a fault."""
    try:
        target.parse(data)
    except target.allowed:
        return False
    return True


class Tape:
    """Reads numbers and pieces off an input; past its end everything is 0 or empty, so every input means something."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def over(self) -> bool:
        """Whether all of it is read."""
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        """The next bytes, fewer at the end."""
        piece = self._data[self._at : self._at + count]
        self._at += count
        return piece

    def byte(self) -> int:
        """The next byte."""
        return (self.take(1) or b"\0")[0]

    def number(self, count: int) -> int:
        """An unsigned little-endian number of so many bytes."""
        return int.from_bytes(self.take(count), "little")

    def pick(self, among: int) -> int:
        """A number below `among`."""
        return self.byte() % among

    def text(self) -> str:
        """A short text of any characters."""
        return self.take(self.byte() % 40).decode("utf-8", "replace")

    def value(self, depth: int = 0) -> object:
        """Anything that JSON and msgpack have in common: numbers at the edges, texts, lists and maps of these."""
        kind = self.pick(12 if depth < 3 else 8)
        if kind < 3:
            return (self.byte() - 3, 2 ** self.pick(65) - 1, -(2 ** self.pick(63)))[kind]
        if kind == 3:
            return struct.unpack("<d", self.take(8).ljust(8, b"\0"))[0]
        if kind < 8:
            return (None, True, self.text(), "x" * self.number(2))[kind - 4]
        count = self.pick(5)
        if kind < 10:
            return [self.value(depth + 1) for _ in range(count)]
        return {self.text(): self.value(depth + 1) for _ in range(count)}
