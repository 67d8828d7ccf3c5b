"""A safetensors file that is planned first and filled in any order, so that its tensors need not all be in memory.

Rule: written aside and moved into place when it is whole. Wider types come first, so every tensor is aligned to its
own, as readers want it.
"""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor

from zdiloco.errors import MachineError
from zdiloco.rundir.disk import disk_error
from zdiloco.wire.frames import Buffer

TYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""What a safetensors file can hold, and what it calls it."""
TYPES = {name: dtype for dtype, name in TYPE_NAMES.items()}
ALIGNMENT = 8


class Kind(NamedTuple):
    """What a tensor of the file is."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class TensorFile:
    """The file under way. `put` every tensor once; leaving the block without an error moves it into place.

    What the disk refuses is ConfigError or StoreError, as `disk_error` tells them apart.
    """

    def __init__(self, path: Path, kinds: Mapping[str, Kind], metadata: Mapping[str, str]) -> None:
        self.path, self.kinds = path, kinds
        self._aside = path.with_name(path.name + ".aside")
        head, self._starts, self.nbytes = planned(kinds, metadata)
        self._left = set(kinds)
        try:
            self._file = self._aside.open("wb")
        except OSError as error:
            raise self._refused(error) from error
        try:
            self._file.write(head)
        except OSError as error:
            self._let_go()
            raise self._refused(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None and self._left:
                raise MachineError(f"{len(self._left)} tensors of {self.path} were never put")
            if kind is None:
                self._file.truncate(self.nbytes)  # where the last ones are empty
                self._file.flush()
                os.fsync(self._file.fileno())
                os.replace(self._aside, self.path)
        except OSError as refused:
            raise self._refused(refused) from refused
        finally:
            self._let_go()

    def put(self, name: str, values: Tensor) -> None:
        """Write one tensor, rounded to the type that was planned; its shape must be the planned one."""
        kind = self.kinds[name]
        data = values.detach().to("cpu", kind.dtype).reshape(kind.shape).contiguous()
        self._left.remove(name)
        try:
            self._file.seek(self._starts[name])
            self._file.write(cast(Buffer, data.reshape(-1).view(torch.uint8).numpy()))
        except OSError as error:
            raise self._refused(error) from error

    def _let_go(self) -> None:
        """Close the file and remove it where it has not been moved. What is buffered and finds no room is said by then,
        or belongs to a file that nobody wants any more."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._aside.unlink(missing_ok=True)

    def _refused(self, error: OSError) -> Exception:
        return disk_error(f"cannot write {self.path}", error)


def planned(kinds: Mapping[str, Kind], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int], int]:
    """The head of a file, where in it each tensor begins, in the order in which they lie, and its length."""
    table: dict[str, object] = {"__metadata__": dict(metadata)}
    offsets: dict[str, int] = {}
    end = 0
    for name in sorted(kinds, key=lambda name: (-kinds[name].dtype.itemsize, name)):
        kind = kinds[name]
        offsets[name], end = end, end + kind.nbytes
        table[name] = {"dtype": TYPE_NAMES[kind.dtype], "shape": list(kind.shape), "data_offsets": [offsets[name], end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    return head, {name: len(head) + offset for name, offset in offsets.items()}, len(head) + end
