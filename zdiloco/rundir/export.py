"""A cut as one safetensors file with the model's own names, which plain torch and others load.

Rule: written fragment by fragment, so no more than one is in memory. Tied weights stand under each of their names,
which `load_state_dict` wants; what does not travel is not in a checkpoint, and comes from a base file or stays out.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import safetensors
import torch
from torch import Tensor

from zdiloco.errors import ConfigError, StoreError
from zdiloco.rundir.archive import FOLDER, READ_AGAIN, Archive, OpenCut
from zdiloco.rundir.fitting import check_fragment, layout_of
from zdiloco.rundir.manifest import ForeignCheckpoint, number_of
from zdiloco.rundir.tensorfile import TYPES, Kind, TensorFile
from zdiloco.tensor.layout import Fragment, Layout
from zdiloco.tensor.spec import TensorKind, TensorSpec

log = logging.getLogger(__name__)

OWN = "own"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
COUNTER = "num_batches_tracked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What to export: cut `number` (None: the newest whole one), parameters as `dtype`: OWN or a key of DTYPES.

    `base`: a safetensors file of the whole model, for what does not travel; `force`: overwrite.
    """

    number: int | None = None
    dtype: str = OWN
    base: Path | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What has been written. `from_base`: tensors of the base file; `local`: counters that each learner keeps."""

    path: Path
    number: int
    tensors: int
    nbytes: int
    ties: tuple[tuple[str, ...], ...]
    from_base: tuple[str, ...]
    local: tuple[str, ...]


class _Unreadable(Exception):
    """This cut cannot be exported; another one perhaps can."""


class _Base:
    """What a base file has beside the tensors of the layout. Raises ConfigError where it is of another model."""

    def __init__(self, path: Path | None, layout: Layout) -> None:
        self.kinds: dict[str, Kind] = {}
        if path is None:
            return
        try:
            self._file = cast(Any, safetensors.safe_open(path, framework="pt"))
            names = list(self._file.keys())
        except (OSError, safetensors.SafetensorError) as error:
            raise ConfigError(f"{path} cannot be read as a safetensors file: {error}") from error
        ours = {name: spec for spec in layout.tensors for name in _names(spec, layout)}
        for name in names:
            found = self._file.get_slice(name)
            dtype, shape = found.get_dtype(), tuple(found.get_shape())
            if name in ours and shape != ours[name].shape:
                raise ConfigError(
                    f"{path} is of another model: {name!r} is {list(shape)} there, {list(ours[name].shape)} here"
                )
            if name not in ours and dtype not in TYPES:
                raise ConfigError(f"{path}: tensor {name!r} is {dtype}, which is not known here")
            if name not in ours:
                self.kinds[name] = Kind(TYPES[dtype], shape)

    def read(self, name: str) -> Tensor:
        """One tensor of the file."""
        values: Tensor = self._file.get_tensor(name)
        return values


def export(run_dir: Path, out: Path, wanted: Wanted) -> Exported:
    """Write a cut of a run, at work or over, to `out`; afterwards it is there whole, or as it was.

    Raises ConfigError for what is missing, damaged, in the way or of another model; StoreError for a full disk.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"there is no run folder {run_dir}")
    _check_place(run_dir, out, wanted.force)
    for _ in range(READ_AGAIN):
        done = _export_first(_candidates(run_dir, wanted.number), out, wanted)
        if done is not None:
            return done
    raise ConfigError(f"{run_dir} is written to faster than it can be read")


def _check_place(run_dir: Path, out: Path, force: bool) -> None:
    """Raise ConfigError unless a file may be written there."""
    try:
        there, file, folder = out.exists(), out.is_file(), out.is_dir()
        own = out.resolve().parent == (run_dir / FOLDER).resolve()
    except (OSError, RuntimeError) as error:  # a name that is too long; links that go round
        raise ConfigError(f"cannot write {out}: {getattr(error, 'strerror', None) or error}") from error
    if own:  # it might be a file of a checkpoint; and whatever else is in there, a syncer removes
        raise ConfigError(f"{out} is in the checkpoint folder of the run, which is the syncer's: name another place")
    if there and not file:
        raise ConfigError(f"{out} is a folder" if folder else f"{out} is no regular file: name another place")
    if there and not force:
        raise ConfigError(f"{out} exists: --force overwrites it")


