"""A lab of `bin/wan-lab` as a stage for tests: its first region is region 0."""

import os
from pathlib import Path

from tests.wan.lab import Shaped
from zdiloco.wanlab import lab, profile

PROFILES = Path(__file__).parent.parent.parent / "config" / "wan"


class PutUp(Shaped):
    """A shipped profile that is up until it is closed, whoever closes it: the next one of this name takes it down."""

    def __init__(self, name: str) -> None:
        self.lab = lab.Lab(f"w{os.getpid()}")
        with self.lab.locked():
            self.state = self.lab.up(profile.load(name, PROFILES), "auto")
        self.names = [each.namespace for each in self.state.regions]
        self.links = []

    def near(self, region: int) -> str:
        return self.state.regions[0].address

    def change(self, link: str, **words: str) -> None:
        """What `bin/wan-lab set` does."""
        with self.lab.locked():
            self.lab.change(link, words)

    def partition(self, region: str) -> None:
        """What `bin/wan-lab partition` does."""
        with self.lab.locked():
            self.lab.cut([region], cut=True)

    def heal(self) -> None:
        """What `bin/wan-lab heal` does."""
        with self.lab.locked():
            self.lab.cut([], cut=False)

    def close(self) -> None:
        with self.lab.locked():
            self.lab.down()
        (lab.RUN / f"{self.lab.name}.{lab.LOCK}").unlink()
