"""The coverage-guided engine: `python -m tests.fuzz.engine PARSER FOLDER [OPTION OF LIBFUZZER ...]`.

It tries inputs that are changed from those in FOLDER, and goes on from whichever reaches new code of zdiloco; those it
adds to FOLDER. A fault ends it with an exit code other than 0, the traceback, and the input as a file in FOLDER.

Rule: an input may take STALL_S seconds and MEMORY_BYTES of address space, not more.
"""

import logging
import os
import resource
import sys
from pathlib import Path

import atheris

MEMORY_BYTES = 2**29
STALL_S = 10

with atheris.instrument_imports(include=["zdiloco", "tomllib"]):
    import tomllib  # noqa: F401 - so that its code is watched too

    from tests.fuzz.target import Target, accepts
    from tests.fuzz.targets import TARGETS


def fuzz(target: Target, folder: Path, options: list[str]) -> None:
    """Hand the process over to libFuzzer, which ends it."""
    logging.disable()
    for data in target.seeds():
        assert accepts(target, data), f"the seed {data.hex()} of {target.name} is refused"
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES, in_use + MEMORY_BYTES))

    def one(data: bytes) -> None:
        accepts(target, data)

    always = [f"-timeout={STALL_S}", "-rss_limit_mb=0", "-max_len=4096", f"-artifact_prefix={folder}/fault-"]
    atheris.Setup([sys.argv[0], *always, *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(TARGETS[sys.argv[1]], Path(sys.argv[2]), sys.argv[3:])
