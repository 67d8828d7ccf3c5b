"""Streams of a device, the events that order them, and buffers that are used again in that order.

Rule: nobody waits here unless a name says so; what may be used again says after which event.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor

SPARES = 4
"""Vectors of one place that wait to be used again: fresh memory costs the training thread page faults, or a wait."""


class Event(Protocol):
    """A place in a stream."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""

    def query(self) -> bool:
        """Whether the device has passed it."""


class Stream(Protocol):
    """Work of a device in its order."""

    def wait_event(self, event: Event) -> None:
        """Let what is enqueued from here on begin after `event` has passed; the caller does not wait."""


class Backend(Protocol):
    """What a road asks of a kind of device."""

    def place(self, tensor: Tensor) -> torch.device | None:
        """The device on whose streams a tensor is worked on; None: it is worked on at once."""

    def current(self, device: torch.device) -> Stream:
        """The stream on which the calling thread works."""

    def side(self, device: torch.device) -> Stream:
        """The one stream of our own, for copies that training need not wait for."""

    def enqueue(self, stream: Stream, work: Callable[[], None]) -> None:
        """Have what `work` does to tensors done on `stream`."""

    def mark(self, stream: Stream) -> Event:
        """An event after all that was enqueued on `stream` so far."""

    def vector(self, numel: int, device: torch.device | None, stream: Stream | None) -> Tensor:
        """Fresh memory, (numel,) fp32, that `stream` may use at once: what it was used for before is over for it.

        Without a device: on the host, where a copy to or from a device need not be staged. Raises
        torch.OutOfMemoryError."""

    def settle(self, device: torch.device) -> None:
        """Wait until everything that was enqueued on `device` is done."""


class Pool:
    """Vectors of one place that are used again, each with the event of its last use (None: that is long over)."""

    def __init__(self, make: Callable[[Stream | None], Tensor]) -> None:
        self._make = make
        self._free: deque[tuple[Tensor, Event | None]] = deque()
        self._lock = threading.Lock()

    def take(self, stream: Stream | None = None) -> Tensor:
        """A vector to be used on `stream` from here on: it waits for the last use, the caller does not."""
        with self._lock:
            found = self._free.popleft() if self._free else None
        if found is None:
            return self._make(stream)
        vector, last = found
        if last is not None and stream is not None:
            stream.wait_event(last)
        return vector

    def give(self, vector: Tensor, last: Event | None = None) -> None:
        """Its next use may begin after `last`. Beyond SPARES one whose last use is over is let go."""
        with self._lock:
            self._free.append((vector, last))
            _, oldest = self._free[0]
            if len(self._free) > SPARES and (oldest is None or oldest.query()):
                self._free.popleft()


class Cuda:
    """CUDA devices as torch has them. Waits give the interpreter and the core away; they do not spin."""

    def __init__(self) -> None:
        self._sides: dict[torch.device, torch.cuda.Stream] = {}
        self._lock = threading.Lock()

    def place(self, tensor: Tensor) -> torch.device | None:
        """Every CUDA device has streams; whatever else there is counts as the host."""
        return tensor.device if tensor.device.type == "cuda" else None

    def current(self, device: torch.device) -> Stream:
        """The current stream of the calling thread."""
        return cast(Stream, torch.cuda.current_stream(device))

    def side(self, device: torch.device) -> Stream:
        """Made once for each device."""
        with self._lock:
            if device not in self._sides:
                self._sides[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return cast(Stream, self._sides[device])

    def enqueue(self, stream: Stream, work: Callable[[], None]) -> None:
        """Do `work` with `stream` as the current one."""
        with torch.cuda.stream(cast(torch.cuda.Stream, stream)):
            work()

    def mark(self, stream: Stream) -> Event:
        """A fresh event, recorded on `stream`."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # as above
        event.record(cast(torch.cuda.Stream, stream))
        return cast(Event, event)

    def vector(self, numel: int, device: torch.device | None, stream: Stream | None) -> Tensor:
        """Memory of the device, allocated for `stream`: torch hands freed memory out again in the order of one stream,
        so from another one it might still be in use. Or pinned memory of the host. Raises torch.OutOfMemoryError."""
        if device is None:
            return torch.empty(numel, dtype=torch.float32, pin_memory=True)
        with torch.cuda.stream(cast(torch.cuda.Stream, stream)):
            return torch.empty(numel, dtype=torch.float32, device=device)

    def settle(self, device: torch.device) -> None:
        """Wait for the whole device."""
        torch.cuda.synchronize(device)
