"""Devices of straw: streams that run as late as they may, so that whoever reads or writes too early gets it wrong.

Rule: work is only noted when it is enqueued, and done when somebody waits for it, or when `chance` lets a stream run
ahead. Fresh memory holds NaN. A thread that said it never waits fails where it does.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

DEVICES = tuple(torch.device("cuda", index) for index in range(2))  # names only: nothing is allocated there


@dataclass(eq=False)
class FakeEvent:
    """A place in a fake stream. `forgetful`: whoever waits for it does not."""

    straw: "FakeDevices"
    stream: "FakeStream"
    place: int

    def synchronize(self) -> None:
        """Run the stream up to here, and what it waits for."""
        assert not self.straw.must_not_wait, "the training thread waits for a device"
        if not self.straw.forgets("synchronize"):
            self.stream.run(self.place)

    def query(self) -> bool:
        """Whether it has run so far."""
        return self.stream.done >= self.place


@dataclass(eq=False)
class FakeStream:
    """Work in its order: a function, or an event that must have passed."""

    straw: "FakeDevices"
    name: str
    work: list[Callable[[], None] | FakeEvent] = field(default_factory=list)
    done: int = 0

    def wait_event(self, event: FakeEvent) -> None:
        """What comes from here on waits for `event`."""
        if not self.straw.forgets("wait_event"):
            self.work.append(event)

    def run(self, until: int) -> None:
        """Do what was enqueued before `until`."""
        while self.done < until:
            each = self.work[self.done]
            self.done += 1
            if isinstance(each, FakeEvent):
                each.stream.run(each.place)
            else:
                each()


class FakeDevices:
    """A backend whose devices are names for tensors in host memory. `memory`: vectors that each device has room for.

    `forget`: what this backend leaves out, to see that it is noticed.
    """

    def __init__(self, seed: int = 0, *, memory: int = 1000, forget: str = "") -> None:
        self.chance = random.Random(seed)
        self.must_not_wait = False
        self.made: dict[torch.device | None, int] = {}
        self._memory, self._forget = memory, forget
        self._homes: dict[int, torch.device] = {}
        self._streams: dict[tuple[torch.device, str], FakeStream] = {}

    def forgets(self, what: str) -> bool:
        """Whether this backend leaves that out."""
        return self._forget == what

    def put(self, tensor: Tensor, device: torch.device) -> None:
        """Let a tensor live on a device."""
        self._homes[tensor.data_ptr()] = device

    @contextmanager
    def training(self) -> Iterator[None]:
        """Within it nobody may wait; before it streams run as far as chance will have it."""
        self.stir()
        self.must_not_wait = True
        yield
        self.must_not_wait = False

    def stir(self) -> None:
        """Let some streams run ahead by some of their work."""
        for stream in self._streams.values():
            if self.chance.random() < 0.3:
                stream.run(self.chance.randint(stream.done, len(stream.work)))

    def drain(self) -> None:
        """Let all streams end."""
        for stream in self._streams.values():
            stream.run(len(stream.work))

    # ---- what a road asks

    def place(self, tensor: Tensor) -> torch.device | None:
        """Where `put` has put it."""
        return self._homes.get(tensor.data_ptr())

    def current(self, device: torch.device) -> FakeStream:
        """The stream that trains."""
        return self._stream(device, "training")

    def side(self, device: torch.device) -> FakeStream:
        """The stream of copies."""
        return self._stream(device, "side")

    def enqueue(self, stream: FakeStream, work: Callable[[], None]) -> None:
        """Note it."""
        stream.work.append(work)

    def mark(self, stream: FakeStream) -> FakeEvent:
        """An event after what was noted."""
        return FakeEvent(self, stream, len(stream.work))

    def vector(self, numel: int, device: torch.device | None, stream: FakeStream | None) -> Tensor:
        """NaN everywhere. Raises: torch.OutOfMemoryError."""
        self.made[device] = self.made.get(device, 0) + 1
        if device is not None and self.made[device] > self._memory:
            raise torch.OutOfMemoryError("a device of straw is full")
        return torch.full((numel,), float("nan"))

    def settle(self, device: torch.device) -> None:
        """Let all streams of the device end."""
        assert not self.must_not_wait, "the training thread waits for a device"
        for (home, _), stream in self._streams.items():
            if home == device:
                stream.run(len(stream.work))

    def _stream(self, device: torch.device, name: str) -> FakeStream:
        return self._streams.setdefault((device, name), FakeStream(self, f"{name} of {device}"))
