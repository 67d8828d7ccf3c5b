"""The few system calls that make a file durable, behind one small value, so that a test can make any of them fail.

Rule: a file is written aside, synced, moved into place, and then its folder is synced. Whoever reads sees the old file
or the new one, whole.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from zdiloco.errors import ConfigError, StoreError

FAILING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""What a disk says that was the right one, and is full or broken."""


def disk_error(what: str, error: OSError) -> ConfigError | StoreError:
    """What to raise where a process that starts cannot do `what`: the place is wrong, or its disk is full or broken."""
    text = f"{what}: {error.strerror or error}"
    return StoreError(text) if error.errno in FAILING else ConfigError(text)


def open_file(path: Path) -> BinaryIO:
    """A file to be read. Raises OSError; also where it is a pipe or a device, whose end might never come."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path.open("rb")


class Disk:
    """The real disk."""

    def put(self, path: Path, data: bytes) -> None:
        """Write `data` aside and move it to `path`; the caller syncs the folder when all is in place."""
        aside = path.with_name(path.name + ".aside")
        descriptor = self.open(aside)
        try:
            view = memoryview(data)
            while view:
                view = view[self.write(descriptor, view) :]
            self.sync(descriptor)
        finally:
            os.close(descriptor)
        self.move(aside, path)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data[: 2**24])

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def move(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
