"""Small disks of a test's own: root only."""

import os
import subprocess
from pathlib import Path

import pytest


def mount_tmpfs(folder: Path, options: str) -> bool:
    """Put a tmpfs with these options at `folder`; False: this machine, or this user, cannot."""
    if os.geteuid():
        return False
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def unmount(folder: Path) -> None:
    """Let the folder be removed, mounted or not."""
    if folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)
    folder.chmod(0o755)


def skip_unless_ci() -> None:
    """Skip a test that needs `mount_tmpfs` where it does not work; in CI it must."""
    if not os.environ.get("CI"):
        pytest.skip("needs a disk of its own: root, and the right to mount a tmpfs")