def _export_first(paths: Sequence[Path], out: Path, wanted: Wanted) -> Exported | None:
    """Export the first of these that is whole; None: a syncer has removed one meanwhile, there is a newer one.

    Raises ConfigError where none is whole.
    """
    reasons = []
    for path in paths:
        try:
            return _export(path, out, wanted)
        except _Unreadable as error:
            if not path.exists():
                return None
            reasons.append(str(error))
            log.warning("checkpoint passed over why=%r", str(error))
    raise ConfigError("no checkpoint is whole: " + "; ".join(reasons))


def _candidates(run_dir: Path, number: int | None) -> list[Path]:
    """The manifests that may be meant, newest first. Raises ConfigError where there is none."""
    paths = Archive(run_dir).manifests()
    if not paths:
        raise ConfigError(f"{run_dir} holds no checkpoint")
    if number is None:
        return paths
    found = {number_of(path): path for path in paths}
    if number not in found:
        raise ConfigError(f"{run_dir} holds no cut {number}; it holds {', '.join(map(str, sorted(found)))}")
    return [found[number]]


def _export(path: Path, out: Path, wanted: Wanted) -> Exported:
    try:
        opened = OpenCut(path)
    except ForeignCheckpoint as error:
        raise ConfigError(str(error)) from error
    except StoreError as error:
        raise _Unreadable(str(error)) from error
    with opened:
        try:
            opened.check_sizes()
            layout = layout_of(opened.layout(), opened.manifest.layout_digest, len(opened.manifest.fragments))
        except (StoreError, ConfigError) as error:
            raise _Unreadable(str(error)) from error
        return _write(opened, layout, out, wanted)


def _write(opened: OpenCut, layout: Layout, out: Path, wanted: Wanted) -> Exported:
    base = _Base(wanted.base, layout)
    kinds = dict(base.kinds)
    for spec in layout.tensors:
        kinds |= dict.fromkeys(_names(spec, layout), Kind(_dtype(spec, wanted.dtype), spec.shape))
    with TensorFile(out, kinds, _metadata(opened, layout)) as file:
        for fragment in layout.fragments:
            _put(file, fragment, layout, _theta(opened, fragment))
        for name in base.kinds:
            file.put(name, base.read(name))
    return Exported(
        path=out,
        number=opened.number,
        tensors=len(kinds),
        nbytes=file.nbytes,
        ties=layout.ties,
        from_base=tuple(sorted(base.kinds)),
        local=tuple(name for name in _counters(layout) if name not in kinds),
    )


def _put(file: TensorFile, fragment: Fragment, layout: Layout, theta: Tensor) -> None:
    parts = theta.split_with_sizes([spec.numel for spec in fragment.tensors])
    for spec, part in zip(fragment.tensors, parts, strict=True):
        for name in _names(spec, layout):
            file.put(name, part)


def _theta(opened: OpenCut, fragment: Fragment) -> Tensor:
    """The values of a fragment, (n_p,) fp32."""
    try:
        part = opened.fragment(fragment.index)
        check_fragment(fragment, part)
    except (StoreError, ConfigError) as error:
        raise _Unreadable(str(error)) from error
    return part.theta


def _names(spec: TensorSpec, layout: Layout) -> tuple[str, ...]:
    """All names of a travelling tensor."""
    return next((tie for tie in layout.ties if tie[0] == spec.name), (spec.name,))


def _dtype(spec: TensorSpec, wanted: str) -> torch.dtype:
    """Parameters as they are wanted; buffers keep their own type."""
    own: torch.dtype = getattr(torch, spec.dtype)
    return own if spec.kind is TensorKind.BUFFER else DTYPES.get(wanted, own)


def _counters(layout: Layout) -> list[str]:
    """Counters of normalisation layers whose statistics travel: each learner counts its own batches."""
    means = [spec.name for spec in layout.tensors if spec.name.split(".")[-1] == "running_mean"]
    return [name.removesuffix("running_mean") + COUNTER for name in means]


def _metadata(opened: OpenCut, layout: Layout) -> dict[str, str]:
    manifest = opened.manifest
    return {
        "format": "pt",
        "zdiloco.run_id": manifest.run_id,
        "zdiloco.cut": str(opened.number),
        "zdiloco.epoch": str(manifest.epoch.counter),
        "zdiloco.versions": json.dumps([entry.stamp[2] for entry in manifest.fragments]),
        "zdiloco.merged_tokens": str(round(manifest.progress_tokens)),
        "zdiloco.ties": json.dumps(layout.ties),
    }
