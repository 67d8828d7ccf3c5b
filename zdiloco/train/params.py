"""The [task] section: what a ready-made learner trains, in which size, on how much data.

Rule: nothing here loads torch, so that `zdiloco config` and a wrong key answer at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from zdiloco.errors import ConfigError
from zdiloco.knobs import knob
from zdiloco.train.schedule import InnerSchedule

MIN_CORPUS_BYTES = 5_000_000
TASKS = ("stdlib-bytes",)


@dataclass(frozen=True, kw_only=True, slots=True)
class GPTConfig:
    """Shape of a `ByteGPT`: `width` must split evenly into `heads`, with an even number of dimensions each."""

    width: int
    heads: int
    layers: int
    mlp_ratio: int = 4

    def __post_init__(self) -> None:
        for key in ("width", "heads", "layers", "mlp_ratio"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is {getattr(self, key)}, but a model needs at least 1")
        if self.width % (2 * self.heads):
            raise ConfigError(f"width is {self.width}, but {self.heads} heads need a multiple of {2 * self.heads}")


PRESETS: Mapping[str, GPTConfig] = MappingProxyType(
    {
        "tiny": GPTConfig(width=96, heads=4, layers=3),  # 0.38 M parameters: the demo, one CPU thread
        "small": GPTConfig(width=256, heads=4, layers=4),  # 3.3 M
        "base": GPTConfig(width=512, heads=8, layers=8),  # 25 M
        "medium": GPTConfig(width=768, heads=12, layers=12),  # 85 M
    }
)


def preset(name: str) -> GPTConfig:
    """Return the shape called `name`. Raises ConfigError with the known names."""
    if name not in PRESETS:
        raise ConfigError(f"task.preset is '{name}', but known are {', '.join(PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskParams:
    """The [task] section; the defaults are the demo's, found by measurement (`baseline.json` holds its curve)."""

    name: str = knob("stdlib-bytes", "which task: bytes of the Python standard library's own sources")
    preset: str = knob("tiny", f"model size: {', '.join(PRESETS)}")
    batch_size: int = knob(8, "sequences in one inner step", "sequences")
    context: int = knob(96, "bytes that the model sees at once", "bytes")
    lr: float = knob(4e-3, "highest inner learning rate; tuned for 'tiny', larger models need less")
    weight_decay: float = knob(0.1, "AdamW's decoupled decay, on matrices only")
    beta1: float = knob(0.9, "AdamW's decay of the first moment")
    beta2: float = knob(0.95, "AdamW's decay of the second moment")
    grad_clip: float = knob(1.0, "largest norm of the whole gradient; 0 never clips")
    warmup_fraction: float = knob(0.02, "share of the run in which the rate rises", "of global progress")
    final_fraction: float = knob(0.1, "share of lr left at the end of the run", "of lr")
    rejoin_warmup_steps: int = knob(20, "inner steps in which the rate rises after each start or join", "steps")
    seed: int = knob(0, "decides initial values and data order")
    num_shards: int = knob(3, "disjoint parts of the training bytes, one a learner", "shards")
    data_dir: str = knob("", "folder of text files to use instead of the standard library; empty: the latter")
    min_data_bytes: int = knob(MIN_CORPUS_BYTES, "refuse to start on less text than this", "bytes")
    validation_batches: int = knob(8, "batches in one evaluation", "batches")
    validation_batch_size: int = knob(32, "sequences in one batch of an evaluation", "sequences")
    device: str = knob("cpu", "torch device of model and batches, such as cpu or cuda:0")

    def __post_init__(self) -> None:
        if self.name not in TASKS:
            raise ConfigError(f"task.name is '{self.name}', but known are {', '.join(TASKS)}")
        preset(self.preset)
        for key in ("batch_size", "context", "num_shards", "validation_batches", "validation_batch_size"):
            self._require(key, 1 <= getattr(self, key) <= 2**20, f"1 to {2**20}")
        for key in ("seed", "min_data_bytes"):
            self._require(key, 0 <= getattr(self, key) <= 2**53, f"0 to {2**53}")
        for key in ("weight_decay", "grad_clip"):
            self._require(key, 0 <= getattr(self, key) < math.inf, "finite and at least 0")
        for key in ("beta1", "beta2"):
            self._require(key, 0 <= getattr(self, key) < 1, "at least 0 and below 1")
        _ = self.schedule  # checks its own four keys

    @property
    def schedule(self) -> InnerSchedule:
        """The road of the inner learning rate."""
        return InnerSchedule(
            lr=self.lr,
            warmup_fraction=self.warmup_fraction,
            final_fraction=self.final_fraction,
            rejoin_warmup_steps=self.rejoin_warmup_steps,
        )

    @property
    def tokens_per_step(self) -> int:
        """Bytes predicted in one inner step."""
        return self.batch_size * self.context

    def _require(self, key: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ConfigError(f"task.{key} is {getattr(self, key)}, but must be {allowed}")
