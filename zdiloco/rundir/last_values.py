"""What a learner that gave up leaves behind: the values of its own model, as one safetensors file.

Rule: the tensors that travel, under the model's own names and in their own types, so the file may be a `run.init`. It
is written aside and moved into place.
"""

import logging
from pathlib import Path

from zdiloco.errors import ConfigError, StoreError
from zdiloco.rundir.disk import disk_error
from zdiloco.rundir.tensorfile import Kind, TensorFile
from zdiloco.tensor.binding import Binding

log = logging.getLogger(__name__)


def leave_last(run_dir: Path, name: str, binding: Binding) -> None:
    """Write `learners/NAME-last.safetensors` and say where it is; or why it is not there, for whoever still holds the
    model."""
    path = run_dir / "learners" / f"{name}-last.safetensors"
    try:
        _write(path, binding)
    except (ConfigError, StoreError) as error:
        log.error("%s leaves no values behind why=%r", name, str(error))
    else:
        log.warning("%s leaves its values in %s", name, path)


def _write(path: Path, binding: Binding) -> None:
    values = {
        tensor.name: live
        for fragment in binding.layout.fragments
        for tensor, live in zip(fragment.tensors, binding.live(fragment.index), strict=True)
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(f"cannot write {path}", error) from error
    kinds = {name: Kind(live.dtype, tuple(live.shape)) for name, live in values.items()}
    with TensorFile(path, kinds, {"format": "pt"}) as file:
        for name, live in values.items():
            file.put(name, live)
