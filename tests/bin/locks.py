"""What the locks say, for the tests: each pin with its sums."""

import dataclasses
import pathlib
import re

from packaging.requirements import Requirement

from tests.bin.conftest import ROOT

SHIPPED = ("requirements.lock", "locks/torch.lock", "locks/torch-cpu.lock", "locks/release.lock")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pin:
    """One entry of a lock: a package at one version, on the machines of its marker, and the SHA-256 of its files."""

    asked: Requirement
    sums: tuple[str, ...]

    @property
    def version(self) -> str:
        return str(self.asked.specifier).removeprefix("==")


def pins(name: str, root: pathlib.Path = ROOT) -> list[Pin]:
    """Read a lock. Raises ValueError for a line that is neither comment, pin nor sum."""
    found = []
    for entry in re.sub(r" *\\\n +", " ", (root / name).read_text()).splitlines():
        if entry and not entry.startswith("#"):
            asked, *sums = re.split(r" +--hash=sha256:", entry)
            if not all(re.fullmatch("[0-9a-f]{64}", each) for each in sums):
                raise ValueError(f"{name}: what is this? {entry[:200]}")
            found.append(Pin(asked=Requirement(asked), sums=tuple(sums)))
    return found


def pinned_here(name: str = "requirements.lock") -> list[Requirement]:
    """What a lock pins for this machine."""
    asked = [each.asked for each in pins(name)]
    return [each for each in asked if each.marker is None or each.marker.evaluate()]
