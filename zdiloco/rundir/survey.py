"""All cuts of a run folder as a reader finds them, whether a syncer writes and prunes there or not.

Rule: what a syncer has removed meanwhile was no fault; whoever reads looks whether the manifest is still there before
it complains. A file that no manifest names is told, and is no fault: a save may be under way, or was broken off.
"""

from dataclasses import dataclass
from pathlib import Path

from zdiloco.errors import ConfigError, StoreError
from zdiloco.rundir.archive import FOLDER, Archive, OpenCut
from zdiloco.rundir.fitting import check_fragment, layout_of
from zdiloco.rundir.manifest import Manifest, number_of
from zdiloco.tensor.layout import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One cut. `written_at`: seconds since 1970; `nbytes`: of all files that it names; `why`: it is not whole, or ''.

    `manifest` None: it cannot be read; `layout` None: nor can the layout.
    """

    number: int
    path: Path
    written_at: float
    manifest: Manifest | None
    layout: Layout | None
    nbytes: int
    why: str

    @property
    def merged_tokens(self) -> float | None:
        """Tokens merged into it, weighed by parameter share."""
        if self.manifest is None or self.layout is None:
            return None
        merged = [sum(row.tokens for row in entry.map) for entry in self.manifest.fragments]
        return sum(share * each for share, each in zip(self.layout.shares, merged, strict=True))


def survey(run_dir: Path) -> list[Seen]:
    """The cuts of a run folder, newest first, by their manifests and the sizes of their files.

    Raises ConfigError where there is no run folder.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"there is no run folder {run_dir}")
    looked = [_look(path) for path in Archive(run_dir).manifests()]
    return [seen for seen in looked if seen is not None]


def _look(path: Path) -> Seen | None:
    """What there is of a cut; None: it has been removed meanwhile."""
    manifest, layout, nbytes, why = None, None, 0, ""
    try:
        with OpenCut(path) as opened:
            manifest = opened.manifest
            nbytes = path.stat().st_size + (path.parent / manifest.layout).stat().st_size + opened.check_sizes()
            layout = layout_of(opened.layout(), manifest.layout_digest, len(manifest.fragments))
    except (StoreError, ConfigError) as error:
        why = str(error)
    except OSError as error:
        why = f"{error.filename} cannot be read: {error.strerror}"
    try:
        written_at = path.stat().st_mtime
    except OSError:
        return None
    return Seen(
        number=number_of(path), path=path, written_at=written_at, manifest=manifest, layout=layout, nbytes=nbytes,
        why=why,
    )  # fmt: skip


def faults_of(path: Path) -> list[str]:
    """What is wrong with a cut, every file of it read: one line a fault; none where it is whole or has been removed."""
    found: list[str] = []
    layout = None
    try:
        with OpenCut(path) as opened:
            try:
                layout = layout_of(opened.layout(), opened.manifest.layout_digest, len(opened.manifest.fragments))
            except (StoreError, ConfigError) as error:
                found.append(f"{path.name}: {error}")
            found += [why for index in range(len(opened.manifest.fragments)) if (why := _fault(opened, index, layout))]
    except StoreError as error:
        found.append(str(error))
    return found if path.exists() else []


def _fault(opened: OpenCut, index: int, layout: Layout | None) -> str:
    """What is wrong with one fragment; empty: nothing."""
    try:
        part = opened.fragment(index)
        if layout is not None:
            check_fragment(layout.fragments[index], part)
    except StoreError as error:
        return str(error)
    except ConfigError as error:
        return f"{opened.path.name}: {error}"
    return ""


def leftovers(run_dir: Path) -> list[str]:
    """Names of files in the checkpoint folder that no manifest there names, in order."""
    folder = run_dir / FOLDER
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    for path in Archive(run_dir).manifests():
        names.discard(path.name)
        try:
            with OpenCut(path) as opened:
                names -= {opened.manifest.layout, *(entry.file for entry in opened.manifest.fragments)}
        except StoreError:  # a fault of its own
            continue
    return sorted(name for name in names if (folder / name).exists())
