"""What one tensor of a model is: its name, shape, dtype and kind.

A spec is a value without storage. It crosses the wire inside a layout, so every field is checked at the door and
nothing is ever allocated because a spec says so.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from zdiloco.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16", "float64")
MAX_NAME_CHARS = 512
MAX_RANK = 16
MAX_NUMEL = 2**40  # elements of one tensor, and of one layout


class TensorKind(StrEnum):
    """What a tensor is to the merge: embeddings and buffers are averaged plainly, the rest may be merged by RDA."""

    EMBEDDING = "embedding"
    MATRIX = "matrix"
    VECTOR = "vector"
    BUFFER = "buffer"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """Describes one travelling tensor; `numel` is the product of `shape`, 1 for a zero-dimensional tensor.

    Raises: ConfigError where a field is out of bounds.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    numel: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.name) is not str or not 0 < len(self.name) <= MAX_NAME_CHARS:
            raise ConfigError(f"a tensor name must have 1 to {MAX_NAME_CHARS} characters, got {str(self.name)[:80]!r}")
        if type(self.shape) is not tuple or len(self.shape) > MAX_RANK:
            raise ConfigError(f"tensor {self.name!r}: the shape must be a tuple of at most {MAX_RANK} sizes")
        if any(type(size) is not int or not 0 <= size <= MAX_NUMEL for size in self.shape):
            raise ConfigError(f"tensor {self.name!r}: each size must be a whole number from 0 to {MAX_NUMEL}")
        if self.dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise ConfigError(f"tensor {self.name!r}: dtype {self.dtype!r} cannot travel; known are {known}")
        if type(self.kind) is not TensorKind:
            raise ConfigError(f"tensor {self.name!r}: unknown kind {self.kind!r}")
        numel = math.prod(self.shape)
        if numel > MAX_NUMEL:
            raise ConfigError(f"tensor {self.name!r}: {numel} elements are more than {MAX_NUMEL}")
        object.__setattr__(self, "numel", numel)

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype} {list(self.shape)} {self.kind}"
