"""Bytes that lie in several places and travel as one payload, such as a value and the record behind it.

Rule: the places are the caller's and stay unchanged; only a piece that spans two of them is copied.
"""

from zdiloco.wire.frames import Buffer


class Joined:
    """The bytes of `parts`, one after the other; `nbytes` of them in all."""

    __slots__ = ("_parts", "nbytes")

    def __init__(self, *parts: Buffer) -> None:
        views = [memoryview(part) for part in parts]
        self._parts = [view.cast("B").toreadonly() for view in views if view.nbytes]
        self.nbytes = sum(part.nbytes for part in self._parts)

    def piece(self, start: int, stop: int) -> memoryview:
        """The bytes from `start` up to `stop` or the end: a view, or a copy where they lie in more than one place."""
        found = []
        for part in self._parts:
            if start < part.nbytes and stop > 0:
                found.append(part[max(0, start) : stop])
            start, stop = start - part.nbytes, stop - part.nbytes
        return found[0] if len(found) == 1 else memoryview(b"".join(found))


def joined(payload: Buffer | Joined) -> Joined:
    """The same payload as something that is read in pieces."""
    return payload if isinstance(payload, Joined) else Joined(payload)
