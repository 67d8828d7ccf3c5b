"""The coverage-guided engine: `python -m tests.fuzz.engine`, which loads everything once and forks for each parser.

One order a line on standard input, as JSON: PARSER, FOLDER, LOG, [OPTION OF LIBFUZZER ...]; when that fork has ended,
its exit code goes to standard output. It tries inputs that are changed from those in FOLDER, and goes on from whichever
reaches new code of zdiloco; those it adds to FOLDER. A fault ends the fork with an exit code other than 0; the
traceback is in LOG, and the input a file in FOLDER.

Rule: an input may take STALL_S seconds and MEMORY_BYTES of address space, not more.
"""

import json
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


def begin(name: str, folder: str, log: str, options: list[str]) -> None:
    """In a fork: fuzz one parser; never returns."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        fuzz(TARGETS[name], Path(folder), options)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Obey until the input ends, one order after the other."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            begin(*json.loads(line))
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    serve()
