"""What an inner optimizer remembers of one fragment, as bytes and back: moments and scalars, whatever optimizer it is.

A *moment* is a tensor of its parameter's shape (AdamW: exp_avg, exp_avg_sq), a *scalar* one number per parameter (the
step count). Bytes: every scalar of every tensor, float64, then each moment of the whole fragment in the codec; names
and order follow from the kind, so nothing in the bytes says how long they are. What a peer sent is checked whole.

Rule: methods named `now_*` run on the training thread, at a boundary, and wait for no device; `later_*` elsewhere.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from zdiloco.errors import MalformedFrame
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.device import CpuRoad
from zdiloco.tensor.streams import Backend, Cuda, Event

CODECS = ("bf16", "fp32")
"""Codecs of inner state: those that keep the sign and the scale of each value (docs/decisions/0009-borrowed-state.md).
"""
NEVER_NEGATIVE = frozenset({"exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "sum", "acc_delta"})
"""Second moments of torch's optimizers, by their names there."""
MOST_STEPS = 1e9
MOST_RATIO = 100.0
"""|exp_avg| over the root of exp_avg_sq: Adam's own rule keeps it below 8 with betas 0.9 and 0.999, below 25 in use."""
_OF_STEP = "step"


@dataclass(frozen=True, slots=True)
class Memory:
    """The names of what an optimizer remembers per parameter; `kind` is the same where all of this is the same."""

    kind: str
    moments: tuple[str, ...]
    scalars: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InnerValues:
    """Inner state of one fragment: each moment (n_p,) fp32 and `scalars` (S, T) float64, on the host, once `ready`."""

    fragment: int
    moments: list[Tensor]
    scalars: Tensor
    ready: tuple[Event, ...] = ()


class InnerState:
    """The inner optimizer's state of a bound model, fragment by fragment."""

    def __init__(self, optimizer: Optimizer, binding: Binding, road: CpuRoad, backend: Backend | None = None) -> None:
        self._optimizer, self._binding, self._road = optimizer, binding, road
        self._backend = backend or Cuda()
        self.memory: Memory | None = None

    def now_look(self) -> Memory | None:
        """Say what the optimizer remembers; None: nothing, or not the same of every parameter, so it is nobody's."""
        if self.memory is None:
            every = [(tensor, self._optimizer.state[tensor]) for tensor in self._live() if self._knows(tensor)]
            self.memory = _memory_of(type(self._optimizer), every)
        return self.memory

    def now_remembers(self) -> bool:
        """Whether anything of any step is remembered; what some optimizers make before their first step is not."""
        states = (self._optimizer.state[tensor] for tensor in self._live() if self._knows(tensor))
        return any(float(state.get(_OF_STEP, 1)) > 0 for state in states)

    def now_fragments(self) -> tuple[int, ...]:
        """The fragments of whose every tensor something is remembered."""
        fragments = self._binding.layout.fragments
        return tuple(f.index for f in fragments if f.tensors and all(map(self._knows, self._binding.live(f.index))))

    def now_copy(self, fragment: int) -> InnerValues | None:
        """Copy what is remembered of a fragment; None: nothing, or not of every tensor of it."""
        memory, live = self.now_look(), self._binding.live(fragment)
        if memory is None or not live or not all(map(self._knows, live)):
            return None
        states = [self._optimizer.state[tensor] for tensor in live]
        moments = [self._road.vector(fragment) for _ in memory.moments]
        devices = {device for each in live if (device := self._backend.place(each)) is not None}
        scalars = torch.empty(len(memory.scalars), len(live), dtype=torch.float64, pin_memory=bool(devices))
        for flat, name in zip(moments, memory.moments, strict=True):
            for state, part in zip(states, self._parts(fragment, flat), strict=True):
                part.view(state[name].shape).copy_(state[name].detach(), non_blocking=True)
        for row, name in zip(scalars, memory.scalars, strict=True):
            for place, state in zip(row, states, strict=True):
                place.copy_(torch.as_tensor(state[name]).detach().reshape(()), non_blocking=True)
        return InnerValues(fragment, moments, scalars, self._marks(devices))

    @torch.no_grad()
    def now_load(self, values: InnerValues) -> InnerValues:
        """What is remembered of the fragment becomes these values, whole; tensors that are unknown now are left out.

        What is returned is for `later_release`.
        """
        memory = self.memory
        assert memory is not None
        live = self._binding.live(values.fragment)
        parts = [self._parts(values.fragment, flat) for flat in values.moments]
        for at, tensor in enumerate(live):
            state = self._optimizer.state.get(tensor, {}) if self._knows(tensor) else {}
            for name, each in zip(memory.moments if state else (), parts, strict=False):
                state[name].copy_(each[at].view(state[name].shape), non_blocking=True)
            for name, row in zip(memory.scalars if state else (), values.scalars, strict=False):
                _set_scalar(state, name, float(row[at]))
        devices = {device for each in live if (device := self._backend.place(each)) is not None}
        return replace(values, ready=self._marks(devices))

    def _marks(self, devices: set[torch.device]) -> tuple[Event, ...]:
        return tuple(self._backend.mark(self._backend.current(device)) for device in devices)

    # ---- bytes, on any thread

    def nbytes(self, fragment: int, codec: str) -> int:
        """How many bytes the inner state of this fragment is in a codec of CODECS."""
        assert self.memory is not None
        layout = self._binding.layout.fragments[fragment]
        moments = len(self.memory.moments) * get_codec(codec).encoded_bytes(layout.numel)
        return 8 * len(self.memory.scalars) * len(layout.tensors) + moments

    def later_encode(self, values: InnerValues, codec: str) -> Tensor:
        """Encode a copy, (nbytes,) u8; waits for the device. The copy is used up."""
        for event in values.ready:
            event.synchronize()
        out = torch.empty(self.nbytes(values.fragment, codec), dtype=torch.uint8)
        at = values.scalars.numel() * 8
        out[:at].view(torch.float64).copy_(values.scalars.reshape(-1))
        for moment in values.moments:
            end = at + get_codec(codec).encoded_bytes(moment.numel())
            get_codec(codec).encode(moment, out[at:end])
            at = end
        self.later_release(values)
        return out

    def later_release(self, values: InnerValues) -> None:
        """These are needed no more: waits until no device reads them, then their memory may be used again."""
        for event in values.ready:
            event.synchronize()
        self._road.give_back(values.fragment, values.moments)

    def later_decode(self, fragment: int, codec: str, data: memoryview) -> InnerValues:
        """What a peer's bytes say, checked whole. Raises: MalformedFrame naming what cannot be."""
        memory, layout = self.memory, self._binding.layout.fragments[fragment]
        assert memory is not None
        if codec not in CODECS or data.nbytes != self.nbytes(fragment, codec):
            raise MalformedFrame(f"{data.nbytes} bytes in {codec!r} are no inner state of fragment {fragment}")
        shape = (len(memory.scalars), len(layout.tensors))
        at = 8 * math.prod(shape)
        scalars = torch.frombuffer(bytearray(data[:at]), dtype=torch.float64) if at else torch.empty(0).double()
        moments = []
        for _ in memory.moments:
            end = at + get_codec(codec).encoded_bytes(layout.numel)
            moments.append(get_codec(codec).decode(data[at:end], layout.numel, self._road.vector(fragment)))
            at = end
        values = InnerValues(fragment, moments, scalars.reshape(shape))
        wrong = _first_wrong(memory, values)
        if wrong:
            self.later_release(values)
            raise MalformedFrame(f"the inner state of fragment {fragment} holds {wrong}")
        return values

    # ---- small things

    def _live(self) -> Iterable[Tensor]:
        return (tensor for f in self._binding.layout.fragments for tensor in self._binding.live(f.index))

    def _knows(self, tensor: Tensor) -> bool:
        return bool(self._optimizer.state.get(tensor)) if tensor in self._optimizer.state else False

    def _parts(self, fragment: int, flat: Tensor) -> tuple[Tensor, ...]:
        return flat.split_with_sizes([each.numel for each in self._binding.layout.fragments[fragment].tensors])


