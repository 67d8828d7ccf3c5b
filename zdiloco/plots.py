"""Pictures without a display: matplotlib is optional, and asked for only when something is drawn.

Rule: where it is missing, one line says what to install.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zdiloco.errors import ConfigError, StoreError

KINDS = (".png", ".pdf", ".svg")


def require() -> None:
    """Raise ConfigError where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("the picture wants matplotlib, which is not installed: pip install 'zdiloco[plots]'")


def check_name(path: Path) -> None:
    """Raise ConfigError where matplotlib is missing, or the name does not say which kind of picture it is."""
    require()
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"the picture {path} must be called *{', *'.join(KINDS)}")


@contextmanager
def figure(width: float, height: float) -> Iterator[Any]:
    """A figure of so many inches, freed afterwards."""
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(made)
    yield made
    made.clear()


def save(made: Any, path: Path) -> None:
    """Write a figure as the kind that its name says. Raises StoreError where the disk refuses."""
    try:
        made.savefig(path, format=path.suffix.lower().removeprefix("."))
    except OSError as error:
        raise StoreError(f"cannot write the picture {path}: {error.strerror}") from error
