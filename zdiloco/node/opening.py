"""What a syncer finds in its run folder when it starts, and whether it may go on from it.

Rule: what cannot be gone on from is the user's to decide; nothing is passed over, moved or removed here.
"""

from pathlib import Path

import safetensors

from zdiloco.errors import ConfigError, StoreError
from zdiloco.node.params import RunParams
from zdiloco.rundir.archive import Cut
from zdiloco.rundir.store import Store
from zdiloco.units import RUN_NAME_CHARS, run_name_in


def load_cut(store: Store, run: RunParams, *, fresh: bool) -> Cut | None:
    """The checkpoint to go on from; None: a new run, and what `run.init` names can be read.

    Raises ConfigError for a checkpoint that is not whole, of another run, or there at all where `fresh` is asked for.
    """
    try:
        cut = store.load()
    except StoreError as error:
        raise ConfigError(f"run.dir {run.dir}: {error}; bring a whole one back, or take another run.dir") from error
    if cut is None:
        if run.init != "first":
            check_init(Path(run.init))
        return None
    if fresh:
        raise ConfigError(f"run.dir {run.dir} holds a checkpoint: --fresh wants a folder without one")
    if run_name_in(cut.run_id) != run.name[:RUN_NAME_CHARS]:
        raise ConfigError(
            f"run.dir {run.dir} holds a checkpoint of run {cut.run_id!r}, but run.name is {run.name!r}: take another "
            f"run.dir, or the name of that run"
        )
    return cut


def check_init(path: Path) -> None:
    """Raise ConfigError unless `path` is a safetensors file, by its head; its tensors are judged with the layout."""
    try:
        with safetensors.safe_open(path, framework="pt"):
            pass
    except (OSError, safetensors.SafetensorError) as error:
        raise ConfigError(f"run.init {path} cannot be read as a safetensors file: {error}") from error
