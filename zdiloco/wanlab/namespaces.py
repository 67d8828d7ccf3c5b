"""Network namespaces by the commands `ip` and `tc`: wants root.

Rule: a command that fails raises `LabError` with what it said. Only threads that `enter` a namespace are in it, and
what they open stays there.
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from zdiloco.errors import LabError

CLONE_NEWNET = 0x40000000
NETNS = Path("/run/netns")
LIMIT_S = 30.0


def command(*words: str) -> str:
    """Run a command and return its output. Raises LabError."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{' '.join(words)}: {error}") from error
    if done.returncode:
        raise LabError(f"{' '.join(words)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def ip(*words: str) -> str:
    """Run `ip`. Raises LabError."""
    return command("ip", *words)


def tc(*words: str) -> str:
    """Run `tc`. Raises LabError."""
    return command("tc", *words)


def why_not(probe: str) -> str:
    """Why there can be no namespaces here, and what to do; empty: there can. `probe`: a free name to try it with."""
    missing = [each for each in ("ip", "tc") if shutil.which(each) is None]
    if missing:
        return f"network namespaces want the command {missing[0]}: apt-get install iproute2"
    if os.geteuid() != 0:
        return "network namespaces want root: run it by sudo, or as root in a container with NET_ADMIN and SYS_ADMIN"
    try:
        ip("netns", "add", probe)
    except LabError as error:
        return f"network namespaces are not to be had here: {error}"
    ip("netns", "del", probe)
    return ""


def namespaces() -> list[str]:
    """Names of all that there are."""
    try:
        return sorted(each.name for each in NETNS.iterdir())
    except OSError:  # nobody has made one since the machine started
        return []


def enter(name: str) -> None:
    """Put the calling thread into the namespace of this name, for the rest of its life. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(NETNS / name, os.O_RDONLY)
    try:
        if libc.setns(handle, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(handle)
