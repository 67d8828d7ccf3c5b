"""How values get from the devices of a model to the host and changes get back, without the training thread waiting.

Rule: methods named `now_*` run on the training thread: on a CUDA device they enqueue on its current stream and wait for
nothing. Those named `later_*` run on one worker thread, which may wait. What one stream writes and another reads is
ordered by an event, and a device buffer is used again only by a stream that waits for the event of its last use.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from zdiloco.tensor.binding import Binding
from zdiloco.tensor.streams import SPARES, Backend, Cuda, Event, Pool, Stream


@dataclass(frozen=True, slots=True)
class Part:
    """The tensors `indexes` of a fragment, which live on `device`: theirs in `buffer`, after `ready` has passed.

    `buffer` is (n_p,) fp32 or longer, and each tensor at its place in the flat fragment."""

    device: torch.device
    indexes: tuple[int, ...]
    buffer: Tensor
    ready: Event


@dataclass(slots=True)
class Copied:
    """Values of a fragment as they were at a boundary: in `host`, (n_p,) fp32, or on their way to it in `parts`."""

    fragment: int
    host: Tensor | None
    parts: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class Staged:
    """What is to be added to a fragment or to take its place: in `host`, (n_p,) fp32, and already on the devices in
    `parts`. `host` is None where all of it is there."""

    fragment: int
    host: Tensor | None
    parts: list[Part] = field(default_factory=list)


class CpuRoad:
    """The road of a model in host memory, or on a device that is reached without streams: everything is done at once.

    Vectors that are given back are used again, at most SPARES of each fragment.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._spares: list[list[Tensor]] = [[] for _ in binding.layout.fragments]
        self._lock = threading.Lock()

    def vector(self, fragment: int) -> Tensor:
        """A vector (n_p,) fp32 on the host, whatever is in it."""
        with self._lock:
            if self._spares[fragment]:
                return self._spares[fragment].pop()
        return torch.empty(self._binding.layout.numels[fragment], dtype=torch.float32)

    def give_back(self, fragment: int, vectors: Sequence[Tensor]) -> None:
        """Vectors (n_p,) fp32 that nobody reads any more may be used again."""
        with self._lock:
            spares = self._spares[fragment]
            spares.extend(vectors[: max(0, SPARES - len(spares))])

    def now_copy(self, fragment: int) -> Copied:
        """Copy the fragment's values."""
        return Copied(fragment, self._binding.gather(fragment, self.vector(fragment)))

    def now_add(self, staged: Staged) -> list[Tensor]:
        """Add to the fragment in place. Returns host vectors that nobody needs any more."""
        assert staged.host is not None
        self._binding.add_(staged.fragment, staged.host)
        return [staged.host]

    def now_load(self, staged: Staged) -> None:
        """Overwrite the fragment in place."""
        assert staged.host is not None
        self._binding.load_(staged.fragment, staged.host)

    def later_host(self, copied: Copied) -> Tensor:
        """The copied values, (n_p,) fp32, once they are on the host; may be given back."""
        assert copied.host is not None
        return copied.host

    def later_stage(self, fragment: int, values: Tensor, *, direct: bool = False) -> Staged:
        """Bring `values` (n_p,) fp32 near the fragment. `direct`: never onto a device before they are adopted."""
        return Staged(fragment, values)

    def later_reserve(self) -> None:
        """Have memory ready for the first snapshot."""

    def later_settle(self) -> None:
        """Wait until what the training thread has enqueued so far is done; its model stands still."""

    def release(self, staged: Staged) -> None:
        """What was staged is not adopted: its memory may be used again."""


