"""Runs `zdiloco` with what a unit leaves it of the kernel: `python -m tests.systemd.confined UNIT WORDS...`

Rule: the filter is the one that systemd makes of SystemCallFilter= and RestrictAddressFamilies=, by the same library
(libseccomp), whatever runs this machine. Users, folders and devices are as they are.
"""

import ctypes
import ctypes.util
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PLACE = Path(__file__).parent.parent.parent / "config" / "systemd"
ALLOW, DENY = 0x7FFF0000, 0x00050000
"""What libseccomp calls its actions; an error number is added to the second."""
EQUAL = 4
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
MOST_FAMILIES = 46


class Condition(ctypes.Structure):
    """That an argument of a call compares so with a number (`struct scmp_arg_cmp`)."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def why_not() -> str:
    """Why nothing can be confined here; empty: it can."""
    return "" if ctypes.util.find_library("seccomp") else "no libseccomp: it comes with systemd"


def values(unit: str, key: str) -> list[str]:
    """What a unit has for a key, in its order."""
    lines = (PLACE / unit).read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def calls_in(group: str) -> Iterator[str]:
    """The system calls of a group, as systemd has them."""
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, timeout=60, check=True
    )
    for line in told.stdout.splitlines()[1:]:
        if name := line.partition("#")[0].strip():
            yield from calls_in(name) if name.startswith("@") else [name]


def allowed_calls(unit: str) -> set[str]:
    """The system calls that a unit leaves: the first list allows, others take away (~) or give back."""
    left: set[str] = set()
    for value in values(unit, "SystemCallFilter"):
        names = {name for word in value.lstrip("~").split() for name in (calls_in(word) if word[0] == "@" else [word])}
        left = left - names if value.startswith("~") else left | names
    return left


def confine(unit: str) -> None:
    """Have this process and those that come of it make only the calls that a unit leaves; there is no way back."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"))
    library.seccomp_init.restype = ctypes.c_void_p
    (number,) = (getattr(errno, name) for name in values(unit, "SystemCallErrorNumber"))
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(DENY | number)))
    families = {FAMILIES[name] for value in values(unit, "RestrictAddressFamilies") for name in value.split()}
    call = library.seccomp_syscall_resolve_name

    def add(action: int, name: str, *conditions: Condition) -> None:
        array = (Condition * len(conditions))(*conditions)
        code = library.seccomp_rule_add_array(context, ctypes.c_uint32(action), call(name.encode()), len(array), array)
        assert code == 0, (name, code)

    for name in sorted(allowed_calls(unit) - {"socket"}):
        if call(name.encode()) >= 0:  # below: this machine has none of that name
            add(ALLOW, name)
    for family in range(MOST_FAMILIES):
        action = ALLOW if family in families else DENY | errno.EAFNOSUPPORT
        add(action, "socket", Condition(0, EQUAL, family, 0))
    code = library.seccomp_load(context)
    assert code == 0, code


if __name__ == "__main__":
    confine(sys.argv[1])
    os.execv(sys.executable, [sys.executable, "-m", "zdiloco.cli", *sys.argv[2:]])
