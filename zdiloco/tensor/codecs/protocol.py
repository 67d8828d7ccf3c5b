"""What every codec is: a pair of pure functions between flat fp32 values and bytes, and two ways to merge without a
full decoding.

Bytes are little-endian and their number follows from the number of values alone, so a receiver never trusts a length
that a peer declares. A value that is not finite stays visible: after decoding something is not finite.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from zdiloco.errors import MachineError, MalformedFrame

Encoded: TypeAlias = Tensor | bytes | bytearray | memoryview


class Payload(Protocol):
    """One encoded vector, opened for reading; it keeps the bytes alive and copies nothing."""

    def squares(self, cuts: Sequence[int]) -> tuple[float, ...]:
        """Return the sum of squares of each tensor, in float64; `cuts`: where each starts, none: one tensor."""
        ...

    def add_to(self, acc: Tensor, start: int, factor: float, scratch: Tensor) -> None:
        """acc += factor * decoded[start : start + len(acc)]; acc and scratch fp32, len(acc) <= len(scratch)."""
        ...


class Codec(Protocol):
    """Turns n fp32 values into `encoded_bytes(n)` bytes and back."""

    @property
    def name(self) -> str:
        """The name by which configuration and wire call it."""
        ...

    def encoded_bytes(self, numel: int) -> int:
        """Return the exact number of bytes of `numel` encoded values."""
        ...

    def encode(self, values: Tensor, out: Tensor | None = None) -> Tensor:
        """Encode (n,) fp32 into (encoded_bytes(n),) uint8 and return it; into `out` where one is given."""
        ...

    def decode(self, data: Encoded, numel: int, out: Tensor | None = None) -> Tensor:
        """Decode to (numel,) fp32, never a view of `data`. Raises: MalformedFrame for a wrong length."""
        ...

    def open(self, data: Encoded, numel: int) -> Payload:
        """Return `data` ready to be merged. Raises: MalformedFrame for a wrong length."""
        ...


class _Memory:
    """Shows read-only bytes to numpy as an array; torch would warn about them, and nothing here writes to them."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._array = np.frombuffer(data, dtype=np.uint8)
        address = self._array.__array_interface__["data"][0]
        shape = self._array.shape
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}


def as_bytes(data: Encoded, wanted: int, codec: str) -> Tensor:
    """Return `data` as (wanted,) uint8 on a multiple of 4 bytes, without a copy where memory allows.

    Raises: MalformedFrame where it is not `wanted` bytes long.
    """
    have = data.numel() if isinstance(data, Tensor) else memoryview(data).nbytes
    if have != wanted:
        raise MalformedFrame(f"a {codec} payload has {have} bytes where {wanted} are right")
    if not have:
        return torch.empty(0, dtype=torch.uint8)
    tensor = data if isinstance(data, Tensor) else torch.from_numpy(np.asarray(_Memory(data)))
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1:
        raise MachineError(f"encoded bytes must be a flat uint8 tensor, got {tensor.dtype} {tuple(tensor.shape)}")
    if not tensor.is_contiguous() or tensor.data_ptr() % 4 or tensor.storage_offset() % 4:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def flat_values(values: Tensor) -> Tensor:
    """Return `values` if they are (n,) fp32, contiguous, on the cpu. Raises: MachineError otherwise."""
    if values.dtype is not torch.float32 or values.dim() != 1 or values.device.type != "cpu":
        raise MachineError(f"a codec takes flat float32 on the cpu, got {values.dtype} {tuple(values.shape)}")
    return values.detach().contiguous()


def output(out: Tensor | None, length: int, dtype: torch.dtype) -> Tensor:
    """Return `out`, or a new (length,) tensor. Raises: MachineError where `out` has another length or dtype."""
    if out is None:
        return torch.empty(length, dtype=dtype)
    if out.shape != (length,) or out.dtype is not dtype or not out.is_contiguous():
        raise MachineError(f"out must be ({length},) {dtype} contiguous, got {tuple(out.shape)} {out.dtype}")
    return out