class CudaRoad(CpuRoad):
    """The road of a model of which at least a part is on CUDA devices.

    A snapshot is one copy on each device, an adoption one addition there; what crosses the bus does so on a side
    stream, from and to pinned memory. Where a device has no memory left for a buffer, and for what is staged `direct`,
    the training thread waits for the bus instead. Buffers are as long as the largest fragment; at most SPARES of each
    device wait to be used again.
    """

    def __init__(self, binding: Binding, backend: Backend) -> None:
        super().__init__(binding)
        self._backend = backend
        self._longest = max(binding.layout.numels)
        self._pools: dict[torch.device, Pool] = {}
        self._hosts = Pool(lambda _: backend.vector(self._longest, None, None))
        self._lent: dict[int, Tensor] = {}  # address -> the pinned vector that a view of it begins

    def vector(self, fragment: int) -> Tensor:
        """A vector (n_p,) fp32 in pinned memory."""
        whole = self._hosts.take()
        view = whole[: self._binding.layout.numels[fragment]]
        with self._lock:
            self._lent[whole.data_ptr()] = whole
        return view

    def give_back(self, fragment: int, vectors: Sequence[Tensor]) -> None:
        """Vectors that came from `vector` may be used again; others are let go."""
        for vector in vectors:
            with self._lock:
                whole = self._lent.pop(vector.data_ptr(), None)
            if whole is not None:
                self._hosts.give(whole)

    def now_copy(self, fragment: int) -> Copied:
        """Enqueue a copy of the fragment's values on the current stream of each device."""
        live = self._binding.live(fragment)
        copied = Copied(fragment, None)
        for device, indexes in self._places(live).items():
            mine = [live[index] for index in indexes]
            if device is None:
                copied.host = self.vector(fragment)
                _copy(self._views(fragment, copied.host, indexes), mine)
                continue
            stream = self._backend.current(device)
            buffer = self._take(device, stream)
            if buffer is None:
                return self._copy_at_once(copied)
            self._backend.enqueue(stream, partial(_copy, self._views(fragment, buffer, indexes), mine))
            copied.parts.append(Part(device, indexes, buffer, self._backend.mark(stream)))
        return copied

    def now_add(self, staged: Staged) -> list[Tensor]:
        """Enqueue the addition on the current stream of each device, behind the copy of what is added."""
        return self._change(staged, _add)

    def now_load(self, staged: Staged) -> None:
        """Enqueue the overwriting likewise."""
        self._change(staged, _copy)

    def later_host(self, copied: Copied) -> Tensor:
        """The copied values, (n_p,) fp32, once they are on the host; waits for them."""
        host = copied.host if copied.host is not None else self.vector(copied.fragment)
        waits = []
        for part in copied.parts:
            side = self._backend.side(part.device)
            side.wait_event(part.ready)
            self._backend.enqueue(side, partial(_move, host, part.buffer, self._runs(copied.fragment, part.indexes)))
            waits.append(self._backend.mark(side))
        for event in waits:
            event.synchronize()
        self._take_back(copied.parts)
        return host

    def later_stage(self, fragment: int, values: Tensor, *, direct: bool = False) -> Staged:
        """Copy `values` (n_p,) fp32 to the devices and wait for that; `direct`: leave them on the host."""
        staged = Staged(fragment, values)
        if direct:
            return staged
        places = self._places(self._binding.live(fragment))
        for device, indexes in places.items():
            if device is None:
                continue
            side = self._backend.side(device)
            buffer = self._take(device, side)
            if buffer is None:
                return self._unstage(staged, values)
            self._backend.enqueue(side, partial(_move, buffer, values, self._runs(fragment, indexes)))
            staged.parts.append(Part(device, indexes, buffer, self._backend.mark(side)))
        for part in staged.parts:
            part.ready.synchronize()
        if None not in places:
            staged.host = None
        return staged

    def later_reserve(self) -> None:
        """Have one buffer on each device, as far as there is memory."""
        for device in self._devices():
            side = self._backend.side(device)
            buffer = self._take(device, side)
            if buffer is not None:
                self._pool(device).give(buffer, self._backend.mark(side))

    def later_settle(self) -> None:
        """Wait until every device of the model has done what was enqueued."""
        for device in self._devices():
            self._backend.settle(device)

    def release(self, staged: Staged) -> None:
        """What was staged is not adopted: its buffers may be used again."""
        self._take_back(staged.parts)

    # ---- small things

    def _copy_at_once(self, copied: Copied) -> Copied:
        """All of it straight to the host, for want of memory on a device."""
        fragment = copied.fragment
        self._take_back(copied.parts)
        host = copied.host if copied.host is not None else self.vector(fragment)
        live = self._binding.live(fragment)
        for device, indexes in self._places(live).items():
            mine = [live[index] for index in indexes]
            self._at_once(device, partial(_copy, self._views(fragment, host, indexes), mine))
        return Copied(fragment, host)

    def _at_once(self, device: torch.device | None, work: Callable[[], None]) -> None:
        """Have `work` done in the order of training, and wait for it."""
        if device is None:
            work()
            return
        stream = self._backend.current(device)
        self._backend.enqueue(stream, work)
        self._backend.mark(stream).synchronize()

    def _unstage(self, staged: Staged, values: Tensor) -> Staged:
        for part in staged.parts:
            part.ready.synchronize()
        self._take_back(staged.parts)
        return Staged(staged.fragment, values)

    def _change(self, staged: Staged, change: Callable[[list[Tensor], list[Tensor]], None]) -> list[Tensor]:
        fragment, live = staged.fragment, self._binding.live(staged.fragment)
        rest = dict.fromkeys(range(len(live)))
        for part in staged.parts:
            stream = self._backend.current(part.device)
            stream.wait_event(part.ready)
            mine, views = [live[index] for index in part.indexes], self._views(fragment, part.buffer, part.indexes)
            self._backend.enqueue(stream, partial(_near, change, mine, views))
            self._pool(part.device).give(part.buffer, self._backend.mark(stream))
            for index in part.indexes:
                del rest[index]
        if staged.host is None:
            return []
        for device, indexes in self._places(live).items():
            late = tuple(index for index in indexes if index in rest)
            views = self._views(fragment, staged.host, late)
            if late:
                self._at_once(device, partial(_near, change, [live[index] for index in late], views))
        return [staged.host]

    def _places(self, live: Sequence[Tensor]) -> dict[torch.device | None, tuple[int, ...]]:
        """Which of these tensors live on which device (None: the host)."""
        places: dict[torch.device | None, list[int]] = {}
        for index, tensor in enumerate(live):
            places.setdefault(self._backend.place(tensor), []).append(index)
        return {device: tuple(indexes) for device, indexes in places.items()}

    def _devices(self) -> set[torch.device]:
        every = (self._places(self._binding.live(fragment.index)) for fragment in self._binding.layout.fragments)
        return {device for places in every for device in places if device is not None}

    def _pool(self, device: torch.device) -> Pool:
        with self._lock:
            if device not in self._pools:
                self._pools[device] = Pool(lambda stream: self._backend.vector(self._longest, device, stream))
            return self._pools[device]

    def _take(self, device: torch.device, stream: Stream) -> Tensor | None:
        """A buffer to be used on `stream`; None: the device has no memory left for one."""
        try:
            return self._pool(device).take(stream)
        except torch.OutOfMemoryError:
            return None

    def _take_back(self, parts: Sequence[Part]) -> None:
        """Use these buffers again, after what wrote to them."""
        for part in parts:
            self._pool(part.device).give(part.buffer, part.ready)

    def _views(self, fragment: int, flat: Tensor, indexes: tuple[int, ...]) -> list[Tensor]:
        """The tensors `indexes` of the fragment as they lie in `flat`, in their shapes."""
        tensors = self._binding.layout.fragments[fragment].tensors
        parts = flat[: self._binding.layout.numels[fragment]].split_with_sizes([each.numel for each in tensors])
        return [parts[index].view(tensors[index].shape) for index in indexes]

    def _runs(self, fragment: int, indexes: tuple[int, ...]) -> list[tuple[int, int]]:
        """Where these tensors lie in the flat fragment, neighbours taken together: (start, stop)."""
        runs: list[tuple[int, int]] = []
        sizes = [tensor.numel for tensor in self._binding.layout.fragments[fragment].tensors]
        starts = list(itertools.accumulate(sizes, initial=0))
        for index in indexes:
            start = starts[index]
            if runs and runs[-1][1] == start:
                start = runs.pop()[0]
            runs.append((start, starts[index] + sizes[index]))
        return runs


def road_for(binding: Binding) -> CpuRoad:
    """The road for where the model is now. One that moves later is still served, with waits in the training thread."""
    backend = Cuda()
    live = (tensor for fragment in binding.layout.fragments for tensor in binding.live(fragment.index))
    if any(backend.place(tensor) is not None for tensor in live):
        return CudaRoad(binding, backend)
    return CpuRoad(binding)


@torch.no_grad()
def _near(change: Callable[[list[Tensor], list[Tensor]], None], to: list[Tensor], of: list[Tensor]) -> None:
    """`change` with what has moved to another device since brought there."""
    change(to, [view.to(tensor.device) for view, tensor in zip(of, to, strict=True)])


def _add(to: list[Tensor], of: list[Tensor]) -> None:
    torch._foreach_add_(to, of)


@torch.no_grad()
def _copy(to: list[Tensor], of: list[Tensor]) -> None:
    torch._foreach_copy_(to, of)


def _move(to: Tensor, of: Tensor, runs: Sequence[tuple[int, int]]) -> None:
    """Copy these runs of a flat vector between host and device; whoever enqueued it waits."""
    for start, stop in runs:
        to[start:stop].copy_(of[start:stop], non_blocking=True)
