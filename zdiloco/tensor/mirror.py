"""Copies on the host of tensors that go on changing, made piece by piece, so that no step pays for much of them.

Rule: methods named `now_*` run on the training thread: on a CUDA device they enqueue on its current stream and wait for
nothing. Those named `later_*` run on another thread, which may wait. What has the same number of elements and is copied
in one call lies together: a piece is the same stretch of each, so both moments of an element are of one step.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from zdiloco.tensor.streams import Backend, Cuda, Event

PIECE = 2**20
"""Most bytes that are copied between two looks at what this step may cost."""
TENSOR_COST = 2**15
"""Bytes that could be copied in the time that looking a tensor up and calling torch takes."""


class Mirror:
    """The copies, by name. Memory is used again for a name of the same shape and type."""

    def __init__(self, backend: Backend | None = None) -> None:
        self._backend = backend or Cuda()
        self._copies: dict[str, Tensor] = {}
        self._devices: set[torch.device] = set()
        self._waits: list[Event] = []

    def later_reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Have memory for copies of these, already touched: fresh memory would cost the training thread page faults."""
        for name, tensor in tensors.items():
            self._room(name, tensor).zero_()

    def now_copy(self, tensors: Mapping[str, Tensor]) -> Iterator[int]:
        """Copy these; each turn makes one piece and gives what it cost, in bytes. Call `now_mark` after the last turn
        of a step. Tensors that are not contiguous, which are rare, are a piece each."""
        longest = max([0, *(tensor.numel() for tensor in tensors.values())])
        together = []
        for name, tensor in tensors.items():
            copy, device = self._room(name, tensor), self._backend.place(tensor)
            if tensor.numel() == longest and tensor.is_contiguous():
                together.append((copy.view(-1), tensor.view(-1), device))
            else:
                self._copy(copy, tensor, device)
                yield TENSOR_COST + tensor.numel() * tensor.itemsize
        stride = max(1, PIECE // max(1, sum(tensor.itemsize for _, tensor, _ in together)))
        for start in range(0, longest if together else 0, stride):
            stop = min(longest, start + stride)
            for copy, tensor, device in together:
                self._copy(copy[start:stop], tensor[start:stop], device)
            yield sum(TENSOR_COST + (stop - start) * tensor.itemsize for _, tensor, _ in together)

    def now_mark(self) -> None:
        """What was copied in this step is done when the devices have come to here."""
        self._waits += [self._backend.mark(self._backend.current(device)) for device in self._devices]
        self._devices.clear()

    def later_wait(self) -> None:
        """Wait until every copy is whole."""
        waits, self._waits = self._waits, []
        for event in waits:
            event.synchronize()

    def copies(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The copies of these, in the shapes of what they are copies of; valid until copied again."""
        return {name: self._copies[name] for name in names}

    def _room(self, name: str, tensor: Tensor) -> Tensor:
        found = self._copies.get(name)
        if found is None or found.shape != tensor.shape or found.dtype is not tensor.dtype:
            found = self._copies[name] = self._fresh(tensor)
        return found

    def _fresh(self, tensor: Tensor) -> Tensor:
        if self._backend.place(tensor) is None:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        size = tensor.numel() * tensor.itemsize
        vector = self._backend.vector(-(-size // 4), None, None)
        return vector.view(torch.uint8)[:size].view(tensor.dtype).view(tensor.shape)

    def _copy(self, copy: Tensor, tensor: Tensor, device: torch.device | None) -> None:
        if device is None:
            copy.copy_(tensor)  # neither has a gradient
            return
        self._devices.add(device)
        self._backend.enqueue(self._backend.current(device), partial(_copy, copy, tensor))


def _copy(copy: Tensor, tensor: Tensor) -> None:
    copy.copy_(tensor, non_blocking=True)