def _memory_of(kind: type[Optimizer], every: list[tuple[Tensor, dict[str, Any]]]) -> Memory | None:
    """The names in these states, if all agree; which of them are moments a tensor of several values tells."""
    names = {tuple(sorted(state)) for _, state in every}
    several = [(tensor, state) for tensor, state in every if tensor.numel() > 1]
    if len(names) != 1 or not several:
        return None
    tensor, state = several[0]
    moments = tuple(name for name in names.pop() if _is_moment(tensor, state[name]))
    scalars = tuple(name for name in sorted(state) if name not in moments)
    as_told = all(_is_moment(tensor, state[name]) for tensor, state in every for name in moments)
    if not (moments and as_told and all(_is_scalar(state[name]) for _, state in every for name in scalars)):
        return None
    told = "|".join((kind.__module__, kind.__qualname__, ",".join(moments), ",".join(scalars)))
    return Memory(f"{kind.__name__[:40]}/{hashlib.sha256(told.encode()).hexdigest()[:16]}", moments, scalars)


def _is_moment(tensor: Tensor, value: object) -> bool:
    return isinstance(value, Tensor) and value.shape == tensor.shape and value.is_floating_point()


def _is_scalar(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, int | float) and not isinstance(value, bool)


def _set_scalar(state: dict[str, Any], name: str, value: float) -> None:
    old = state[name]
    if isinstance(old, Tensor):
        old.fill_(value)
    else:
        state[name] = type(old)(value)


def _first_wrong(memory: Memory, values: InnerValues) -> str:
    """Say what of a peer's inner state cannot be; empty: all of it can."""
    named = dict(zip(memory.moments, values.moments, strict=True))
    for name, moment in named.items():
        if not bool(torch.isfinite(moment).all()):
            return f"NaN or infinity in {name}"
        if name in NEVER_NEGATIVE and moment.numel() and float(moment.min()) < 0:
            return f"negative values in {name}"
    for name, row in zip(memory.scalars, values.scalars, strict=True):
        least = 1.0 if name == _OF_STEP else -MOST_STEPS
        if not bool(((row >= least) & (row <= MOST_STEPS)).all()):
            return f"{name} outside {least:g} to {MOST_STEPS:g}"
    if {"exp_avg", "exp_avg_sq"} <= named.keys():
        bound = named["exp_avg_sq"].sqrt().mul_(MOST_RATIO).add_(torch.finfo(torch.float32).tiny ** 0.5)
        if bool((named["exp_avg"].abs() > bound).any()):
            return "first moments that its second moments cannot have"
    return ""
