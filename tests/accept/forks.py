"""What stages fork commands and scripts from: `python -m tests.accept.forks`, a process that has loaded everything.

Most of what a start of a Python program costs is loading torch: two seconds of work each, which would be most of what
these tests do, and on a busy machine most of what they wait for. What a fork does from there on is what the program
does (`zdiloco/chaos/nursery.py`).
"""

import os
import runpy
import sys
from collections.abc import Sequence

import zdiloco.demo.evaluation  # noqa: F401 - loaded for who is forked
from tests.net.namespaces import enter
from zdiloco.chaos.nursery import serve
from zdiloco.cli.main import run


def begin(arguments: Sequence[str]) -> int:
    """In a fork: go to a folder and a network namespace (empty: stay), have errors written to a file of their own, and
    be a script or a `zdiloco` command."""
    folder, errors, namespace, *words = arguments
    if namespace:
        enter(namespace)
    os.chdir(folder)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
    sys.argv = words if words[0].endswith(".py") else ["zdiloco", *words]
    if sys.argv[0] == "zdiloco":
        return run(words)
    sys.path[0] = os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    serve(begin)
